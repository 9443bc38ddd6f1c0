"""`generate_file`: the rows it writes, and resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.batch.many import read, write_jsonl

from dewmark.batch import TextWriter, generate_file
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.hosts.base import ChatFormat
from dewmark.watermark import DEFAULT_DECODING
from dewmark_lab.testing.fake_host import FakeHost

DECODING = Decoding(max_new_tokens=12)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in.jsonl", [{"prompt": f"the old bridge {i}"} for i in range(5)])


@pytest.fixture
def writer() -> TextWriter:
    host = FakeHost()
    return TextWriter(None, host.info, lambda: host, lambda: host.chat)


def test_rows_and_seeds(prompts, writer, tmp_path):
    made = generate_file(prompts, tmp_path / "out.jsonl", writer, decoding=DECODING, seed=7, batch_size=2)
    rows = read(made.out)
    assert (made.rows, made.resumed_from, made.seed) == (5, 0, 7)
    assert [row["seed"] for row in rows] == [7, 8, 9, 10, 11]
    assert {row["scheme"] for row in rows} == {"none"}
    assert {row["config_hash"] for row in rows} == {made.config_hash}
    (text,) = writer.write(["the old bridge 3"], seeds=[10], decoding=DECODING)
    assert rows[3]["text"] == text.text


def test_options_change_the_host_s_own_decoding_in_chat_only():
    host, own = FakeHost(), Decoding(temperature=0.6, top_k=20)
    writer = TextWriter(None, host.info, lambda: host, lambda: ChatFormat(str, own))
    assert writer.decoding({}) == DEFAULT_DECODING != own
    assert writer.decoding({"top_k": 5}) == Decoding(top_k=5)
    assert writer.decoding({"top_k": 5}, chat=True) == Decoding(temperature=0.6, top_k=5)


def test_a_resumed_run_keeps_its_seed(prompts, writer, tmp_path):
    out = tmp_path / "out.jsonl"
    first = generate_file(prompts, out, writer, decoding=DECODING, batch_size=2)
    whole = out.read_bytes()
    out.write_bytes(whole[: len(whole) * 3 // 4])
    again = generate_file(prompts, out, writer, decoding=DECODING, batch_size=2)
    assert (again.seed, again.resumed_from) == (first.seed, 2)
    assert out.read_bytes() == whole


def test_another_configuration_is_rejected(prompts, writer, tmp_path):
    out = tmp_path / "out.jsonl"
    generate_file(prompts, out, writer, decoding=DECODING)
    with pytest.raises(ConfigError, match="config_hash is"):
        generate_file(prompts, out, writer, decoding=Decoding(max_new_tokens=11))
    with pytest.raises(ConfigError, match="the prompts file"):
        generate_file(prompts, prompts, writer)


def test_rows_from_before_a_field_was_added_ask_for_another_file(prompts, writer, tmp_path):
    """No options make such a run again, so the message must not ask for them."""
    out = tmp_path / "out.jsonl"
    generate_file(prompts, out, writer, decoding=DECODING, seed=7)
    write_jsonl(out, [{name: row[name] for name in row if name != "room"} for row in read(out)])
    with pytest.raises(ConfigError, match=r"\(no field room\): choose another output file$"):
        generate_file(prompts, out, writer, decoding=DECODING, seed=7)
