"""The figures of docs/results/README.md and of the false alarms are those of the files that they link."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "results"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
REPORTS = "\n".join(file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*/report.md")))
ROWS = {
    "DEW, this library's default (words)": ["dew-default"],
    "DEW on tokens, keyed sampling": ["dew-tokens"],
    "DEW on tokens, composed white contexts, bias λ 2.5": ["dew-white-2.5"],
    "DEW as published (tokens, raw windows, bias), the paper's z-test, λ 2.0": ["dew-paper-2.0"],
    "the same, λ 2.5": ["dew-paper-2.5"],
    "the same texts under the key test, λ 2.0 / 2.5": ["dew-paper-2.0-key", "dew-paper-2.5-key"],
    "KGW": ["kgw"],
    "SynthID": ["synthid"],
    "EXP": ["exp"],
    "UnbiasedWM": ["unbiased"],
    "Unigram": ["unigram"],
    "SIR": ["sir"],
    "X-SIR": ["xsir"],
    "TS": ["ts"],
    "ATW (δ 0.2)": ["atw"],
    "SimKey": ["simkey"],
    "WaterPool": ["waterpool"],
}
COLUMNS = ("unattacked", "delete-0.3", "round-trip-neural-pt", "translate-neural-pt")


def test_headline_rows_are_those_of_the_main_table() -> None:
    with (FOLDER / "main" / "table.csv").open(encoding="utf-8", newline="") as stream:
        table = {row["Watermark"]: row for row in csv.DictReader(stream)}
    lines = PAGE.split("## Headline")[1].split("| no mark |")[1].split("\n\n")[0].splitlines()[1:]
    assert len(lines) == len(ROWS)
    for line in lines:
        label, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for cell, column in zip(cells, COLUMNS, strict=False):
            shown = re.sub(r"\(.*?\)|\*", "", cell).split("/")
            expected = [f"{float(table[scheme][f'{column} TPR@1%']):.3f}" for scheme in ROWS[label]]
            assert [each.strip() for each in shown] == expected, (label, column)


def test_false_alarms_are_those_of_their_file() -> None:
    page = (FOLDER / "false-alarms.md").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for line in (FOLDER / "false-alarms.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        shown = f"{100 * row['share']:.2f}% ({100 * row['worst']:.1f}%)"
        found.setdefault(row["scheme"], {})[row["text"]] = shown
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert {scheme: {"en": english, "de": german} for scheme, english, german in rows} == found


@pytest.mark.parametrize("paragraph", PAGE.split("\n\n"), ids=lambda text: text[:30])
def test_every_figure_of_three_decimals_is_in_a_report_or_the_paper(paragraph: str) -> None:
    missing = {
        figure for figure in re.findall(r"(?<![\d.])[01]\.\d{3}(?!\d)", paragraph) if figure not in REPORTS
    }
    assert not missing
