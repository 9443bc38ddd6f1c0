"""The tables of a report that are not about attacks on texts: quality, run time, stolen marks."""

from __future__ import annotations

import dataclasses

from dewmark.evaluation.scores import CLEAN
from dewmark.reports.columns import measure_column, of_interval, of_spread
from dewmark.reports.run_files import RunFiles
from dewmark.reports.tables import Column, Figure, Row, Table

__all__ = ["quality_table", "runtime_table", "stealing_table"]

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
