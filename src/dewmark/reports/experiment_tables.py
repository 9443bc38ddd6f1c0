"""From a run's results to the tables of its report: the paper's layout, the matched null, quality, run time.

Which figures head a report is decided by the paper's table of the same name: thresholds from the host's own
texts or from people's, AUROC for the encoders, seconds for efficiency. Boundary: results in, `Table`s out.

The tables of a report that are not about attacks on texts: quality, run time, stolen marks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from dewmark.lab.evaluation.results import CLEAN, NEGATIVES, Cell, Evaluation
from dewmark.reports.paper import PaperTable
from dewmark.reports.run_files import RunFiles
from dewmark.reports.tables import (
    SHIFTED,
    Column,
    Figure,
    Row,
    Table,
    attack_name,
    is_cut,
    measure_column,
    of_interval,
    of_rate,
    of_spread,
)

__all__ = ["quality_table", "report_tables", "runtime_table", "stealing_table"]

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


_STOLEN = (  # a field of stealing.jsonl, its heading, decimals, whether it is a share
    ("observed", "texts seen", 0, False),
    ("found", "p<0.01", 3, True),
    ("above", "TPR@1%", 3, True),
    ("control_above", "control TPR@1%", 3, True),
    ("genuine_above", "genuine TPR@1%", 3, True),
    ("human_found", "human p<0.01", 3, False),
    ("mean_z", "mean z", 2, False),
    ("perplexity", "PPL", 2, False),
    ("control_perplexity", "control PPL", 2, False),
    ("cosine", "cosine", 3, False),
    ("kept", "words kept", 3, False),
)


def quality_table(run: RunFiles) -> Table:
    """Perplexity, preference, diversity and length of each scheme's texts, and of unmarked ones."""
    others = (("distinct-1", 3), ("distinct-2", 3), ("distinct-3", 3), ("repetition", 3), ("tokens", 0))
    columns = [measure_column("perplexity"), Column("over unmarked (nats)", better="", sign=True)]
    columns.append(measure_column("nps"))
    columns += [Column(head, decimals=decimals, better="") for head, decimals in others]
    rows = []
    for scheme, quality in run.quality.items():
        measures = (run.preference.get(scheme), *quality.distinct, quality.repetition, quality.tokens)
        plain = quality.kind != "marked"
        name = f"{scheme} (no watermark)" if plain else scheme
        figures = (
            of_spread(quality.perplexity),
            of_interval(quality.over_unmarked),
            *map(of_spread, measures),
        )
        rows.append(Row(name, figures, baseline=plain))
    note = (
        "Median perplexity under the judge, other measures are means; mean ± half-range over seeds. Over "
        "unmarked: the logarithm of perplexity less that of the unmarked text with the same prompt and seed, "
        "mean over prompts with its 95% interval. A bias on likely tokens lowers perplexity: read it beside "
        "the share of distinct runs of words."
    )
    return _without_empty(Table("Text quality", tuple(columns), tuple(rows), (note,)))


def runtime_table(run: RunFiles) -> Table:
    """Seconds per text, and how many times those of no watermark."""
    plain = run.runtime.get(CLEAN)
    columns = (
        measure_column("generate"),
        Column("over no watermark", decimals=2, better="lower", sign=False),
        measure_column("detect"),
        Column("peak memory (MiB)", decimals=0, better=""),
    )
    rows = []
    for scheme, time in run.runtime.items():
        factor = None
        if plain and plain.generate and time.generate and scheme != CLEAN:
            factor = Figure(time.generate.mean / plain.generate.mean)
        peak = None if time.peak_mib is None else Figure(time.peak_mib)
        figures = (of_spread(time.generate), factor, of_spread(time.detect), peak)
        name = scheme if scheme != CLEAN else "(no watermark)"
        rows.append(Row(name, figures, baseline=scheme == CLEAN))
    devices = sorted({device for time in run.runtime.values() for device in time.devices})
    note = f"Seconds per text, mean ± half-range; {', '.join(devices) or 'device unknown'}."
    return _without_empty(Table("Seconds per text", columns, tuple(rows), (note,)))


def _without_empty(table: Table) -> Table:
    kept = [i for i in range(len(table.columns)) if any(row.figures[i] for row in table.rows)]
    return dataclasses.replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(
            dataclasses.replace(row, figures=tuple(row.figures[i] for i in kept)) for row in table.rows
        ),
    )


def stealing_table(run: RunFiles) -> Table:
    """What the victim's detector made of an attacker's texts."""
    columns = tuple(
        Column(head, decimals=decimals, better="", shade=shade) for _, head, decimals, shade in _STOLEN
    )
    rows = tuple(
        Row(label, tuple(of_spread(fields.get(name)) for name, *_ in _STOLEN))
        for label, fields in run.stealing.items()
    )
    note = (
        "The attacker's texts before the victim's detector: the share with p < 0.01, and the share above "
        "the z that 1% of human texts exceed. Control: the same writing without the stolen mark. Cosine: "
        "estimated against true token scores. For a spoof high shares are success, for a scrub low ones."
    )
    return _without_empty(Table("Stolen marks", columns, rows, (note,), corner="victim and attack"))
