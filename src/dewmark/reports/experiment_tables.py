"""From a run's results to the tables of its report: the paper's layout, the matched null, quality, run time.

Which figures head a report is decided by the paper's table of the same name: thresholds from the host's own
texts or from people's, AUROC for the encoders, seconds for efficiency. Boundary: results in, `Table`s out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from dewmark.evaluation.results import NEGATIVES, Cell, Evaluation
from dewmark.evaluation.scores import CLEAN
from dewmark.reports.columns import SHIFTED, attack_name, is_cut, measure_column, of_rate, of_spread
from dewmark.reports.paper import PaperTable
from dewmark.reports.run_files import RunFiles
from dewmark.reports.side_tables import quality_table, runtime_table, stealing_table
from dewmark.reports.tables import Column, Figure, Row, Table

__all__ = ["report_tables"]

_FEW, _SHIFT = "†", "!"
_NULLS = {
    "clean": "the host's own unmarked texts, unattacked (the paper's protocol)",
    "matched": "the host's own unmarked texts after the same attack",
    "human": "texts by people, unattacked",
    "human-matched": "texts by people after the same attack",
}

Take = Callable[[Cell], Figure | None]


def report_tables(run: RunFiles, paper: PaperTable | None) -> list[Table]:
    """The tables of a report, the one that answers its question first."""
    measures = {column.measure for column in paper.columns} if paper else {"tpr"}
    found = _evaluated(run, paper.negatives if paper else "clean", areas_first="auroc" in measures)
    stolen = [stealing_table(run)] if run.stealing else []
    times = [runtime_table(run)] if run.runtime else []
    return [*times, *found] if "generate" in measures else [*found[:1], *stolen, *found[1:], *times]


def _evaluated(run: RunFiles, wanted: str, *, areas_first: bool) -> list[Table]:
    """The tables of scores and p-values; thresholds of the ``wanted`` negatives come first."""
    evaluation = run.evaluation
    tables: list[Table] = []
    if evaluation is not None and evaluation.cells:
        kinds = [null for null in NEGATIVES if any(cell.beside(null) for cell in evaluation.cells)]
        if set(evaluation.attacks) <= {CLEAN}:  # without an attack the matched negatives are the clean ones
            kinds = [null for null in kinds if not null.endswith("matched")]
        kinds.sort(key=lambda null: null != wanted)
        rates = [_tpr_table(run, evaluation, null, whole=null == kinds[0]) for null in kinds]
        areas = [_auroc_table(evaluation)] if kinds else []
        tables += [*areas, *rates] if areas_first else [*rates, *areas]
        tables += [_null_table(evaluation), _p_value_table(evaluation)]
        tables += [_length_table(evaluation, null) for null in kinds[:1]]
    tables.append(quality_table(run))
    return [table for table in tables if table.columns]


def _tpr_table(run: RunFiles, evaluation: Evaluation, null: str, *, whole: bool) -> Table:
    """TPR at each rate under each attack; the ``whole`` table also has the quality of the marked texts."""
    takes = [(measure_column("tpr", rate), partial(_tpr, null=null, rate=rate)) for rate in evaluation.rates]
    columns, rows = _by_attack(evaluation, takes)
    if whole:
        columns, rows = _with_quality(run, columns, rows)
    seeds = {seed for cell in evaluation.cells for seed in cell.seeds}
    notes = [
        f"Mean ± half-range over seeds; thresholds from {_NULLS[null]}, of the other seeds."
        if len(seeds) > 1
        else f"One seed; thresholds from {_NULLS[null]}."
    ]
    if any(figure and _FEW in figure.flag for row in rows for figure in row.figures):
        notes.append(
            f"{_FEW} Fewer calibrating texts than 1/rate: the threshold is merely the largest score."
        )
    return Table(f"Marked texts found: {_NULLS[null]}", columns, rows, tuple(notes))


def _tpr(cell: Cell, *, null: str, rate: float) -> Figure | None:
    at = cell.at(null, rate)
    return None if at is None else of_spread(at.tpr, _FEW if at.few else "")


def _length_table(evaluation: Evaluation, null: str) -> Table:
    """TPR of texts cut short."""
    takes = [(measure_column("tpr", rate), partial(_tpr, null=null, rate=rate)) for rate in evaluation.rates]
    note = f"Mean ± half-range over seeds; thresholds from {_NULLS[null]}."
    cut = [attack for attack in evaluation.attacks if is_cut(attack)]
    return Table("Texts cut short", *_by_attack(evaluation, takes, cut), notes=(note,))


def _auroc_table(evaluation: Evaluation) -> Table:
    takes = [
        (dataclasses.replace(measure_column("auroc"), head=head), partial(_auroc, null=null))
        for head, null in (("matched", "matched"), ("shifted", "clean"), ("human", "human"))
    ]
    note = (
        "Mean ± half-range over seeds. Matched: against unmarked texts after the same attack. Shifted: "
        "against unattacked ones. Where shifted is clearly higher, the attack raises the score of every text."
    )
    return Table("AUROC", *_by_attack(evaluation, takes), notes=(note,))


def _auroc(cell: Cell, *, null: str) -> Figure | None:
    beside = cell.beside(null)
    return None if beside is None else of_spread(beside.auroc)


def _null_table(evaluation: Evaluation) -> Table:
    """What the unattacked threshold really lets through after an attack."""
    takes: list[tuple[Column, Take]] = [
        (Column(f"FPR@{100 * rate:g}%", better=""), partial(_real_fpr, rate=rate))
        for rate in evaluation.rates
    ]
    takes.append((Column("shift (SD)", decimals=2, better="", sign=True), _shift))
    takes.append((Column("words kept", decimals=2, better=""), _kept))
    note = (
        "The share of unmarked texts, after the attack, above the threshold that unattacked ones gave, with "
        f"its exact 95% interval; {_SHIFT} = higher than for unattacked texts (Fisher's exact test, "
        f"p < {SHIFTED:g}). Shift: how far the attack moves the mean score of unmarked texts, in their "
        "standard deviations. Words kept: the share of marked texts' words that the attack left, wherever "
        "they stand."
    )
    return Table("What the thresholds really let through", *_by_attack(evaluation, takes), notes=(note,))


def _real_fpr(cell: Cell, *, rate: float) -> Figure | None:
    at = cell.at("clean", rate)
    if at is None:
        return None
    return of_rate(at.attacked, _SHIFT if at.shift_p is not None and at.shift_p < SHIFTED else "")


def _shift(cell: Cell) -> Figure | None:
    return None if cell.shift is None or cell.attack == CLEAN else Figure(cell.shift)


def _kept(cell: Cell) -> Figure | None:
    return None if cell.kept is None else Figure(cell.kept)


def _p_value_table(evaluation: Evaluation) -> Table:
    takes = [
        (
            Column(f"{kind} p<{rate:g}", better="higher" if kind == "found" else "", shade=kind == "found"),
            partial(_below, rate=rate, kind=kind),
        )
        for rate in evaluation.rates
        for kind in ("found", "unmarked", "human")
    ]
    note = (
        "The share of texts with a p-value below the level, no threshold fitted; unmarked and human texts "
        "went through the same attack, and theirs should be the level itself. Exact 95% intervals."
    )
    return Table("By p-value alone", *_by_attack(evaluation, takes), notes=(note,))


def _below(cell: Cell, *, rate: float, kind: str) -> Figure | None:
    share = cell.share(rate)
    return None if share is None else of_rate(getattr(share, kind))


def _by_attack(
    evaluation: Evaluation, takes: Sequence[tuple[Column, Take]], attacks: Sequence[str] | None = None
) -> tuple[tuple[Column, ...], tuple[Row, ...]]:
    """One group of columns per attack (all but cuts); a column that no row fills is left out."""
    columns, filled = [], []
    for attack in [each for each in evaluation.attacks if not is_cut(each)] if attacks is None else attacks:
        cells = [evaluation.cell(scheme, attack) for scheme in evaluation.schemes]
        for column, take in takes:
            figures = [None if cell is None else take(cell) for cell in cells]
            if any(figures):
                columns.append(dataclasses.replace(column, group=attack_name(attack)))
                filled.append(figures)
    rows = (
        Row(scheme, tuple(figures[i] for figures in filled)) for i, scheme in enumerate(evaluation.schemes)
    )
    return tuple(columns), tuple(rows)


def _with_quality(
    run: RunFiles, columns: tuple[Column, ...], rows: tuple[Row, ...]
) -> tuple[tuple[Column, ...], tuple[Row, ...]]:
    """The rows with perplexity and net preference, where they were measured."""
    perplexities = [each.perplexity if (each := run.quality.get(row.label)) else None for row in rows]
    preferences = [run.preference.get(row.label) for row in rows]
    for measure, figures in (("perplexity", perplexities), ("nps", preferences)):
        if any(figures):
            columns = (*columns, measure_column(measure, group="text quality"))
            rows = tuple(
                dataclasses.replace(row, figures=(*row.figures, of_spread(figure)))
                for row, figure in zip(rows, figures, strict=True)
            )
    return columns, rows
