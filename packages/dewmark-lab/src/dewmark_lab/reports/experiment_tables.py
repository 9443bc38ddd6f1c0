"""The tables of an experiment's report: marked texts found, AUROC, real false-positive rates, quality, time.

The paper's table of the same name decides which table opens the report: TPR by thresholds from the host's own
or from human texts, AUROC for the encoders, seconds for efficiency. `results_csv` has every number.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dewmark_audit.rates import Rate
from dewmark_lab.evaluation.quality import MEASURES
from dewmark_lab.evaluation.results import CLEAN, NEGATIVES, Evaluation, ResultCell
from dewmark_lab.reports.paper import PaperTable, measure_column
from dewmark_lab.reports.run_results import (
    SHIFTED,
    RunResults,
    attack_label,
    fewer_texts,
    is_truncation,
    rewriting_attacks,
)
from dewmark_lab.reports.tables import Column, Estimate, Table, TableRow, of_interval, of_rate, of_spread

_FEW, _SHIFT = "†", "!"  # flags in cells, explained in notes

_NEGATIVES = {
    "clean": "the host's own unmarked texts, unattacked (the paper's protocol)",
    "matched": "the host's own unmarked texts after the same attack",
    "human": "human texts, unattacked",
    "human-matched": "human texts after the same attack",
}

_STEALING = (  # field of stealing.jsonl, heading, decimals
    ("observed", "texts seen", 0),
    ("found", "p<0.01", 3),
    ("above", "TPR@1%", 3),
    ("control_above", "control TPR@1%", 3),
    ("genuine_above", "genuine TPR@1%", 3),
    ("attributable", "attributable", 3),
    ("genuine_attributable", "genuine attributable", 3),
    ("human_found", "human p<0.01", 3),
    ("mean_z", "mean z", 2),
    ("perplexity", "PPL", 2),
    ("control_perplexity", "control PPL", 2),
    ("cosine", "cosine", 3),
    ("kept", "words kept", 3),
)

_CSV_COLUMNS = (
    *("scheme", "attack", "judged_by", "rate", "texts", "found", "found_low", "found_high"),
    *("tpr", "tpr_half_range", "fpr", "fpr_low", "fpr_high", "shift_p"),
    *("auroc", "auroc_low", "auroc_high", "shift_sd", "words_kept", "tokens"),
)

Measure = Callable[[ResultCell], Estimate | None]
CsvRow = dict[str, object]


def report_tables(run: RunResults, paper: PaperTable | None) -> list[Table]:
    """The tables of a report, the one that answers its question first."""
    measures = {column.measure for column in paper.columns} if paper else {"tpr"}
    negatives = paper.negatives if paper else "clean"
    evaluated = _evaluation_tables(run, negatives, auroc_first="auroc" in measures)
    stolen = [_stealing_table(run)] if run.stealing else []
    times = [_runtime_table(run)] if run.runtime else []
    return (
        [*times, *evaluated] if "generate" in measures else [*evaluated[:1], *stolen, *evaluated[1:], *times]
    )


def _evaluation_tables(run: RunResults, preferred: str, *, auroc_first: bool) -> list[Table]:
    """The tables of scores, p-values and quality; those by the ``preferred`` negatives come first."""
    evaluation = run.evaluation
    tables: list[Table] = []
    if evaluation is not None and evaluation.cells:
        kinds = [null for null in NEGATIVES if any(cell.comparison(null) for cell in evaluation.cells)]
        if set(evaluation.attacks) <= {CLEAN}:  # then the matched negatives are the clean ones
            kinds = [null for null in kinds if not null.endswith("matched")]
        kinds.sort(key=lambda null: null != preferred)
        rates = [_tpr_table(run, evaluation, null, with_quality=null == kinds[0]) for null in kinds]
        areas = [_auroc_table(evaluation)] if kinds else []
        tables += [*areas, *rates] if auroc_first else [*rates, *areas]
        tables += [_real_fpr_table(evaluation), _p_value_table(evaluation)]
        tables += [_length_table(evaluation, null) for null in kinds[:1]]
    tables.append(_quality_table(run))
    return [table for table in tables if table.columns]


def _tpr_table(run: RunResults, evaluation: Evaluation, null: str, *, with_quality: bool) -> Table:
    """TPR at each rate under each attack, and optionally the quality of the marked texts."""
    columns, rows = _by_attack(evaluation, _tpr_measures(evaluation, null))
    if with_quality:
        columns, rows = _with_quality(run, columns, rows)
    seeds = {seed for cell in evaluation.cells for seed in cell.seeds}
    notes = [
        f"Mean ± half-range over seeds; thresholds from the other seeds: {_NEGATIVES[null]}."
        if len(seeds) > 1
        else f"One seed; thresholds from {_NEGATIVES[null]}."
    ]
    notes += fewer_texts(evaluation)
    if any(value and _FEW in value.flag for row in rows for value in row.values):
        notes.append(f"{_FEW} Fewer negatives than 1/rate: the threshold is simply their largest score.")
    return Table(f"Marked texts found: {_NEGATIVES[null]}", columns, rows, tuple(notes))


def _tpr_measures(evaluation: Evaluation, null: str) -> list[tuple[Column, Measure]]:
    return [(measure_column("tpr", rate), partial(_tpr, null=null, rate=rate)) for rate in evaluation.rates]


def _tpr(cell: ResultCell, *, null: str, rate: float) -> Estimate | None:
    at = cell.at(null, rate)
    return None if at is None else of_spread(at.tpr, _FEW if at.few else "")


def _length_table(evaluation: Evaluation, null: str) -> Table:
    note = f"Mean ± half-range over seeds; thresholds from {_NEGATIVES[null]}."
    truncations = [attack for attack in evaluation.attacks if is_truncation(attack)]
    columns, rows = _by_attack(evaluation, _tpr_measures(evaluation, null), truncations)
    return Table("Truncated texts", columns, rows, (note,))


def _auroc_table(evaluation: Evaluation) -> Table:
    measures = [
        (dataclasses.replace(measure_column("auroc"), head=head), partial(_auroc, null=null))
        for head, null in (("matched", "matched"), ("shifted", "clean"), ("human", "human"))
    ]
    note = (
        "Mean ± half-range over seeds. Matched: against unmarked texts after the same attack. Shifted: "
        "against unattacked ones. If shifted is clearly higher, the attack raises the score of every text."
    )
    return Table("AUROC", *_by_attack(evaluation, measures), notes=(note,))


def _auroc(cell: ResultCell, *, null: str) -> Estimate | None:
    comparison = cell.comparison(null)
    return None if comparison is None else of_spread(comparison.auroc)


def _real_fpr_table(evaluation: Evaluation) -> Table:
    """How many attacked unmarked texts pass the threshold that unattacked ones set."""
    measures: list[tuple[Column, Measure]] = [
        (Column(f"FPR@{100 * rate:g}%", better=""), partial(_real_fpr, rate=rate))
        for rate in evaluation.rates
    ]
    shift = Column("shift (SD)", decimals=2, better="", sign=True)
    measures.append((shift, lambda cell: None if cell.attack == CLEAN else _estimate(cell.shift)))
    measures.append((Column("words kept", decimals=2, better=""), lambda cell: _estimate(cell.kept)))
    note = (
        "The share of attacked unmarked texts above the threshold that unattacked ones set, with its exact "
        f"95% interval; {_SHIFT} = higher than for unattacked texts (Fisher's exact test, p < {SHIFTED:g}). "
        "Shift: how far the attack moves the mean score of unmarked texts, in standard deviations. Words "
        "kept: the share of marked texts' words that survive the attack, in any position."
    )
    return Table(
        "Real false-positive rates of unattacked thresholds", *_by_attack(evaluation, measures), notes=(note,)
    )


def _real_fpr(cell: ResultCell, *, rate: float) -> Estimate | None:
    at = cell.at("clean", rate)
    if at is None:
        return None
    return of_rate(at.attacked, _SHIFT if at.shift_p is not None and at.shift_p < SHIFTED else "")


def _estimate(value: float | None) -> Estimate | None:
    return None if value is None else Estimate(value)


def _p_value_table(evaluation: Evaluation) -> Table:
    levels = sorted({share.rate for cell in evaluation.cells for share in cell.shares})
    measures = [
        (
            Column(f"{kind} p<{rate:g}", better="higher" if kind == "found" else ""),
            partial(_below, rate=rate, kind=kind),
        )
        for rate in levels
        for kind in ("found", "unmarked", "human")
    ]
    note = (
        "The share of texts with a p-value below the level, without fitted thresholds. Unmarked and human "
        "texts went through the same attack; their share should equal the level. Exact 95% intervals."
    )
    return Table("By p-value alone", *_by_attack(evaluation, measures), notes=(note,))


def _below(cell: ResultCell, *, rate: float, kind: str) -> Estimate | None:
    share = cell.share(rate)
    return None if share is None else of_rate(getattr(share, kind))


def _by_attack(
    evaluation: Evaluation, measures: Sequence[tuple[Column, Measure]], attacks: Sequence[str] | None = None
) -> tuple[tuple[Column, ...], tuple[TableRow, ...]]:
    """One group of columns per attack (by default all but truncations), without columns that stay empty."""
    columns, filled = [], []
    for attack in rewriting_attacks(evaluation) if attacks is None else attacks:
        cells = [evaluation.cell(scheme, attack) for scheme in evaluation.schemes]
        for column, measure in measures:
            values = [None if cell is None else measure(cell) for cell in cells]
            if any(values):
                columns.append(dataclasses.replace(column, group=attack_label(attack)))
                filled.append(values)
    schemes = enumerate(evaluation.schemes)
    rows = (TableRow(scheme, tuple(values[i] for values in filled)) for i, scheme in schemes)
    return tuple(columns), tuple(rows)


def _with_quality(
    run: RunResults, columns: tuple[Column, ...], rows: tuple[TableRow, ...]
) -> tuple[tuple[Column, ...], tuple[TableRow, ...]]:
    """Append perplexity and net preference, if measured."""
    perplexities = [each.perplexity if (each := run.quality.get(row.label)) else None for row in rows]
    preferences = [run.preference.get(row.label) for row in rows]
    for measure, values in (("perplexity", perplexities), ("nps", preferences)):
        if any(values):
            columns = (*columns, measure_column(measure, group="text quality"))
            rows = tuple(
                dataclasses.replace(row, values=(*row.values, of_spread(value)))
                for row, value in zip(rows, values, strict=True)
            )
    return columns, rows


def _quality_table(run: RunResults) -> Table:
    """Perplexity, preference, diversity and length of each scheme's texts and of unmarked ones."""
    columns = [measure_column("perplexity"), Column("over unmarked (nats)", better="", sign=True)]
    heads = [name.replace("_", " ") for name in MEASURES]
    columns += [Column(f"Δ {head}", better="", sign=True) for head in heads]  # from the unmarked texts
    columns.append(measure_column("nps"))
    columns += [*(Column(head, better="") for head in heads), Column("tokens", decimals=0, better="")]
    rows = []
    for scheme, quality in run.quality.items():
        plain = quality.kind != "marked"
        name = f"{scheme} (no watermark)" if plain else scheme
        values = (
            of_spread(quality.perplexity),
            of_interval(quality.over_unmarked),
            *(of_interval(quality.paired.get(name)) for name in MEASURES),
            of_spread(run.preference.get(scheme)),
            *map(of_spread, quality.means.values()),
        )
        rows.append(TableRow(name, values, baseline=plain))
    note = (
        "Median perplexity under the judge, means of the other measures; mean ± half-range over seeds. Over "
        "unmarked: log-perplexity minus that of the unmarked text with the same prompt and seed, mean over "
        "prompts with its 95% interval. A bias towards likely tokens lowers perplexity: read it together "
        "with the differences in wording, from the same unmarked texts: the share of distinct content words, "
        "of words outside a public list, and of 4-grams that repeat an earlier one."
    )
    return _without_empty(Table("Text quality", tuple(columns), tuple(rows), (note,)))


def _runtime_table(run: RunResults) -> Table:
    """Seconds per text, and their ratio to generation without a watermark."""
    plain = run.runtime.get(CLEAN)
    columns = (
        measure_column("generate"),
        Column("ratio to no watermark", decimals=2, better="lower"),
        measure_column("detect"),
        Column("peak memory (MiB)", decimals=0, better=""),
    )
    rows = []
    for scheme, time in run.runtime.items():
        ratio = None
        if plain and plain.generate and time.generate and scheme != CLEAN:
            ratio = Estimate(time.generate.mean / plain.generate.mean)
        values = (of_spread(time.generate), ratio, of_spread(time.detect), _estimate(time.peak_mib))
        name = scheme if scheme != CLEAN else "(no watermark)"
        rows.append(TableRow(name, values, baseline=scheme == CLEAN))
    devices = sorted({device for time in run.runtime.values() for device in time.devices})
    note = f"Seconds per text, mean ± half-range; {', '.join(devices) or 'device unknown'}."
    return _without_empty(Table("Seconds per text", columns, tuple(rows), (note,)))


def _without_empty(table: Table) -> Table:
    kept = [i for i in range(len(table.columns)) if any(row.values[i] for row in table.rows)]
    return dataclasses.replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(dataclasses.replace(row, values=tuple(row.values[i] for i in kept)) for row in table.rows),
    )


def _stealing_table(run: RunResults) -> Table:
    """How the victim's detector judges an attacker's texts."""
    columns = tuple(Column(head, decimals=decimals, better="") for _, head, decimals in _STEALING)
    rows = tuple(
        TableRow(label, tuple(of_spread(fields.get(name)) for name, *_ in _STEALING))
        for label, fields in run.stealing.items()
    )
    note = (
        "The attacker's texts under the victim's detector: the share with p < 0.01, and the share above the "
        "z that 1% of human texts exceed. Control: the same procedure without the stolen mark. Cosine: "
        "estimated against true token scores. High shares mean success for a spoof, low ones for a scrub."
    )
    return _without_empty(Table("Stolen marks", columns, rows, (note,), corner="victim and attack"))


def results_csv(evaluation: Evaluation) -> str:
    """Every number of an evaluation, a line per scheme, attack, kind of negatives and nominal rate.

    ``judged_by`` is a kind of negatives, or ``p-value``; ``fpr`` counts negatives after the same attack.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for cell in evaluation.cells:
        for row in _csv_rows(cell):
            writer.writerow({name: _csv_value(value) for name, value in row.items()})
    return stream.getvalue()


def _csv_value(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def _csv_rows(cell: ResultCell) -> Iterator[CsvRow]:
    about: CsvRow = {
        "scheme": cell.scheme,
        "attack": cell.attack,
        "texts": cell.texts,
        "shift_sd": cell.shift,
        "words_kept": cell.kept,
        "tokens": cell.tokens,
    }
    for against in cell.against:
        area: CsvRow = {
            "judged_by": against.negatives,
            "auroc": against.auroc.mean,
            "auroc_low": against.interval.low,
            "auroc_high": against.interval.high,
        }
        for at in against.at:
            spread = {"tpr": at.tpr.mean, "tpr_half_range": at.tpr.half_range, "shift_p": at.shift_p}
            yield {
                **about,
                **area,
                "rate": at.rate,
                **spread,
                **_rate("found", at.found),
                **_rate("fpr", at.attacked or at.passed),
            }
    for share in cell.shares:
        false = share.unmarked or share.human
        rates = _rate("found", share.found) | ({} if false is None else _rate("fpr", false))
        yield {**about, "judged_by": "p-value", "rate": share.rate, **rates}


def _rate(name: str, rate: Rate) -> CsvRow:
    return {name: rate.rate, f"{name}_low": rate.low, f"{name}_high": rate.high}
