"""``dewmark audit``: the real false-positive rate of one key, measured on texts that are not marked."""

from __future__ import annotations

import dataclasses
import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, say, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table
    from rich.text import Text

    from dewmark.cli.unmarked import Judged, Negatives
    from dewmark.scheme import BoundScheme
    from dewmark.stats.audit import Audit, Cell
    from dewmark.types import Detection

__all__ = ["audit"]

_CURVES = 5  # languages that the plot shows apart


def audit(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="TEXTS", help="More files for --negatives.")
    ] = None,
    negatives: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXTS…", help="Unmarked texts: text files, or JSONL with a text in each line."),
    ] = None,
    key: options.OptionalKeyFile = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    detector: options.Detector = None,
    test: Annotated[
        str | None, typer.Option(metavar="NAME", show_default="key", help="The statistical test to audit.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write audit.json, qq.png and audit.html here.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if the key fails.")] = False,
    batch_size: options.BatchSize = 32,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a key's real false-positive rate on unmarked texts, by language and length."""
    from dewmark.batch.scoring import open_scheme
    from dewmark.cli.unmarked import Negatives, audit_of
    from dewmark.stats.audit import Outcome

    texts = Negatives.read([*(negatives or ()), *(more or ())], option="--negatives")
    with Progress(quiet=quiet) as progress:
        bound = open_scheme(detector, key, host, scheme, settings, progress=progress)
        detections = _detect(bound, texts, test=test, batch_size=batch_size, progress=progress)
    judged = texts.judged(detections)
    found = audit_of(judged)
    summary = {
        "key_fingerprint": bound.fingerprint,
        "scheme": bound.scheme.name,
        "host": bound.host.name,
        "test": detections[0].test,
        "too_short": len(detections) - len(judged),
        **found.to_dict(),
    }
    if out is not None:
        _write(out, found, judged, summary)
        say(f"wrote {out / 'audit.html'}, audit.json and qq.png beside it", quiet=quiet)
    if json_:
        emit(summary)
    else:
        results().print(_table(found), soft_wrap=False)
        if summary["too_short"]:
            write(f"\nLeft out, too short for a verdict: {summary['too_short']}\n")
        write(f"\n{found.sentence}\n")
    if strict and found.outcome is Outcome.FAILS:
        raise typer.Exit(1)


def _table(found: Audit) -> Table:
    """The rates by group and level, with their intervals, for a terminal."""
    from rich.table import Table

    table = Table(box=None)
    table.add_column("called marked", no_wrap=True)
    for head in ("texts", *(f"at {100.0 * cell.level:g}%" for cell in found.overall)):
        table.add_column(head, justify="right", no_wrap=True)
    for _, cells in groupby(found.cells, key=lambda cell: cell.name):
        group = list(cells)
        table.add_row(group[0].name, f"{group[0].texts:,}", *map(_share, group))
    return table


def _share(cell: Cell) -> Text:
    from rich.text import Text

    from dewmark.reports.audit_page import percent

    share = cell.rate
    return Text.assemble(
        (f"{percent(share.rate)}!", "bold red") if cell.significant else percent(share.rate),
        (f" ({percent(share.low)[:-1]}–{percent(share.high)[:-1]})", "dim"),
    )


def _detect(
    bound: BoundScheme, texts: Negatives, *, test: str | None, batch_size: int, progress: Progress
) -> list[Detection]:
    """Every text's detection, without its tokens: they would fill the memory."""
    found: list[Detection] = []
    for start in range(0, len(texts.entries), batch_size):
        batch = texts.entries[start : start + batch_size]
        made = bound.detect_batch(
            [entry.text for entry in batch], prompts=[entry.prompt for entry in batch], test=test
        )
        found += [dataclasses.replace(detection, tokens=()) for detection in made]
        progress("scoring", len(found), len(texts.entries))
    return found


def _write(out: Path, found: Audit, judged: Sequence[Judged], summary: dict[str, Any]) -> None:
    """The audit as data, as a picture and as a page."""
    from dewmark import storage
    from dewmark.reports import plots
    from dewmark.reports.audit_page import render_audit

    by_language: dict[str, list[float]] = {}
    for row in judged:
        by_language.setdefault(row.language, []).append(row.p_value)
    largest = sorted(by_language, key=lambda name: -len(by_language[name]))[:_CURVES]
    groups = {name: by_language[name] for name in sorted(largest)} if len(by_language) > 1 else {}
    title = f"Audit of key {summary['key_fingerprint']}"
    figure = plots.qq_plot([row.p_value for row in judged], groups=groups, title=title)
    notes = (
        f"{found.texts:,} unmarked texts were judged; {summary['too_short']:,} more were too short.",
        f"Scheme {summary['scheme']} on {summary['host']}, {summary['test']} test.",
        "The rates hold for texts like these. Other kinds of text need an audit of their own.",
    )
    page = render_audit(found, title=title, notes=notes, plot=plots.png(figure))
    data = json.dumps({**summary, "judged": [dataclasses.asdict(row) for row in judged]}, ensure_ascii=False)
    plots.save_figure(figure, out / "qq.png")
    for name, content in (("audit.json", data + "\n"), ("audit.html", page)):
        with storage.atomic_write(out / name) as stream:
            stream.write(content.encode("utf-8"))
