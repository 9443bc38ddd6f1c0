"""A table in Markdown: rounded numbers, the best in bold, and nothing that breaks the format."""

from __future__ import annotations

import re

from dewmark_lab.reports.tables import Column, Estimate, Table, TableRow, to_markdown

TABLE = Table(
    title="Found",
    columns=(
        Column("TPR@1%", "none"),
        Column("FPR@1%", "none", better=""),
        Column("PPL", "quality", decimals=2, better="lower"),
        Column("NPS", "quality", sign=True),
    ),
    rows=(
        TableRow(
            "DEW (λ = 2.0)",
            (Estimate(0.9861, 0.008), Estimate(0.02, low=0.01, high=0.04, flag="!"), None, Estimate(0.1)),
        ),
        TableRow("K|G_W & <co>", (Estimate(0.9862, 0.001), None, Estimate(8.5, 0.1), Estimate(-0.05))),
        TableRow("SIR", (Estimate(0.5), None, Estimate(9.0), None)),
    ),
    notes=("100% of it & more.",),
)


def test_the_best_is_chosen_after_rounding_and_only_in_ordered_columns() -> None:
    assert TABLE.best(0) == {0, 1}  # both read 0.986
    assert TABLE.best(1) == frozenset()
    assert TABLE.best(2) == {1}
    assert TABLE.best(3) == {0}


def test_markdown() -> None:
    lines = to_markdown(TABLE).splitlines()
    assert lines[2] == "| Watermark | none: TPR@1% | none: FPR@1% | quality: PPL | quality: NPS |"
    assert lines[4] == "| DEW (λ = 2.0) | **0.986** ±0.008 | 0.020! [0.010, 0.040] | – | **+0.100** |"
    assert lines[5].startswith("| K\\|G_W & <co> | ")
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 6 for line in lines[2:7])
