"""The figures in the README are those of the files it names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMOLLM2, QWEN = "smollm2-135m", "qwen2.5-coder-1.5b"
COLUMNS = (
    (SMOLLM2, "chat", "found"),
    (SMOLLM2, "chat", "price"),
    (QWEN, "chat", "found"),
    (QWEN, "chat", "price"),
    (SMOLLM2, "openings", "found"),
    (SMOLLM2, "openings", "French by OPUS-MT"),
    (SMOLLM2, "openings", "French by OPUS-MT, translated back"),
    (SMOLLM2, "openings", "price"),
)
ROWS = {
    "**DEW, the default**": ("dew", {}),
    "**DEW, four drafts**": ("dew", {"drafts": 4}),
    "**DEW, strength 2**": ("dew", {"strength": 2}),
    "EXP": ("exp", {}),
    "SynthID": ("synthid", {}),
    "KGW, δ 1": ("kgw", {"delta": 1}),
    "KGW, δ 2": ("kgw", {"delta": 2}),
}
CONSTANTS = {"1%", "30%", "95%", "3.11"}
"""Levels and attack strengths: they belong to the protocol."""


def test_the_table_agrees_with_the_report() -> None:
    report = json.loads((ROOT / "docs/results/price.json").read_text(encoding="utf-8"))["rows"]
    for label, which in ROWS.items():
        (cells,) = re.findall(rf"^\| {re.escape(label)} \|(.*)\|$", README, re.MULTILINE)
        shown = [cell.strip() for cell in cells.split("|")]
        for cell, column in zip(shown, COLUMNS, strict=True):
            assert numbers(cell) == pytest.approx(
                figures(report, which, column), abs=0.0051 if "price" in column else 6e-4
            )


def numbers(cell: str) -> list[float]:
    """The numbers of a cell."""
    return [float(each.replace("−", "-")) for each in cell.split(" / ") if each]


def figures(
    report: list[dict[str, Any]], which: tuple[str, dict[str, float]], column: tuple[str, str, str]
) -> list[float]:
    """What a cell of the README's table must show: means over keys; nothing if it was not measured."""
    host, setting, kind = column
    treatment = "none" if kind in ("found", "price") else kind
    wanted = (*which, host, setting, treatment, 200)
    names = ("scheme", "settings", "host", "setting", "treatment", "tokens")
    rows = [row for row in report if tuple(row[name] for name in names) == wanted]
    if not rows:
        return []
    if kind == "price":
        return [fmean(row["price"] for row in rows)]
    tests = [row["found"].get("packaged reader") or row["found"]["its own test"] for row in rows]
    return [fmean(each[level] for each in tests) for level in ("p<0.01", "p<0.0001")]


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
    assert checked >= 3


def _written(figure: str, text: str) -> bool:
    """Whether a figure is in a text as it is, or a percentage as a share."""
    forms = [figure]
    if figure.endswith("%"):
        forms.append(f"{float(figure[:-1]) / 100:.3f}")
    return any(re.search(rf"(?<![\d.]){re.escape(form)}(?!\d)", text) for form in forms)


def test_it_is_short() -> None:
    prose = re.sub(r"\]\([^)]*\)", "]", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    assert len(re.findall(r"[A-Za-z0-9][\w'./%<⁻⁴-]*", prose)) <= 700
