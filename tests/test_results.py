"""The figures of the pages of results are those of the files that they link."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import dewmark
from dewmark.config import config_hash
from dewmark.dew.scheme import BoundDEW

FOLDER = Path(__file__).parent.parent / "docs" / "results"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
REPORTS = "\n".join(file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*/report.md")))
CAUSES = {
    f"{abs(value):.3f}"
    for line in (FOLDER / "main" / "causes.jsonl").read_text(encoding="utf-8").splitlines()
    for value in json.loads(line).values()
    if isinstance(value, float)
}
REAL = {
    f"{value:.3f}"
    for row in json.loads((FOLDER / "real-models.json").read_text(encoding="utf-8"))
    for value in row.values()
    if isinstance(value, float)
}
COLUMNS = ("unattacked", "delete-0.3", "delete-0.5", "round-trip-neural-pt", "translate-neural-pt")
ROWS = {
    "DEW as published, λ 2.0, the paper's score": "dew-paper-2.0",
    "the same texts, key test": "dew-paper-2.0-key",
    "DEW as published, λ 2.5, the paper's score": "dew-paper-2.5",
    "the same texts, λ 2.5, key test": "dew-paper-2.5-key",
    "k-SemStamp": "ksemstamp",
    "SemStamp": "semstamp",
    "WaterPool": "waterpool",
    "the same texts, our test": "xsir-exact",
    "the same texts of SIR, our test": "sir-exact",
    "SIR": "sir",
    "X-SIR": "xsir",
    "ATW": "atw",
    "TS": "ts",
    "MorphMark": "morphmark",
    "KGW": "kgw",
    "SynthID": "synthid",
    "DiPmark": "dipmark",
    "UnbiasedWM": "unbiased",
    "EXP": "exp",
    "PASA": "pasa",
    "SimKey": "simkey",
}


@pytest.mark.parametrize(
    ("heading", "folder", "rows"),
    [("Table 1", "main", 18), ("Top-k 50", "top-k-50", 4), ("A multilingual host", "multilingual-host", 9)],
)
def test_the_rows_of_a_section_are_those_of_its_table(heading: str, folder: str, rows: int) -> None:
    table = {}
    for each in (folder, *(["ksemstamp"] if folder == "main" else [])):
        with (FOLDER / each / "table.csv").open(encoding="utf-8", newline="") as stream:
            table |= {row["Watermark"]: row for row in csv.DictReader(stream)}
    lines = PAGE.split(f"## {heading}")[1].split("| --- |\n")[1].split("\n\n")[0].splitlines()
    lines = [line for line in lines if not line.startswith("| no mark |")]
    assert len(lines) >= rows
    for line in lines:
        label, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        row = table[ROWS[label]]
        assert cells[: len(COLUMNS)] == [f"{float(row[f'{column} TPR@1%']):.3f}" for column in COLUMNS], label


def test_false_alarms_are_those_of_their_file() -> None:
    page = (FOLDER / "false-alarms.md").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for line in (FOLDER / "false-alarms.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "keys" not in row:  # 24
            shown = f"{100 * row['share']:.2f}% ({100 * row['worst']:.1f}%)"
            found.setdefault(row["scheme"], {})[row["text"]] = shown
        if "expected" in row:
            figures = f"{100 * row['expected']:.2f}% | {100 * row['share']:.2f} ± {100 * row['error']:.2f}%"
            assert f" | {figures} | {row['pairs']} |" in page
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert {scheme: {"en": english, "de": german} for scheme, english, german in rows} == found


def test_figures_of_which_scheme_are_those_of_its_files() -> None:
    page = (FOLDER.parent / "which-scheme.md").read_text(encoding="utf-8")
    rows = json.loads((FOLDER / "real-models.json").read_text("utf-8"))
    real = [value for row in rows for value in row.values() if isinstance(value, float)]
    known: list[float] = []
    for folder in ("main", "multilingual-host"):
        with (FOLDER / folder / "table.csv").open(encoding="utf-8", newline="") as stream:
            table = [value for row in csv.DictReader(stream) for value in row.values()]
        known += [float(value) for value in table if re.fullmatch(r"[\d.]+", value)]
    for name in ("price.md", "form.md"):
        known += [float(value) for value in re.findall(r"\d\.\d{3}", (FOLDER / name).read_text("utf-8"))]
    number = 0
    for block in page.split("\n\n"):
        heading, *lines = block.splitlines() or [""]
        for line in (heading, *lines):
            values = real if "real-models.md" in line or "real-models.md" in heading else known
            shares = {f"{100 * value:.1f}%" for value in values} | {f"{abs(value):.3f}" for value in values}
            shown = set(re.findall(r"\d+\.\d%|\d\.\d{3}", line))
            number += len(shown)
            assert not shown - shares
    assert number > 15


def test_forgeries_and_genuine_texts_are_those_of_their_files() -> None:
    page = (FOLDER.parent / "security.md").read_text(encoding="utf-8")
    forged, genuine = (
        json.loads((FOLDER / "stealing" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("forged", "genuine")
    )
    table = page.split("## Forgeries of a real host")[1].split("| --- |\n")[1].split("\n\n")[0]
    shown = [line.strip("| ").split(" | ")[-3:] for line in table.splitlines()]
    assert shown == [
        [seen, f"{row['z']:.1f}", f"{row['marked']['1']:.3f}"]
        for setting in ("openings", "chat")
        for seen, row in forged[setting]["forged"].items()
    ]
    rows = {
        (row["texts"].replace("-full", "") + (", read" if row["reader"] else ""), row["attack"]): row
        for row in genuine
        if row["kind"] != "ring"
    }
    table = page.split("## Genuine texts")[1].split("| --- |\n")[1].split("\n\n")[0]
    attacks = {"none": "none", "round trip": "round-trip", "to Portuguese": "translate"}
    for line in table.splitlines():
        label, attack, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        row = rows.pop((label, attacks[attack]))
        figures = [row["found"][ring] for ring in ("1", "16384")]
        figures += [row.get(f"read {bits} bits") for bits in (4, 8, 16)]
        assert cells == [f"{row['z']:.1f}"] + ["" if each is None else f"{each:.3f}" for each in figures]
    assert {attack for _, attack in rows} <= {"translate"}


@pytest.mark.parametrize("paragraph", PAGE.split("\n\n"), ids=lambda text: text[:30])
def test_every_figure_of_three_decimals_is_in_a_report_or_the_paper(paragraph: str) -> None:
    missing = {
        figure
        for figure in re.findall(r"(?<![\d.])[01]\.\d{3}(?!\d)", paragraph)
        if figure not in REPORTS and figure not in CAUSES | (REAL if "real-models.md" in paragraph else set())
    }
    assert not missing


def table_rows(page: str, first: str) -> list[list[str]]:
    """The cells of the table whose heading begins with ``first``."""
    body = page.split(f"\n| {first}")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("*") for cell in line.strip("|").split("|")] for line in body]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda file: file.name)
def test_a_file_was_made_with_the_configuration_that_its_page_claims(file: Path) -> None:
    """The rates of one key are those of detection as it is shipped, with the packaged reader."""
    data = json.loads(file.read_text(encoding="utf-8"))
    page = file.with_suffix(".md")
    if not isinstance(data, dict) or "configuration" not in data:
        assert not page.exists() or "configuration `" not in page.read_text(encoding="utf-8")
        return
    assert f"configuration `{data['configuration']}`" in page.read_text(encoding="utf-8")
    bound = dewmark.load_scheme(dewmark.Key(bytes(32)))
    settings = bound.scheme.to_dict()
    parts: list[object] = [{name: settings[name] for name in ("flatten", "k", "lexicon")}]
    if file.name == "one-key.json":
        assert isinstance(bound, BoundDEW)
        parts.append(bound.reader.packaged.identity)
    assert data["configuration"] == config_hash(*parts)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The numbers within a row, each under the names that lead to it."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield from leaves(inside, f"{name}/{key}")
    elif isinstance(value, (int, float)):
        yield name, float(value)


def test_what_the_default_costs_and_finds_is_what_its_file_says() -> None:
    """Every figure of three decimals is a mean over keys, over the first three of them, or of one key."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in json.loads((FOLDER / "price.json").read_text(encoding="utf-8"))["rows"]:
        cell = tuple(
            str(row[name]) for name in ("host", "setting", "treatment", "scheme", "settings", "tokens")
        )
        for name, value in leaves(row):
            groups.setdefault((*cell, name), []).append(value)
    known = {value for values in groups.values() for value in values}
    known |= {fmean(some) for values in groups.values() for some in (values, values[:3])}
    wide = [values for cell, values in groups.items() if cell[-1] == "/price"]
    errors = [values for cell, values in groups.items() if cell[-1] == "/price, standard error"]
    known |= {
        1.96 * max(stdev(some) if len(some) > 1 else 0.0, fmean(error)) / len(some) ** 0.5
        for some, error in zip(wide, errors, strict=True)
    }
    known |= {abs(some[0] - some[1]) for some in wide if len(some) == 2}
    page = (FOLDER / "price.md").read_text(encoding="utf-8").replace("−", "-")
    shown = [float(each) for each in re.findall(r"-?\d\.\d{3}(?!\d)", page)]
    assert len(shown) > 200
    assert [each for each in shown if not any(abs(each - value) < 6e-4 for value in known)] == []


def test_what_meaning_and_form_cost_and_find_is_what_their_file_says() -> None:
    rows = json.loads((FOLDER / "form.json").read_text(encoding="utf-8"))
    known = {abs(value) for row in rows for _, value in leaves(row)}
    sets = [row["nats at temperature 1"].get("sets", ()) for row in rows if row["scheme"] == "unmarked"]
    known |= {abs(pair[0] - pair[1]) for pair in sets if len(pair) == 2}
    excess = {
        row["scheme"]: row["excess over entropy"]["mean"]
        for row in rows
        if row["setting"] == "chat" and "tokens" in row and not row["settings"]
    }
    known.add(abs(excess["dew"] + excess["unmarked"]))
    page = (FOLDER / "form.md").read_text(encoding="utf-8")
    shown = [float(each) for each in re.findall(r"\d\.\d{3}(?!\d)", page)]
    assert len(shown) > 80
    assert [each for each in shown if not any(abs(each - value) < 6e-4 for value in known)] == []


def test_the_rates_of_one_key_are_those_of_their_file() -> None:
    page = (FOLDER / "one-key.md").read_text(encoding="utf-8")
    data = json.loads((FOLDER / "one-key.json").read_text(encoding="utf-8"))
    figures = {
        (
            str(row["texts"]),
            f"{row['words']:,}",
            *(f"{row[name]:.3f}" for name in ("r", "matched")),
            f"{100 * row['rate']:.2f}%",
            f"{100 * row['rate_99']:.1f}%",
            f"{100 * row['predicted_1']:.1f} to {100 * row['predicted_99']:.1f}%",
            f"{100 * row['worst']:.1f}%",
            f"{row['r_bare']:.3f}",
        )
        for row in data["rows"]
    }
    shown = table_rows(page, "kind of text | texts")
    assert len(shown) > 30
    assert {tuple(cells[1:]) for cells in shown} <= figures
    assert f"{data['texts']:,} texts of\n{len(data['rows'])} kinds" in page
    for level, share in data["levels"].items():
        assert f"| {100 * float(level):g}% | {100 * share:.4f}% |" in page


def test_other_pages_quote_the_rates_of_one_key_as_they_are() -> None:
    data = json.loads((FOLDER / "one-key.json").read_text(encoding="utf-8"))
    rows = {
        (
            f"{row['words']:,}",
            f"{row['r']:.3f}",
            f"{row['matched']:.3f}",
            f"{100 * row['rate']:.2f}%",
            f"{100 * row['predicted_99']:.1f}%",
        )
        for row in data["rows"]
    }
    statistics = (FOLDER.parent / "statistics.md").read_text(encoding="utf-8")
    assert {tuple(cells[1:]) for cells in table_rows(statistics, "kind of text | words")} <= rows
    limits = (FOLDER.parent / "limits.md").read_text(encoding="utf-8")
    shown = {tuple(cells[1:]) for cells in table_rows(limits, "kind of text | r that")}
    assert shown <= {(row[2], row[4]) for row in rows}


def test_what_follows_from_the_papers_tables_is_computed_from_them() -> None:
    page = (FOLDER / "paper-translation.md").read_text(encoding="utf-8")
    thresholds = -ndtri([0.01, 0.05])
    unmarked = {}
    for lambda_, language, auroc, d, *cells in table_rows(page, "λ"):
        separation = np.sqrt(2.0) * ndtri(float(auroc))
        found = np.array([float(cells[1]), float(cells[3])])
        assert d == f"{separation:.2f}"
        assert [cells[0], cells[2]] == [f"{share:.3f}" for share in ndtr(separation - thresholds)]
        spread = (thresholds[0] - thresholds[1]) / (ndtri(found[1]) - ndtri(found[0]))
        offset = thresholds[0] + spread * (ndtri(found[0]) - separation)
        unmarked[language, lambda_] = f"{offset:+.2f}", f"{spread:.2f}"
        if language != "paraphrase" and lambda_ == "2.0":
            assert f"{ndtr(ndtri(found[0]) - separation):.3f}" in page
            assert f"{ndtr(ndtri(found[1]) - separation):.3f}" in page
            assert f"{1.0 + found[1] - 2.0 * float(auroc):.3f}" in page
        if language == "German":
            assert f"{1.0 - float(auroc) / found[1]:.3f}" in page
    for language, *cells in table_rows(page, "unmarked translations"):
        weak, strong = unmarked[language, "2.0"], unmarked[language, "2.5"]
        assert cells == [weak[0], strong[0], weak[1], strong[1]]


def test_the_shares_of_keys_are_those_of_their_file() -> None:
    page = (FOLDER / "paper-translation.md").read_text(encoding="utf-8")
    data = json.loads((FOLDER / "paper-translation.json").read_text(encoding="utf-8"))
    names = {"German": ("de", 1.81, 0.438, 0.857), "French": ("fr", 1.45, 0.243, 0.691)}
    rows = {
        (table["label"], name): table["languages"][code[0]] for table in data for name, code in names.items()
    }
    tables = (
        table_rows(page, "tokens, contexts | translation | sd"),
        table_rows(page, "tokens, contexts | translation | English"),
    )
    for unmarked, marked in zip(*tables, strict=True):
        label, language = unmarked[:2]
        row, (_, offset, one, five) = rows.pop((label, language)), names[language]
        cells = [f"{row['offset_sd']:.2f}", f"{100 * row['offset'][f'keys_over_{offset}']:.1f}%"]
        for level in (0.01, 0.05):
            share = row[f"unmarked, English threshold, {level}"]
            cells.append(f"{share['mean']:.3f}, {share['worst']:.2f}")
            cells.append(f"{100 * share['keys_over_0.3']:.1f}% / {100 * share['keys_over_0.5']:.1f}%")
        assert unmarked[2:] == cells
        cells = []
        for level, reached in ((0.01, one), (0.05, five)):
            share = row[f"marked, English threshold, {level}"]
            cells.append(f"{share['q50']:.3f}, {share['mean']:.3f}")
            cells.append(f"{100 * share[f'keys_over_{reached}']:.1f}%")
        cells += [f"{row[f'marked, own threshold, {level}']['mean']:.3f}" for level in (0.01, 0.05)]
        assert marked == [label, language, *cells]
    assert not rows
