"""The figures in the README are those of the files it names."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PRICE = "price"
COLUMNS = (
    ("chat", "none"),
    ("chat", "round-trip"),
    ("chat", PRICE),
    ("openings", "none"),
    ("openings", "translate"),
    ("openings", PRICE),
)
ROWS = {
    "**DEW, strength 2, read by its host**": ("dew", "host with prompt"),
    "**DEW, strength 2, no reader**": ("dew", "none"),
    "EXP": ("exp", "none"),
    "SynthID": ("synthid", "none"),
    "KGW": ("kgw", "none"),
}
CONSTANTS = {"1%", "30%", "95%", "3.11"}
"""Levels and attack strengths: they belong to the protocol."""


def test_the_table_agrees_with_the_report() -> None:
    found = json.loads((ROOT / "docs/results/chat-settings.json").read_text(encoding="utf-8"))
    shares = {
        (row["scheme"], row["reader"], row["setting"], row["attack"]): (
            f"{row['p<0.01']:.3f} / {row['p<0.0001']:.3f}"
        )
        for row in found
        if row["kind"] == "found" and row["marked"] and row["host"] == "smollm2-135m" and row["tokens"] == 200
    }
    prices = {
        (row["scheme"], row["setting"]): f"{row['nats']:+.2f}"
        for row in found
        if row["kind"] == "likelihood" and row["host"] == "smollm2-135m" and row["tokens"] == 200
    }
    for label, which in ROWS.items():
        (cells,) = re.findall(rf"^\| {re.escape(label)} \|(.*)\|$", README, re.MULTILINE)
        shown = [cell.strip() for cell in cells.split("|")]
        assert len(shown) == len(COLUMNS)
        for cell, column in zip(shown, COLUMNS, strict=True):
            setting, attack = column
            wanted = prices[which[0], setting] if attack == PRICE else shares.get((*which, *column))
            assert cell in ("", wanted), (label, column)
        assert shown[0], label


def test_the_speed_tables_agree_with_the_report() -> None:
    script = runpy.run_path(str(ROOT / "packages/dewmark-lab/benchmarks/speed_table.py"))
    report = json.loads((ROOT / "docs/results/default-speed.json").read_text(encoding="utf-8"))
    for name, block in script["speed_pages"](report).items():
        page = (ROOT / name).read_text(encoding="utf-8")
        assert script["replace_block"](page, "speed", block) == page, (
            "run: python packages/dewmark-lab/benchmarks/speed_table.py"
        )
        assert "| **DEW, the default** |" in block, name


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
