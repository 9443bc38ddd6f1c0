"""The figures in the README are those of the files it names."""

from __future__ import annotations

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COLUMNS = ("unattacked", "delete-0.3", "round-trip-neural-pt", "translate-neural-pt")
CONSTANTS = {"1%", "30%", "95%"}
"""Levels and attack strengths: they belong to the protocol."""


def test_the_table_agrees_with_the_report() -> None:
    with (ROOT / "docs/results/main/table.csv").open(encoding="utf-8") as file:
        measured = {row["Watermark"]: row for row in csv.DictReader(file)}
    rows = re.findall(r"^\| .*\(`([\w.-]+)`\)\*{0,2} \| [^|]+ \|(.*)\|$", README, re.MULTILINE)
    assert len(rows) == 8
    for label, cells in rows:
        shown = [cell.strip(" *") for cell in cells.split("|")]
        assert shown == [f"{float(measured[label][f'{column} TPR@1%']):.3f}" for column in COLUMNS], label


def test_every_other_figure_is_in_a_file_that_its_paragraph_links() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    checked = 0
    for paragraph in prose.split("\n\n"):
        figures = (
            set(re.findall(r"(?<![\w.-])(?:\d+\.\d+%?|\d+%)", re.sub(r"p < \S+|`[^`]*`", "", paragraph)))
            - CONSTANTS
        )
        if not figures or paragraph.startswith("|"):
            continue
        files = re.findall(r"\((docs/[^)#]+)", paragraph)
        text = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
        missing = {figure for figure in figures if not _written(figure, text)}
        assert not missing, f"{missing} not in {files}: {paragraph[:80]}"
        checked += len(figures)
    assert checked > 10


def _written(figure: str, text: str) -> bool:
    """Whether a figure is in a text as it is, or a percentage as a share."""
    forms = [figure]
    if figure.endswith("%"):
        forms.append(f"{float(figure[:-1]) / 100:.3f}")
    return any(re.search(rf"(?<![\d.]){re.escape(form)}(?!\d)", text) for form in forms)
