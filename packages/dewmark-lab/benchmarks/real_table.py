"""Summarise what benchmarks/real_models.py wrote: means over keys as JSON, and tables in Markdown.

    python benchmarks/real_table.py DIR/rows.jsonl … --json docs/results/real-models.json > TABLES.md

``--earlier`` names such a JSON file of an earlier run: what this run did not measure again is taken from it.
The last table puts openings beside the paper's Table 1, and DEW beside its Table 5, at the paper's threshold.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

TREATMENTS = (
    "none",
    "paraphrase",
    "paraphrase, 20% changed",
    "paraphrase, in English",
    "fr-opus",
    "fr-opus-back",
    "fr-opus, brought back",
    "fr-llm",
    "de-llm",
    "de-llm-back",
    "de-llm, brought back",
    "clsa-de",
)
COUNTS = ("pairs", "wins", "losses", "ties", "by_place")
MEASURES = ("distinct_content", "unlisted", "repetition")
KINDS = ("rewriter", "wording", "likelihood", "judge", "meaning")  # or "found"
PLACE = ("kind", "setting", "tokens", "scheme", "treatment", "reader")
SETTINGS = ("chat", "openings")
GLANCE = {
    "chat": ("chat", "none"),
    "chat, paraphrased": ("chat", "paraphrase"),
    "chat, French and back": ("chat", "fr-opus-back"),
    "openings": ("openings", "none"),
    "openings, paraphrased": ("openings", "paraphrase"),
    "openings, in French": ("openings", "fr-opus"),
    "openings, in German": ("openings", "de-llm"),
    "openings, German and back": ("openings", "de-llm-back"),
}
ATTACKS = {"none": "none", "paraphrase": "paraphrase", "translate-de": "de-llm", "translate-fr": "fr-opus"}
Row = dict[str, Any]


def read(paths: Sequence[Path]) -> list[Row]:
    """One row per scheme and treatment, with means over keys."""
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    once = {json.dumps(row["of"]): row for row in map(json.loads, lines)}
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in once.values():
        of = row["of"]
        if "meaning" in of and row["similarity"] is None:  # no rewrite in the language that was expected
            continue
        kind = next((kind for kind in KINDS if kind in of), "found")
        treatment = (of.get("attack", "none"), of.get("reader", "none"))
        spoiled = f", {100 * of['spoiled']:g}% of the words deleted" if "spoiled" in of else ""
        where = (of["setting"], of["tokens"], of["scheme"] + spoiled, *treatment)
        groups[kind, *where].append(row)
    return [summary(name, rows) for name, rows in groups.items()]


def summary(name: tuple[Any, ...], rows: list[Row]) -> Row:
    """One group of rows, one for each key, as one row."""
    out = dict(zip(PLACE, name, strict=True)) | {"keys": len(rows)}
    if out["kind"] == "found":
        shown = ("p<0.01", "p<0.0001", "matched 1%", "matched 5%", "untreated 1%", "untreated 5%")
        out |= {field: round(fmean(row[field] for row in rows), 4) for field in shown if field in rows[0]}
        out["texts"] = sum(row["texts"] for row in rows)
        if len(rows) > 1 and "p<0.01" in out:
            out["p<0.01 by key"] = [round(row["p<0.01"], 4) for row in rows]
        if "false alarms" in rows[0]:
            out["unmarked texts"] = rows[0]["unmarked texts"]
            out["unmarked p<0.01"] = round(fmean(row["false alarms"]["p<0.01"] for row in rows), 5)
            out["unmarked p<0.0001"] = round(fmean(row["false alarms"]["p<0.0001"] for row in rows), 5)
    elif out["kind"] == "rewriter":
        out |= {"texts": sum(row["texts"] for row in rows), "kept": sum(row["kept"] for row in rows)}
        out["faults"] = dict(sum((Counter(row["faults"]) for row in rows), Counter[str]()).most_common())
        for field in ("words_changed", "length"):
            values = [row[field] for row in rows if row[field] is not None]
            out[field] = round(fmean(values), 4) if values else None
    elif out["kind"] == "meaning":
        out |= {"texts": rows[0]["texts"], "similarity": round(rows[0]["similarity"], 4)}
    elif out["kind"] == "likelihood":
        out["nats"] = round(fmean(row["nats"]["value"] for row in rows), 4)
        out["nats ±"] = round(fmean((row["nats"]["high"] - row["nats"]["low"]) / 2 for row in rows), 4)
        out["unmarked"] = round(fmean(row["unmarked"] for row in rows), 4)
    elif out["kind"] == "judge":
        out |= {field: sum(row[field] for row in rows) for field in COUNTS}
        means = {"nps": "score", "nps low": "low", "nps high": "high", "odds": "odds"}
        out |= {name: round(fmean(row[field] for row in rows), 4) for name, field in means.items()}
    else:
        for measure in MEASURES:
            values = [row[measure] for row in rows if row.get(measure)]
            if values:
                out[measure] = round(fmean(each["value"] for each in values), 4)
                out[f"{measure} ±"] = round(fmean((each["high"] - each["low"]) / 2 for each in values), 4)
    return out


def of_kind(rows: Sequence[Row], kind: str) -> list[Row]:
    """The rows of a kind."""
    return [row for row in rows if row["kind"] == kind]


def line(cells: Sequence[object]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def heads(cells: Sequence[object]) -> list[str]:
    """The head of a Markdown table."""
    return [line(cells), "| --- " * len(cells) + "|"]


def found_tables(rows: Sequence[Row]) -> Iterator[str]:
    """Per setting and length one table of schemes and readers by treatment."""
    every = of_kind(rows, "found")
    for setting, tokens in dict.fromkeys((row["setting"], row["tokens"]) for row in every):
        mine = [row for row in every if (row["setting"], row["tokens"]) == (setting, tokens)]
        treatments = [name for name in TREATMENTS if any(row["treatment"] == name for row in mine)]
        yield from (f"### {setting}, {tokens} tokens", "", *heads(["scheme", "keys", "read by", *treatments]))
        schemes = list(dict.fromkeys(row["scheme"] for row in mine))
        pairs = dict.fromkeys((row["scheme"], row["reader"]) for row in mine)
        for scheme, reader in sorted(pairs, key=lambda pair: schemes.index(pair[0])):
            own = [row for row in mine if (row["scheme"], row["reader"]) == (scheme, reader)]
            keys = " to ".join(map(str, sorted({f(row["keys"] for row in own) for f in (min, max)})))
            cells = {row["treatment"]: cell(row) for row in own}
            yield line([scheme, keys, reader, *(cells.get(name, "") for name in treatments)])
        yield ""


def glance(rows: Sequence[Row]) -> Iterator[str]:
    """The main columns at 200 tokens, schemes by the share of chat answers found, and their price in nats."""
    mine = [row for row in rows if row["tokens"] == 200 and row["setting"] in SETTINGS]
    found = {
        (row["scheme"], row["reader"], row["setting"], row["treatment"]): row
        for row in of_kind(mine, "found")
        if "p<0.01" in row and row["reader"] != "host with prompt"
    }
    nats = {(row["scheme"], row["setting"]): row["nats"] for row in of_kind(mine, "likelihood")}

    def place(pair: tuple[str, str]) -> tuple[bool, bool, float]:
        share = found.get((*pair, "chat", "none"), {}).get("p<0.01", 0.0)
        return pair[0] != "dew-default", pair[1] != "none", -share

    yield from ("## At a glance", "", *heads(["", *GLANCE, *(f"nats, {where}" for where in SETTINGS)]))
    for scheme, reader in sorted(dict.fromkeys(name[:2] for name in found), key=place):
        cells = (found.get((scheme, reader, *column)) for column in GLANCE.values())
        shown = [f"{row['p<0.01']:.3f} / {row['p<0.0001']:.3f}" if row else "" for row in cells]
        price = [f"{nats[scheme, where]:+.2f}" if (scheme, where) in nats else "" for where in SETTINGS]
        yield line([scheme + (", read by the host" if reader == "host" else ""), *shown, *price])
    yield ""


def cell(row: Row) -> str:
    """Shares found, the matched one in round and the false alarms in square brackets."""
    if "matched 1%" not in row:
        return f"no texts left ({row['texts']})"
    found = f"{row['p<0.01']:.3f} / {row['p<0.0001']:.3f} ({row['matched 1%']:.3f})"
    return f"{found} [{row['unmarked p<0.01']:.4f}]"


def rewriter_table(rows: Sequence[Row]) -> Iterator[str]:
    """How good the rewriters are, on marked and on unmarked texts."""
    yield from ("### Rewriters", "")
    yield from heads(
        ["setting", "tokens", "treatment", "of", "kept", "left out", "words changed", "length", "similarity"]
    )
    fields = ("setting", "tokens", "scheme", "treatment")
    alike = {tuple(row[field] for field in fields): row["similarity"] for row in of_kind(rows, "meaning")}
    for row in of_kind(rows, "rewriter"):
        similar = alike.get(tuple(row[field] for field in fields))
        faults = ", ".join(f"{times} {name}" for name, times in row["faults"].items()) or "none"
        measures = (row["words_changed"], row["length"], similar)
        kept = f"{row['kept']} of {row['texts']}"
        scheme = "unmarked" if row["scheme"] == "none" else row["scheme"]
        yield line(
            [row["setting"], row["tokens"], row["treatment"], scheme, kept, faults, *map(number, measures)]
        )
    yield ""


def number(value: float | None) -> str:
    """Two digits, or nothing."""
    return "" if value is None else f"{value:.2f}"


def wording_table(rows: Sequence[Row]) -> Iterator[str]:
    """Measures of wording, and nats a token under the host, marked minus unmarked."""
    columns = (*MEASURES, "nats")
    yield from ("### Wording, marked minus unmarked", "", *heads(["setting", "tokens", "scheme", *columns]))
    where = ("setting", "tokens", "scheme")
    likely = {tuple(row[field] for field in where): row for row in of_kind(rows, "likelihood")}
    for row in of_kind(rows, "wording"):
        every = row | likely.get(tuple(row[field] for field in where), {})
        cells = [f"{every[m]:+.4f} ± {every[f'{m} ±']:.4f}" if m in every else "" for m in columns]
        yield line([row["setting"], row["tokens"], row["scheme"], *cells])
    yield ""


def judge_table(rows: Sequence[Row]) -> Iterator[str]:
    """Net preference scores over unmarked texts, with the interval of one key."""
    yield from ("### Judge", "")
    yield from heads(["setting", "tokens", "texts", *COUNTS, "NPS", "95% interval"])
    for row in of_kind(rows, "judge"):
        name = row["scheme"].replace("none", "unmarked")
        interval = f"{row['nps low']:+.3f} to {row['nps high']:+.3f}"
        cells = [*(row[field] for field in COUNTS), f"{row['nps']:+.3f}", interval]
        yield line([row["setting"], row["tokens"], name, *cells])
    yield ""


def paper_tables(rows: Sequence[Row]) -> Iterator[str]:
    """The paper's figures, then ours at the same thresholds: those of untreated unmarked texts."""
    tables = yaml.safe_load(files("dewmark").joinpath("data/paper_tables.yaml").read_text(encoding="utf-8"))
    attacks = ("paraphrase", "translate-de", "translate-fr")
    columns = [("none", 0.01), *((attack, rate) for attack in attacks for rate in (0.01, 0.05))]
    mine = {
        (row["setting"], row["scheme"], row["treatment"]): row
        for row in of_kind(rows, "found")
        if row["tokens"] == 200 and row["reader"] == "none"
    }

    def ours(label: str, setting: str) -> list[str]:
        cells = []
        for attack, rate in columns:
            row = mine.get((setting, label, ATTACKS[attack]), {})
            field = f"untreated {100 * rate:.0f}%"
            cells.append(f"{row[field]:.3f}" if field in row else "")
        return cells

    for name in ("main", "cross-host"):
        table = tables["tables"][name]
        yield from (f"### Beside the paper's {table['source']}", "")
        yield from heads(["row", *(f"{attack}, {100 * rate:.0f}%" for attack, rate in columns)])
        places = [
            next(
                i
                for i, column in enumerate(table["columns"])
                if (column.get("attack"), column.get("rate")) == wanted
            )
            for wanted in columns
        ]
        for row in table["rows"]:
            values = [row["values"][place][0] for place in places]
            group = f", {row['group']}" if name == "cross-host" else ""
            yield line([f"paper: {row['label']}{group}", *(f"{value:.3f}" for value in values)])
            label = row["scheme"]
            for setting in ("openings", "chat") if (setting_has(mine, label)) else ():
                yield line([f"here, {setting}: {label}", *ours(label, setting)])
        for setting in ("openings", "chat"):
            yield line([f"here, {setting}: dew-default", *ours("dew-default", setting)])
        yield ""


def setting_has(mine: dict[tuple[str, str, str], Row], label: str) -> bool:
    """Whether a scheme was measured."""
    return any(scheme == label for _, scheme, _ in mine)


def main() -> None:
    """Read, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="ROWS.jsonl")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--earlier", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = read(options.files)
    if options.earlier is not None:
        earlier: list[Row] = json.loads(options.earlier.read_text(encoding="utf-8"))
        places = {tuple(row[field] for field in PLACE): row for row in (*earlier, *rows)}
        order = list(dict.fromkeys((row["setting"], row["tokens"]) for row in places.values()))
        rows = sorted(places.values(), key=lambda row: order.index((row["setting"], row["tokens"])))
    if options.json is not None:
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        options.json.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    for table in (glance, found_tables, rewriter_table, judge_table, wording_table, paper_tables):
        print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
