"""One table in four formats: the same numbers, and nothing that breaks the format."""

from __future__ import annotations

import csv
import io
import re

import pytest

from dewmark_lab.reports.tables import (
    Column,
    Estimate,
    Table,
    TableRow,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
)

TABLE = Table(
    title="Found",
    columns=(
        Column("TPR@1%", "none", shade=True),
        Column("FPR@1%", "none", better=""),
        Column("PPL", "quality", decimals=2, better="lower"),
        Column("NPS", "quality", sign=True),
    ),
    rows=(
        TableRow(
            "DEW (λ = 2.0)",
            (Estimate(0.9861, 0.008), Estimate(0.02, low=0.01, high=0.04, flag="!"), None, Estimate(0.1)),
            "semantic",
        ),
        TableRow(
            "K|G_W & <co>", (Estimate(0.9862, 0.001), None, Estimate(8.5, 0.1), Estimate(-0.05)), "surface"
        ),
        TableRow("SIR", (Estimate(0.5), None, Estimate(9.0), None), "surface"),
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


def test_latex_is_well_formed() -> None:
    text = to_latex(TABLE)
    body = text[text.index("\\toprule") : text.index("\\bottomrule")]
    for line in body.splitlines():
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert len(re.findall(r"(?<!\\)&", line)) == len(TABLE.columns)
    assert r"K|G\_W \& $<$co$>$" in text
    assert r"\multicolumn{2}{c}{quality}" in text
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in text
    assert r"\multicolumn{5}{@{}l}{\textit{surface}}" in text
    assert text.count(r"\textit{surface}") == 1
    assert r"\textbf{0.986}\,{\scriptsize $\pm$0.008}" in text
    assert text.count("{") == text.count("}")
    assert "λ" not in text


def test_csv_keeps_full_precision() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert [row["Watermark"] for row in rows] == [row.label for row in TABLE.rows]
    assert float(rows[0]["none TPR@1%"]) == 0.9861
    assert float(rows[0]["none TPR@1% half-range"]) == 0.008
    assert (rows[0]["none FPR@1% low"], rows[0]["none FPR@1% high"]) == ("0.01", "0.04")
    assert rows[2]["quality NPS"] == ""
    assert "quality NPS low" not in rows[0]


def test_html_escapes_and_shades() -> None:
    page = to_html(TABLE)
    assert "K|G_W &amp; &lt;co&gt;" in page
    assert "<co>" not in page
    assert page.count("rgba(") == 3  # the one shaded column
    assert page.count("<b>") == 4
    assert page.count("<td") - page.count("<td></td>") == len(TABLE.rows) * len(TABLE.columns)


@pytest.mark.parametrize("to_format", [to_markdown, to_latex, to_csv, to_html])
def test_a_table_without_rows(to_format) -> None:
    assert "Watermark" in to_format(Table("Empty", (Column("TPR@1%"),), ()))
