"""``dewmark audit``: what one key does on unmarked texts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, save_text, say, write

if TYPE_CHECKING:
    from rich.table import Table

    from dewmark_audit.audit import Audit

_STYLE = {"trusted": "", "not trusted": "bold red", "cannot tell": "yellow"}


def audit(
    more: Annotated[list[str] | None, typer.Argument(metavar="TEXTS", help="More for --negatives.")] = None,
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
    test: options.Test = None,
    out: Annotated[Path | None, typer.Option(metavar="AUDIT.json | -", help="Write the audit here.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if the key fails.")] = False,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a key's real false-positive rate on unmarked texts, by kind, language and length."""
    from dewmark.scheme import reader_name
    from dewmark_audit.audit import Outcome
    from dewmark_audit.negatives import PACKAGED, Negatives, audit_texts

    files = [*(negatives or ()), *(more or ())]
    texts = Negatives.read(files or [PACKAGED])
    with Progress(quiet=quiet) as progress:
        bound = options.open_detector(detector, key, host, scheme, settings, reader=reader, progress=progress)
        found, audited = audit_texts(bound, texts, test=test, progress=progress)
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
        judged = [dataclasses.asdict(row) for row in audited]
        save_text(out, json.dumps({**summary, "judged": judged}, ensure_ascii=False) + "\n")
        say(f"wrote {out}", quiet=quiet)
    if json_:
        emit(summary)
    else:
        results().print(_table(found), soft_wrap=False)
        if summary["too_short"]:
            write(f"\nLeft out as too short for a verdict: {summary['too_short']}\n")
        write("\n" + "\n".join([found.sentence, *found.remarks]) + "\n")
        if not files:
            write("These are the package's own texts; audit the key on texts of your own, too.\n")
    if strict and found.outcome is Outcome.FAILS:
        raise typer.Exit(1)


def _table(found: Audit) -> Table:
    """The rate of each group with its interval, and what is known of it under one key."""
    from rich.table import Table
    from rich.text import Text

    from dewmark_audit.audit import LEVELS, VERDICT_LEVEL, percent

    level = percent(VERDICT_LEVEL)
    table = Table(box=None)
    table.add_column("called marked", overflow="fold")
    for head in ("texts", f"at {level}", f"predicted at {level}"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    kind = "all"
    for group in found.groups:
        if group.kind != kind:
            table.add_row()
            kind = group.kind
        cell = group.cells[LEVELS.index(VERDICT_LEVEL)]
        share, predicted = cell.rate, cell.prediction
        table.add_row(
            group.name,
            f"{cell.texts:,}",
            Text.assemble(
                (f"{percent(share.rate)}!", "bold red") if cell.significant else percent(share.rate),
                (f" ({percent(share.low)[:-1]}–{percent(share.high)[:-1]})", "dim"),
            ),
            ""
            if predicted is None
            else Text.assemble(percent(predicted.rate), (f" (≤ {percent(predicted.high)})", "dim")),
            Text(group.verdict, style=_STYLE[group.trust]),
        )
    return table
