"""The figures in the README are those of the files it names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ROWS = {
    "**DEW, the default**": ("dew", {}, "packaged"),
    "**DEW, the model itself reads**": ("dew", {}, "host"),
    "**DEW, it also knows the prompt**": ("dew", {}, "host+prompt"),
    "**DEW, four drafts**": ("dew", {"drafts": 4.0}, "packaged"),
    "EXP": ("exp", {}, "own"),
    "SynthID": ("synthid", {}, "own"),
}
CONSTANTS = {"1%", "30%", "95%", "3.11"}
"""Levels and attack strengths: they belong to the protocol."""


def test_the_table_agrees_with_the_report() -> None:
    report = json.loads((ROOT / "docs/results/form.json").read_text(encoding="utf-8"))
    for label, which in ROWS.items():
        (cells,) = re.findall(rf"^\| {re.escape(label)} \|(.*)\|$", README, re.MULTILINE)
        shown = [numbers(cell.strip()) for cell in cells.split("|")]
        for cell, figures in zip(shown, cells_of(report, *which), strict=True):
            assert cell == pytest.approx(figures, abs=6e-4)


def numbers(cell: str) -> list[float]:
    """The numbers of a cell."""
    return [float(each.replace("−", "-")) for each in cell.split(" / ") if each]


def cells_of(
    report: list[dict[str, Any]], scheme: str, settings: dict[str, float], reader: str
) -> list[list[float]]:
    """What the cells of a row must show; nothing where it was not measured."""

    def row(setting: str, kind: str) -> dict[str, Any]:
        for each in report:
            same = (each["setting"], each["scheme"], each["settings"]) == (setting, scheme, settings)
            if same and kind in each and each.get("reader", reader) == reader:
                return each
        return {}

    def both(shares: dict[str, float]) -> list[float]:
        return [shares[level] for level in ("p<0.01", "p<0.0001") if shares]

    chat, price = row("chat", "found"), row("chat", "nats at temperature 1")
    deleted = chat.get("deleted", {})
    return [
        both(chat["found"]),
        both(deleted.get("0.1", {})),
        both(deleted.get("0.3", {})),
        [price["nats at temperature 1"]["mean"]],
        [price["excess over entropy"]["mean"]],
        both(row("openings", "found").get("found", {})),
    ]


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
