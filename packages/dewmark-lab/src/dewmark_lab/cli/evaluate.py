"""``dewmark evaluate``: how well the scores of marked texts separate from those of unmarked texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, say, write
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from dewmark_audit.rates import Rate
    from dewmark_lab.evaluation.results import Evaluation, ResultCell


def evaluate(
    positives: Annotated[
        list[str] | None,
        typer.Option(metavar="[ATTACK=]FILE.jsonl", help="Marked texts, after ATTACK if it is named."),
    ] = None,
    negatives: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ATTACK=]FILE.jsonl",
            help="Unmarked texts of the same model, after ATTACK if it is named.",
        ),
    ] = None,
    human: Annotated[
        list[str] | None, typer.Option(metavar="[ATTACK=]FILE.jsonl", help="Human-written texts.")
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            metavar="SCORES.jsonl", help="Use the scores of a dewmark reproduce run instead of these files."
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default="z, else score", help="Field that holds the score of a row."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field that tells runs with different keys apart; thresholds then come from the other runs.",
        ),
    ] = None,
    rates: Annotated[
        str, typer.Option("--fpr", metavar="R,R,…", help="Nominal false-positive rates.")
    ] = "0.01,0.05",
    key: options.OptionalKeyFile = None,
    host: options.Host = None,
    scheme: options.SchemeName = None,
    settings: options.Settings = None,
    detector: options.Detector = None,
    reader: options.Reader = None,
    test: options.Test = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a report here: scores, tables, figures.")
    ] = None,
    batch_size: options.BatchSize = 32,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare marked with unmarked texts: AUROC, share found at a false-positive rate, real rate.

    Rows have scores already (as dewmark detect --json writes them), or texts, which are scored now with --key
    or --detector.
    """
    from dewmark_lab.evaluation.protocol import evaluate as judge
    from dewmark_lab.evaluation.results import scores_in
    from dewmark_lab.evaluation.score_files import parse_files, read_score_files, score_files

    levels = options.numbers(rates, float, option="--fpr")
    given = (positives or (), negatives or (), human or ())
    files = parse_files(*given) if scores is None else ()
    if scores is not None:
        if any(given) or key is not None or detector is not None:
            raise ConfigError("--scores has all texts: leave out --positives, --negatives, --human and --key")
        rows = scores_in(scores)
    elif key is not None or detector is not None:
        with Progress(quiet=quiet) as progress:
            bound = options.open_detector(
                detector, key, host, scheme, settings, reader=reader, progress=progress
            )
            rows = score_files(bound, files, seeds=seeds, test=test, batch_size=batch_size, progress=progress)
    else:
        rows = read_score_files(files, field=field, seeds=seeds)
    found = judge(rows, rates=levels)
    if out is not None:
        from dewmark_lab.evaluation.results import write_scores
        from dewmark_lab.experiments.outputs import write_json
        from dewmark_lab.reports.experiment_report import write_report

        write_scores(out / "scores.jsonl", rows)
        write_json(out / "evaluation.json", found.to_dict())
        named = [{"kind": each.kind, "attack": each.attack, "file": each.file.name} for each in files]
        configuration: dict[str, Any] = {"files": named, "rates": levels}
        write_report(out, configuration, title="Evaluation", table="", commands=[], rates=levels)
        say(f"wrote {out / 'report.md'}, with figures next to it", quiet=quiet)
    if json_:
        emit(found.to_dict())
    else:
        results().print(_table(found), soft_wrap=False)
        write("".join(f"\n{note[0].upper()}{note[1:]}." for note in found.notes) + "\n" * bool(found.notes))


def _table(found: Evaluation) -> Table:
    """For each cell a line per kind of negatives and one for its p-values, with exact 95% intervals."""
    from rich.table import Table

    from dewmark_lab.evaluation.results import CLEAN

    several = len(found.schemes) > 1
    table = Table(box=None)
    for head in ("scheme",) * several + ("marked texts", "negatives"):
        table.add_column(head, no_wrap=True)
    for head in ("AUROC", *(f"found at {100 * rate:g}%" for rate in found.rates), "real FPR"):
        table.add_column(head, justify="right", no_wrap=True)
    for cell in found.cells:
        name = "unattacked" if cell.attack == CLEAN else cell.attack
        first = (cell.scheme,) * several + (f"{name} ({cell.texts:,})",)
        for line in (*_by_scores(cell), *_by_p_values(cell, found.rates)):
            table.add_row(*first, *line)
            first = ("",) * len(first)
    return table


def _by_scores(cell: ResultCell) -> Iterator[Sequence[str]]:
    """A line per kind of negatives; the real rate is that of unmarked texts after the same attack."""
    from dewmark_lab.evaluation.results import CLEAN

    for each in cell.against:
        if cell.attack == CLEAN and each.negatives.endswith("matched"):
            continue  # the same texts again
        found = [_share(at.found) for at in each.at]
        yield each.negatives, f"{each.auroc.mean:.3f}", *found, _real([at.attacked for at in each.at])


def _by_p_values(cell: ResultCell, rates: Sequence[float]) -> Iterator[Sequence[str]]:
    if cell.shares:
        shares = [share for rate in rates if (share := cell.share(rate)) is not None]
        real = [share.unmarked or share.human for share in shares]
        yield "by p-value", "", *(_share(share.found) for share in shares), _real(real)


def _share(rate: Rate) -> str:
    """A percentage with its interval."""
    return f"{100 * rate.rate:.0f}% ({100 * rate.low:.0f}–{100 * rate.high:.0f})"


def _real(rates: Sequence[Rate | None]) -> str:
    return ", ".join("–" if rate is None else f"{100 * rate.rate:.1f}%" for rate in rates)
