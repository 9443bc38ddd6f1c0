"""Sources give the same texts for every format, block size and location."""

from __future__ import annotations

import functools
import http.server
import json
import pickle
import sys
import threading
from pathlib import Path

import pytest

from dewmark.batch.sources import JsonlSource, ParquetSource, open_binary, open_source, shown, size_of
from dewmark.errors import ConfigError, InputError, MissingExtraError

ROWS = [{"id": f"t{i}", "text": f"Text number {i}, naïve – 文", "language": "de"} for i in range(23)]


def write_jsonl(path: Path, rows=ROWS) -> str:
    # blank lines count as lines and not as rows; a byte-order mark is no part of the first row
    lines = [json.dumps(row, ensure_ascii=False) + "\n" * (1 + i % 3) for i, row in enumerate(rows)]
    path.write_text("\ufeff" + "".join(lines).rstrip("\n"), encoding="utf-8")
    return str(path)


def write_parquet(path: Path, rows=ROWS, *, group: int = 10) -> str:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=group)
    return str(path)


WRITERS = {"in.jsonl": write_jsonl, "in.parquet": write_parquet}


@pytest.mark.parametrize("size", [1, 4, 10, 1000])
@pytest.mark.parametrize("name", WRITERS)
def test_blocks_hold_every_text_once_and_in_order(tmp_path, name, size):
    source = open_source(WRITERS[name](tmp_path / name))
    blocks = source.blocks(size)
    assert max(block.rows for block in blocks) <= size
    assert [block.first for block in blocks] == [
        sum(before.rows for before in blocks[:i]) for i in range(len(blocks))
    ]
    elsewhere = pickle.loads(pickle.dumps((source, blocks)))
    items = [item for block in reversed(elsewhere[1]) for item in reversed(elsewhere[0].read(block))][::-1]
    assert [(item.id, item.text) for item in items] == [(row["id"], row["text"]) for row in ROWS]
    assert list(source.rows(blocks)) == items


def test_a_folder_of_parquet_files_is_one_source(tmp_path):
    write_parquet(tmp_path / "b.parquet", ROWS[15:])
    write_parquet(tmp_path / "a.parquet", [{"text": row["text"]} for row in ROWS[:15]])
    (tmp_path / "notes.txt").write_text("no table")
    source = open_source(str(tmp_path))
    items = list(source.rows(source.blocks(4)))
    assert [item.text for item in items] == [row["text"] for row in ROWS]
    # a text without a name is called by its place, counted over all files
    assert [item.id for item in items] == [*map(str, range(15)), *(f"t{i}" for i in range(15, 23))]


def test_a_bad_row_is_reported_with_its_line(tmp_path):
    rows = [*ROWS[:13], {"text": None}]
    source = open_source(write_parquet(tmp_path / "in.parquet", rows))
    with pytest.raises(InputError, match="in.parquet, row 13: text must be a string"):
        source.read(source.blocks(2)[-1])
    source = open_source(write_jsonl(tmp_path / "in.jsonl", rows))
    with pytest.raises(InputError, match="in.jsonl, line 26: text must be a string"):
        source.read(source.blocks(2)[-1])


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("in.jsonl", b"\n \n", "is empty"),
        ("in.parquet", b"PAR1 and no more", "is not a Parquet file, or it is damaged"),
        ("in.parquet", None, "cannot read"),
        ("in.jsonl", None, "cannot read"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, data, said):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=said):
        open_source(str(tmp_path / name)).blocks(10)


def test_columns_are_checked_before_reading(tmp_path):
    file = write_parquet(tmp_path / "in.parquet", [{"body": "x", "id": 1}])
    with pytest.raises(InputError, match='has no column "text"; it has: body, id'):
        open_source(file).blocks(10)


def test_source_names(tmp_path):
    assert isinstance(open_source("https://x.org/a.jsonl?key=1"), JsonlSource)
    assert isinstance(open_source("s3://bucket/a.parquet"), ParquetSource)
    with pytest.raises(ConfigError, match=r"cannot tell the format of a.csv"):
        open_source("a.csv")
    with pytest.raises(ConfigError, match=r"give a path or a URL \(s3://, gs://, http://, https://\)"):
        open_binary("ftp://x.org/a.jsonl")
    with pytest.raises(InputError, match="has no Parquet files"):
        open_source(str(tmp_path)).blocks(1)


def test_a_signed_link_is_shown_without_its_signature():
    assert shown("https://me:secret@x.org/a.parquet?Signature=abc#d") == "https://x.org/a.parquet"
    with pytest.raises(InputError, match=r"cannot read http://127\.0\.0\.1:9/a\.jsonl: ") as caught:
        open_binary("http://me:secret@127.0.0.1:9/a.jsonl?Signature=abc")
    assert "secret" not in str(caught.value)
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize("module", ["pyarrow", "aiohttp"])
def test_a_missing_extra_names_the_install_command(monkeypatch, module):
    for name in [name for name in sys.modules if name.split(".")[0] in (module, "fsspec")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'dewmark\[parquet\]'"):
        open_source("in.parquet") if module == "pyarrow" else open_binary("http://127.0.0.1:9/in.jsonl")


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves files and byte ranges."""

    def do_GET(self):
        data = Path(self.translate_path(self.path.partition("?")[0])).read_bytes()
        asked = self.headers.get("Range")
        first, last = 0, len(data) - 1
        if asked:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(data[first : last + 1])

    def log_message(self, *_):
        """Log nothing."""


@pytest.mark.parametrize("name", WRITERS)
def test_over_http(tmp_path, name):
    here = WRITERS[name](tmp_path / name)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Ranges, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/{name}?Signature=abc"
        source, local = open_source(url), open_source(here)
        assert size_of(url)[0] == size_of(here)[0]
        blocks = source.blocks(6)
        assert blocks == local.blocks(6)
        assert list(source.rows(blocks)) == list(local.rows(blocks))
        assert "abc" not in json.dumps(source.identity())
        with pytest.raises(InputError, match="cannot read http://127.0.0.1"):
            open_source(url.replace("in.", "no.")).blocks(6)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", WRITERS)
def test_through_pyarrow_s_file_systems(tmp_path, name, monkeypatch):
    """The code path of s3:// and gs://, with the local file system in their place."""
    here = WRITERS[name](tmp_path / name)
    monkeypatch.setattr("dewmark.batch.sources._ARROW", ("file",))
    source, local = open_source(f"file://{here}"), open_source(here)
    blocks = source.blocks(6)
    assert blocks == local.blocks(6)
    assert list(source.rows(blocks)) == list(local.rows(blocks))
    with pytest.raises(InputError, match="cannot read file:///"):
        open_source(f"file://{tmp_path}/no-{name}").blocks(6)
