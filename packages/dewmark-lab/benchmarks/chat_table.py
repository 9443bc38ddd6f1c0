"""Summarise what benchmarks/chat.py wrote: means over keys as JSON, tables in Markdown, and a figure.

    python benchmarks/chat_table.py DIR/rows.jsonl … --json docs/results/chat-settings.json > TABLES.md

``--figure FILE`` draws what is found after an attack against what the mark costs in likelihood.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from dewmark_lab.reports.plots import COLOURS, SOFT, grid, save_figure, styled

LEVELS = ("p<0.01", "p<0.0001")
ATTACKS = (
    "none",
    "delete-30",
    "delete-50",
    "wordnet-30",
    "round-trip",
    "translate",
    "translate, brought back",
)
MEASURES = ("distinct_content", "unlisted", "repetition")
PANELS = (("chat", "round-trip", "chat, round trip"), ("openings", "translate", "openings, translated"))


def read(paths: list[Path]) -> list[dict[str, Any]]:
    """Rows with means over keys; unmarked ones have ``marked`` false."""
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    once = {json.dumps(row["of"]): row for row in map(json.loads, lines)}  # files may overlap
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in once.values():
        of = {key: model(value) if key in ("host", "reader") else value for key, value in row["of"].items()}
        if "negatives" in of:
            name = ("negatives", of["host"], of["negatives"], of["reader"])
        elif "wording" in of or "likelihood" in of:
            kind = "wording" if "wording" in of else "likelihood"
            name = (kind, of["host"], of["setting"], of["tokens"], of["scheme"])
        else:
            scheme = of.get("by", of["scheme"])
            where = (of["host"], of["setting"], of["tokens"], scheme)
            name = ("found", *where, of["attack"], of["reader"], of["marked"])
        groups[name].append(row)
    return [summary(name, rows) for name, rows in groups.items()]


def model(name: str) -> str:
    """A model's name, which is its folder's where a folder was given."""
    return name.rsplit("/", 1)[-1]


def summary(name: tuple[Any, ...], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One group of rows as one row."""
    kind, *rest = name
    if kind == "negatives":
        host, texts, reader = rest
        rates = {level: round(rows[0][level], 4) for level in ("p<0.01", "p<0.001")}
        return {
            "kind": kind,
            "host": host,
            "texts": texts,
            "number": rows[0]["texts"],
            "reader": reader,
        } | rates
    fields = ("host", "setting", "tokens", "scheme", "attack", "reader", "marked")
    found: dict[str, Any] = {"kind": kind, **dict(zip(fields, rest, strict=False)), "keys": len(rows)}
    if kind in ("wording", "likelihood"):
        for measure in MEASURES if kind == "wording" else ("nats",):
            values = [row[measure] for row in rows if row.get(measure)]
            if values:
                half = [(each["high"] - each["low"]) / 2 for each in values]
                found[measure] = round(sum(each["value"] for each in values) / len(values), 4)
                found[f"{measure} ±"] = round(sum(half) / len(half), 4)
        return found
    for level in ("p<0.01", "p<0.001", "p<0.0001"):
        found[level] = round(sum(row[level] for row in rows) / len(rows), 4)
    return found


def tables(rows: list[dict[str, Any]]) -> str:
    """Markdown: per host, setting and length one table of schemes and readers by attack."""
    lines: list[str] = []
    found = [row for row in rows if row["kind"] == "found"]
    for where in dict.fromkeys((row["host"], row["setting"], row["tokens"]) for row in found):
        mine = [row for row in found if (row["host"], row["setting"], row["tokens"]) == where]
        attacks = [attack for attack in ATTACKS if any(row["attack"] == attack for row in mine)]
        host, setting, tokens = where
        lines += [f"### {host}, {setting}, {tokens} tokens", ""]
        lines += ["| scheme | read by | " + " | ".join(attacks) + " |", "| --- " * (len(attacks) + 2) + "|"]
        for scheme, reader in dict.fromkeys((row["scheme"], row["reader"]) for row in mine):
            cells = []
            for attack in attacks:
                of = [r for r in mine if (r["scheme"], r["reader"], r["attack"]) == (scheme, reader, attack)]
                marked = next((row for row in of if row["marked"]), None)
                plain = next((row for row in of if not row["marked"]), None)
                shares = " / ".join(f"{marked[level]:.3f}" for level in LEVELS) if marked else ""
                cells.append(f"{shares} [{plain['p<0.01']:.4f}]" if plain and marked else shares)
            lines.append(f"| {scheme} | {reader} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += [
        "### Wording, marked minus unmarked",
        "",
        "| host | setting | tokens | scheme | " + " | ".join(MEASURES) + " |",
    ]
    lines.append("| --- " * (len(MEASURES) + 4) + "|")
    for row in rows:
        if row["kind"] == "wording":
            cells = [f"{row[m]:+.4f} ± {row[f'{m} ±']:.4f}" if m in row else "" for m in MEASURES]
            lines.append(
                f"| {row['host']} | {row['setting']} | {row['tokens']} | {row['scheme']} | "
                + " | ".join(cells)
                + " |"
            )
    lines += [
        "",
        "### Nats per token under the host, marked minus unmarked",
        "",
        "| host | setting | tokens | scheme | nats |",
    ]
    lines.append("| --- " * 5 + "|")
    for row in rows:
        if row["kind"] == "likelihood":
            where = " | ".join(str(row[name]) for name in ("host", "setting", "tokens", "scheme"))
            lines.append(f"| {where} | {row['nats']:+.3f} ± {row['nats ±']:.3f} |")
    lines += [
        "",
        "### False alarms on human texts",
        "",
        "| texts | number | read by | p < 0.01 | p < 0.001 |",
    ]
    lines.append("| --- " * 5 + "|")
    for row in rows:
        if row["kind"] == "negatives":
            rates = f"{row['p<0.01']:.4f} | {row['p<0.001']:.4f}"
            lines.append(f"| {row['texts']} | {row['number']} | {row['reader']} | {rates} |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Share found at p < 1e-4 against nats per token, per scheme, at 200 tokens of SmolLM2."""
    mine = [row for row in rows if row.get("host") == "smollm2-135m" and row.get("tokens") == 200]
    with styled():
        figure, [axes] = grid(1, len(PANELS), width=4.6, height=3.6)
        for axis, (setting, attack, title) in zip(axes, PANELS, strict=True):
            cost = {
                r["scheme"]: r["nats"] for r in mine if r["kind"] == "likelihood" and r["setting"] == setting
            }
            for row in mine:
                if (
                    row["kind"] != "found"
                    or not row["marked"]
                    or row["reader"] not in ("none", "host with prompt")
                ):
                    continue
                if (row["setting"], row["attack"]) != (setting, attack):
                    continue
                colour = COLOURS[1] if row["scheme"] == "dew" else COLOURS[0]
                point = (cost[row["scheme"]], row["p<0.0001"])
                axis.plot(*point, "o", color=colour, markersize=5)
                label = row["scheme"] + (", read" if row["reader"] != "none" else "")
                axis.annotate(label, point, xytext=(4, 3), textcoords="offset points", fontsize=8, color=SOFT)
            axis.set(title=title, xlabel="nats per token, minus unmarked", ylabel="found at p < 0.0001")
            axis.set(ylim=(-0.03, 1.05))
            axis.margins(x=0.2)
        save_figure(figure, file)


def main() -> None:
    """Read, write, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="ROWS.jsonl")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = read(options.files)
    if options.figure is not None:
        draw(rows, options.figure)
    if options.json is not None:
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        options.json.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    print(tables(rows), end="")


if __name__ == "__main__":
    main()
