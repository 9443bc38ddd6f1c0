"""``dewmark evaluate``: how well scores of marked texts stand apart from those of unmarked ones.

Files of marked and unmarked texts for ``dewmark evaluate``, as rows of scores: read, or scored now.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dewmark import storage
from dewmark.cli import options
from dewmark.cli.terminal import Progress, emit, results, say, write
from dewmark.errors import ConfigError, InputError
from dewmark.lab.evaluation.results import CLEAN, HUMAN, MARKED, UNMARKED, ScoreRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from dewmark.cli.terminal import Progress
    from dewmark.lab.evaluation.results import Cell, Evaluation
    from dewmark.scheme import BoundScheme
    from dewmark.stats.metrics import Rate

__all__ = ["Source", "Sources", "evaluate", "read_numbers", "score_texts"]

_SCORES = ("z", "score")  # where a row may hold its score, the first that is there

_LENGTHS = ("tokens_scored", "tokens")

_LARGEST = 1e6  # a score beyond it says no more


@dataclass(frozen=True, slots=True)
class Source:
    """One file: what its texts are, and which attack they went through."""

    kind: str
    attack: str
    file: Path

    @classmethod
    def parse(cls, kind: str, given: str) -> Source:
        """Read ``FILE`` or ``ATTACK=FILE``."""
        attack, sign, file = given.partition("=")
        if not sign or Path(given).exists():
            return cls(kind, CLEAN, Path(given))
        if not attack or not file:
            raise ConfigError(f"expected FILE or ATTACK=FILE, got {given!r}")
        return cls(kind, attack, Path(file))


@dataclass(frozen=True, slots=True)
class Sources:
    """All files of a command."""

    files: tuple[Source, ...]

    @classmethod
    def named(cls, positives: Sequence[str], negatives: Sequence[str], human: Sequence[str]) -> Sources:
        """The files that the options name."""
        kinds = ((MARKED, positives), (UNMARKED, negatives), (HUMAN, human))
        return cls(tuple(Source.parse(kind, given) for kind, names in kinds for given in names))

    def check(self) -> None:
        """Refuse what cannot be compared."""
        kinds = {source.kind for source in self.files}
        if MARKED not in kinds or len(kinds) < 2:
            raise ConfigError(
                "give --positives FILE, and --negatives FILE or --human FILE to compare them with"
            )

    def rows(self) -> Iterator[tuple[Source, str, dict[str, Any]]]:
        """(file, where the row stands, row) of all rows."""
        for source in self.files:
            empty = True
            for number, row in storage.read_jsonl(source.file):
                empty = False
                yield source, f"{source.file}, line {number}", row
            if empty:
                raise InputError(f"{source.file} is empty: there is nothing to compare")

    def to_dict(self) -> list[dict[str, str]]:
        """Plain JSON values; a file by its name."""
        return [{"kind": each.kind, "attack": each.attack, "file": each.file.name} for each in self.files]


class _Runs:
    """Numbers the runs that a field tells apart, in the order in which they occur."""

    def __init__(self, field: str | None) -> None:
        self._field = field
        self._numbers: dict[str, int] = {}

    def number(self, row: dict[str, Any], where: str) -> int:
        if self._field is None:
            return 0
        if self._field not in row:
            raise InputError(f'{where} has no "{self._field}", which --seeds names')
        return self._numbers.setdefault(str(row[self._field]), len(self._numbers))


def read_numbers(sources: Sources, *, field: str | None, seeds: str | None) -> list[ScoreRow]:
    """Rows that hold a score already, and a p-value and a length where they do."""
    runs, found = _Runs(seeds), []
    label: str | None = None
    for source, where, row in sources.rows():
        name = next((each for each in ((field,) if field else _SCORES) if each in row), None)
        if name is None:
            remedy = (
                "add --key FILE to score its text" if "text" in row else "write it by: dewmark detect --json"
            )
            raise InputError(f"{where} has no {field or 'z and no score'}: {remedy}")
        label = label or str(row.get("scheme", "scores"))
        score, p_value = _number(row, name, where), row.get("p_value")
        found.append(
            ScoreRow(
                scheme=label,
                attack=source.attack,
                seed=runs.number(row, where),
                kind=source.kind,
                id=where,
                score=score,
                p_value=None if p_value is None else _number(row, "p_value", where),
                tokens=int(next((_number(row, each, where) for each in _LENGTHS if each in row), 0)),
            )
        )
    return found


def _number(row: dict[str, Any], name: str, where: str) -> float:
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InputError(f"{where}: {name} must be a number, got {value!r}")
    return float(value)


def score_texts(
    bound: BoundScheme,
    sources: Sources,
    *,
    seeds: str | None,
    test: str | None,
    batch_size: int,
    progress: Progress,
) -> list[ScoreRow]:
    """Score every row's text under one key; prompts are not used, as a detector would not know them."""
    from dewmark.batch.scoring import detect_items
    from dewmark.cli.inputs import Item, batched
    from dewmark.scheme import check_test, check_text

    check_test(test, bound.tests)
    runs = _Runs(seeds)
    places: list[tuple[Source, str, int]] = []
    items: list[Item] = []
    for source, where, row in sources.rows():
        if "text" not in row:
            raise InputError(f'{where} has no "text" to score')
        text = row["text"]
        if not isinstance(text, str) or text.strip():
            check_text(text, f"{where}: text")
        places.append((source, where, runs.number(row, where)))
        items.append(Item(where, text, None))
    found: list[ScoreRow] = []
    for batch in batched(items, batch_size):
        detections = detect_items(bound, batch, fpr=0.01, test=test)
        for detection in detections:
            source, where, seed = places[len(found)]
            z = 0.0 if math.isnan(detection.z) else min(max(detection.z, -_LARGEST), _LARGEST)
            found.append(
                ScoreRow(
                    scheme=bound.scheme.name,
                    attack=source.attack,
                    seed=seed,
                    kind=source.kind,
                    id=where,
                    score=z,
                    p_value=detection.p_value,
                    tokens=detection.tokens_scored,
                )
            )
        progress("scoring", len(found), len(items))
    return found


def evaluate(
    positives: Annotated[
        list[str] | None,
        typer.Option(metavar="[ATTACK=]FILE.jsonl", help="Marked texts, after ATTACK if one is named."),
    ] = None,
    negatives: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[ATTACK=]FILE.jsonl",
            help="Unmarked texts of the same model; those after ATTACK are its matched null.",
        ),
    ] = None,
    human: Annotated[
        list[str] | None, typer.Option(metavar="[ATTACK=]FILE.jsonl", help="Texts that people wrote.")
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            metavar="SCORES.jsonl", help="Instead of these: all rows of a run of dewmark reproduce."
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default="z, else score", help="The field of scored rows to compare by."
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="The field that tells runs apart, each with its key; thresholds come from the other runs.",
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
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="The test to score texts with, as in dewmark detect.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a report here: scores, tables, figures, one HTML page."),
    ] = None,
    batch_size: options.BatchSize = 32,
    json_: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare marked with unmarked texts: AUROC, the share found at a false-positive rate, its real rate.

    Rows hold numbers already (as dewmark detect --json writes them), or a text each, which is scored now if a
    --key or --detector is given.
    """
    from dewmark.lab.evaluation.protocol import evaluate as judge
    from dewmark.lab.evaluation.results import read_scores

    levels = _rates(rates)
    sources = Sources.named(positives or (), negatives or (), human or ())
    if scores is not None:
        if sources.files or key is not None or detector is not None:
            raise ConfigError("--scores holds everything: leave out --positives, --negatives, --human, --key")
        rows = read_scores(scores)
    elif key is not None or detector is not None:
        from dewmark.batch.scoring import open_scheme

        sources.check()
        with Progress(quiet=quiet) as progress:
            bound = open_scheme(detector, key, host, scheme, settings, progress=progress)
            rows = score_texts(
                bound, sources, seeds=seeds, test=test, batch_size=batch_size, progress=progress
            )
    else:
        sources.check()
        rows = read_numbers(sources, field=field, seeds=seeds)
    found = judge(rows, rates=levels)
    if out is not None:
        from dewmark.lab.evaluation.results import write_scores
        from dewmark.reports.experiment_report import write_report

        write_scores(out / "scores.jsonl", rows)
        found.save(out / "evaluation.json")
        configuration: dict[str, Any] = {"files": sources.to_dict(), "rates": levels}
        write_report(out, title="Evaluation", table="", configuration=configuration, commands=[])
        say(f"wrote {out / 'report.html'}, tables and figures beside it", quiet=quiet)
    if json_:
        emit(found.to_dict())
    else:
        results().print(_table(found), soft_wrap=False)
        write("".join(f"\n{note[0].upper()}{note[1:]}." for note in found.notes) + "\n" * bool(found.notes))


def _rates(given: str) -> list[float]:
    try:
        return sorted({float(part) for part in given.split(",") if part.strip()})
    except ValueError:
        raise ConfigError(f"--fpr needs rates such as 0.01,0.05, got {given!r}") from None


def _table(found: Evaluation) -> Table:
    """A line for each kind of negatives of each cell, and one for its p-values; exact 95% intervals."""
    from rich.table import Table

    from dewmark.lab.evaluation.results import CLEAN

    several = len(found.schemes) > 1
    table = Table(box=None)
    for head in ("scheme",) * several + ("marked texts", "negatives"):
        table.add_column(head, no_wrap=True)
    for head in ("AUROC", *(f"found at {100 * rate:g}%" for rate in found.rates), "real FPR"):
        table.add_column(head, justify="right", no_wrap=True)
    for cell in found.cells:
        name = "unattacked" if cell.attack == CLEAN else cell.attack
        first = (cell.scheme,) * several + (f"{name} ({cell.texts:,})",)
        for line in (*_by_scores(cell), *_by_p_values(cell)):
            table.add_row(*first, *line)
            first = ("",) * len(first)
    return table


def _by_scores(cell: Cell) -> Iterator[Sequence[str]]:
    """A line for each kind of negatives; the real rate is that of texts after the cell's attack."""
    from dewmark.lab.evaluation.results import CLEAN

    for each in cell.against:
        if cell.attack == CLEAN and each.negatives.endswith("matched"):
            continue  # the same texts again
        found = [_share(at.found) for at in each.at]
        yield each.negatives, f"{each.auroc.mean:.3f}", *found, _real([at.attacked for at in each.at])


def _by_p_values(cell: Cell) -> Iterator[Sequence[str]]:
    if cell.shares:
        real = [share.unmarked or share.human for share in cell.shares]
        yield "by p-value", "", *(_share(share.found) for share in cell.shares), _real(real)


def _share(rate: Rate) -> str:
    """A share in per cent with its interval, short enough for a terminal."""
    return f"{100 * rate.rate:.0f}% ({100 * rate.low:.0f}–{100 * rate.high:.0f})"


def _real(rates: Sequence[Rate | None]) -> str:
    return ", ".join("–" if rate is None else f"{100 * rate.rate:.1f}%" for rate in rates)
