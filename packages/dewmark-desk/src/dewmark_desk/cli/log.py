"""``dewmark log``: who asked the service about which texts (``dewmark serve --log-queries``)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import output, say, write
from dewmark_desk.cli import TextFile, show
from dewmark_desk.cli.token import StoreUrl, open_store

if TYPE_CHECKING:
    from dewmark_desk.query_log import Logged, QueryLog

app = typer.Typer(help="Search, export and expire the query log.", no_args_is_help=True)


@app.command()
def find(
    text: TextFile,
    similarity: Annotated[
        float,
        typer.Option(metavar="S", help="Least similarity: 1 is the same words, 0.5 half of the phrases."),
    ] = 0.5,
    store: StoreUrl = None,
    json_: options.Json = False,
) -> None:
    """Find out who asked about texts like this one, and when."""
    from dewmark.batch import read_files

    (document,) = read_files([text])
    found = _open(store).like(document.text, least=similarity)
    for each in found:
        row = _row(each)
        who = f"{row['time']}  token {each.token or '(open)'}  {each.endpoint}"
        line = f"{who}  {each.verdict}  similarity {each.similarity:.2f}  request {each.request}"
        show(row, line, as_json=json_)
    if not found and not json_:
        write("nobody asked about a text like this one\n")


@app.command()
def export(
    out: Annotated[Path, typer.Option(metavar="OUT.jsonl | -", help="Write the rows here.")],
    store: StoreUrl = None,
    quiet: options.Quiet = False,
) -> None:
    """Write the log as JSON lines, with texts as keyed hashes."""
    from dewmark import storage

    log, count = _open(store), 0
    with output(out, private=True) as stream:
        for row in log.export():
            stream.write(storage.encode_jsonl([_row(row)]))
            count += 1
    say(f"wrote {out}: {count} rows", quiet=quiet)


@app.command()
def expire(
    days: Annotated[float, typer.Option(metavar="N", min=0.0, help="Delete rows older than this.")],
    store: StoreUrl = None,
    json_: options.Json = False,
) -> None:
    """Delete old rows for good; a running service does so by itself (--log-days)."""
    gone = _open(store).expire(days=days)
    show({"deleted": gone}, f"deleted {gone} {'row' if gone == 1 else 'rows'}", as_json=json_)


def _open(url: str | None) -> QueryLog:
    from dewmark_desk.query_log import QueryLog

    return QueryLog(open_store(url))


def _row(logged: Logged) -> dict[str, Any]:
    from dewmark_desk.detection_report import timestamp

    return {**dataclasses.asdict(logged), "time": timestamp(logged.time)}
