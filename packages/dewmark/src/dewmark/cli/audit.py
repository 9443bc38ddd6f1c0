"""``dewmark audit``: measure the false-positive rate of one key on unmarked texts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, save_text, say, write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table
    from rich.text import Text

    from dewmark.batch.negatives import AuditedText
    from dewmark.stats.audit import Audit, Cell, Group

_STYLE = {"trusted": "", "not trusted": "bold red", "cannot tell": "yellow"}
_WIDE = 140  # columns for the whole table; a narrower terminal gets what the verdict rests on
_CURVES = 5  # languages with a curve of their own in the plot


def audit(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="TEXTS", help="More files for --negatives.")
    ] = None,
    negatives: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXTS…",
            help="Unmarked texts: text files, or JSONL with a text per line (and its kind and language).",
            show_default="packaged, the texts of the package",
        ),
    ] = None,
    key: options.OptionalKeyFile = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    detector: options.Detector = None,
    reader: options.Reader = None,
    test: Annotated[
        str | None, typer.Option(metavar="NAME", show_default="key", help="Statistical test to audit.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write audit.json, qq.svg and audit.html here.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if the key fails.")] = False,
    batch_size: options.BatchSize = 32,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a key's real false-positive rate on unmarked texts, by kind, language and length."""
    from dewmark.batch import Negatives, audit_texts
    from dewmark.batch.negatives import PACKAGED
    from dewmark.scheme import reader_name
    from dewmark.stats.audit import Outcome

    files = [*(negatives or ()), *(more or ())]
    texts = Negatives.read(files or [PACKAGED])
    with Progress(quiet=quiet) as progress:
        bound = options.open_detector(detector, key, host, scheme, settings, reader=reader, progress=progress)
        found, audited = audit_texts(bound, texts, test=test, batch_size=batch_size, progress=progress)
    summary = {
        "key_fingerprint": bound.fingerprint,
        "config_hash": bound.config_hash,
        "scheme": bound.scheme.name,
        "host": bound.host.name,
        "reader": reader_name(bound),
        "test": test or bound.tests[0],
        "too_short": len(texts.documents) - len(audited),
        **found.to_dict(),
    }
    if out is not None:
        _save(out, found, audited, summary)
        say(f"wrote {out / 'audit.html'}, with audit.json and qq.svg next to it", quiet=quiet)
    if json_:
        emit(summary)
    else:
        console = results()
        console.print(_table(found, wide=console.width >= _WIDE), soft_wrap=False)
        if summary["too_short"]:
            write(f"\nLeft out as too short for a verdict: {summary['too_short']}\n")
        write("\n" + "\n".join([found.sentence, *found.remarks]) + "\n")
        if not files:
            write("These are the package's own texts; audit the key on texts of your own, too.\n")
    if strict and found.outcome is Outcome.FAILS:
        raise typer.Exit(1)


def _table(found: Audit, *, wide: bool) -> Table:
    """Rates with their intervals by group and level, and what is known of each group under one key."""
    from rich.table import Table

    from dewmark.stats.audit import VERDICT_LEVEL, percent

    known = found.groups[0].together is not None
    table = Table(box=None)
    table.add_column("called marked", overflow="fold")
    heads = ["texts", *(("as", "r", "r matched") if known and wide else ())]
    heads += [f"at {percent(cell.level)}" for cell in found.overall if wide or cell.level == VERDICT_LEVEL]
    if known:
        heads += [f"predicted at {percent(VERDICT_LEVEL)}", *(("98% of keys",) if wide else ())]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    kind = "all"
    for group in found.groups:
        if group.kind != kind:
            table.add_row()
            kind = group.kind
        table.add_row(group.name, *_row(group, wide=wide))
    return table


def _row(group: Group, *, wide: bool) -> list[str | Text]:
    from rich.text import Text

    from dewmark.stats.audit import LEVELS, VERDICT_LEVEL, percent

    middle = group.cells[LEVELS.index(VERDICT_LEVEL)]
    together, predicted = group.together, middle.prediction
    row: list[str | Text] = [f"{middle.texts:,}"]
    if together is not None and wide:
        row += [_number(together.effective_number), f"{together.r:.3f}", f"{together.matched:.3f}"]
    row += map(_share, group.cells if wide else [middle])
    if predicted is not None:
        row.append(Text.assemble(percent(predicted.rate), (f" (≤ {percent(predicted.high)})", "dim")))
        if wide:
            row.append(f"{percent(predicted.floor)[:-1]}–{percent(predicted.ceiling)}")
    return [*row, Text(group.verdict, style=_STYLE[group.trust])]


def _number(count: float) -> str:
    return f"{count:.1f}" if count < 9.95 else f"{count:,.0f}"


def _share(cell: Cell) -> Text:
    from rich.text import Text

    from dewmark.stats.audit import percent

    share = cell.rate
    return Text.assemble(
        (f"{percent(share.rate)}!", "bold red") if cell.significant else percent(share.rate),
        (f" ({percent(share.low)[:-1]}–{percent(share.high)[:-1]})", "dim"),
    )


def _save(out: Path, found: Audit, audited: Sequence[AuditedText], summary: dict[str, Any]) -> None:
    """Save the audit as data, plot and page."""
    from dewmark.reports.audit_page import qq_plot, render_audit

    by_language: dict[str, list[float]] = {}
    for row in audited:
        by_language.setdefault(row.language, []).append(row.p_value)
    largest = sorted(by_language, key=lambda name: -len(by_language[name]))[:_CURVES]
    groups = {name: by_language[name] for name in sorted(largest)} if len(by_language) > 1 else {}
    title = f"Audit of key {summary['key_fingerprint']}"
    figure = qq_plot([row.p_value for row in audited], groups=groups, title=title)
    notes = (
        f"{found.texts:,} unmarked texts were scored; {summary['too_short']:,} more were too short.",
        f"Scheme {summary['scheme']} on {summary['host']}, {summary['test']} test.",
        "The rates hold for texts like these; other kinds of text need their own audit.",
    )
    page = render_audit(found, title=title, notes=notes, plot=figure)
    data = json.dumps({**summary, "judged": [dataclasses.asdict(row) for row in audited]}, ensure_ascii=False)
    save_text(out / "qq.svg", figure)
    save_text(out / "audit.json", data + "\n")
    save_text(out / "audit.html", page)
