"""The pictures of the README and the pages, drawn from committed data; see `outputs`."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dewmark.core.keys import Key
from dewmark.detect import score_texts

DOCS = Path(__file__).parents[2] / "docs"
NAMES = {
    "dew": "DEW",
    "exp": "EXP",
    "synthid": "SynthID",
    "sweet": "SWEET",
    "ewd": "EWD",
    "kgw": "KGW",
    "morphmark": "MorphMark",
}
WORDS = {"strength": "λ", "drafts": "drafts", "delta": "δ"}
STYLE = """<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: #24292f; }
.axis { stroke: #6e7781; stroke-width: 1; } .grid { stroke: #d0d7de; stroke-width: 1; }
.other { fill: #6e7781; } .dew { fill: #3457b2; } .ours { font-weight: 600; }
.bar { stroke: #6e7781; } .dewbar { stroke: #3457b2; } .title { font-size: 15px; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .axis { stroke: #8b949e; } .grid { stroke: #30363d; }
  .other { fill: #8b949e; } .dew { fill: #9db8ff; } .bar { stroke: #8b949e; } .dewbar { stroke: #9db8ff; }
}
</style>"""


def all_pictures(texts: Mapping[str, Mapping[str, Any]], key: Callable[[str], Key]) -> dict[str, str]:
    """The pictures by their file names in ``docs/images``."""
    return {"demo.svg": demo(texts, key), "price.svg": price(), "false-alarms.svg": false_alarms()}


def demo(texts: Mapping[str, Mapping[str, Any]], key: Callable[[str], Key]) -> str:
    """What ``dewmark demo`` shows, for the committed texts."""
    from dewmark import load_scheme
    from dewmark.cli.demo import Case, human_paragraph, show
    from dewmark.cli.token_colours import recorder
    from dewmark.types import Verdict

    scheme, marked, unmarked = load_scheme(key("chat")), texts["chat-0"], texts["unmarked-0"]
    found = score_texts(scheme, [marked["text"], unmarked["text"], human_paragraph()])
    wrong = score_texts(load_scheme(key("wrong")), [marked["text"]])[0]
    request = marked["prompt"]
    cases = [
        Case("marked text", request, marked["text"], found[0], Verdict.MARKED, marked["nats"]),
        Case("unmarked text", request, unmarked["text"], found[1], Verdict.NOT_MARKED, unmarked["nats"]),
        Case("human paragraph", "", human_paragraph(), found[2], Verdict.NOT_MARKED),
        Case("wrong key", request, marked["text"], wrong, Verdict.NOT_MARKED),
    ]
    console = recorder(width=112)
    show(console, cases, marked["setting"])
    svg = console.export_svg(title="dewmark demo", unique_id="dewmark")
    # rich embeds a link to a web font; the reader's own monospace font will do
    return re.sub(r"@font-face\s*\{[^}]*\}", "", svg)


def found_and_price(host: str) -> list[tuple[str, float, float, float]]:
    """(name, nats a token, half of their 95% interval, share found at p < 10⁻⁴) of a host's chat answers."""
    report = json.loads((DOCS / "results" / "price.json").read_text(encoding="utf-8"))["rows"]
    cells: dict[str, list[dict[str, Any]]] = {}
    for row in report:
        if (row["host"], row["setting"], row["treatment"], row["tokens"]) != (host, "chat", "none", 200):
            continue
        if row["scheme"] != "unmarked":
            setting = "".join(f" {WORDS[name]} {value:g}" for name, value in row["settings"].items())
            cells.setdefault(NAMES[row["scheme"]] + setting, []).append(row)
    points = []
    for name, rows in cells.items():
        prices = [row["price"] for row in rows]
        found = [row["found"].get("packaged reader", row["found"].get("its own test")) for row in rows]
        half = 1.96 * statistics.fmean(row["price, standard error"] for row in rows) / len(rows) ** 0.5
        shares = [each["p<0.0001"] for each in found]
        points.append((name, statistics.fmean(prices), half, statistics.fmean(shares)))
    return points


def price() -> str:
    """The share of chat answers found against the price of the mark, for two hosts."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 870" role="img">',
        "<title>Share of marked chat answers found against the price of the mark</title>",
        STYLE,
    ]
    hosts = {"smollm2-135m": "SmolLM2-135M", "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B"}
    for panel, (host, title) in enumerate(hosts.items()):
        parts += _panel(title, found_and_price(host), top=56 + 425 * panel)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, points: list[tuple[str, float, float, float]], *, top: int) -> list[str]:
    """One host's points with axes; its upper left corner is at (64, ``top``)."""
    left, width, height, least, most = 64, 560, 300, -0.15, 0.34

    def x(nats: float) -> float:
        return left + width * (nats - least) / (most - least)

    def y(share: float) -> float:
        return top + height * (1 - share)

    parts = [
        f'<text class="title" x="{left}" y="{top - 36}">{title}: answers found at p &lt; 10⁻⁴</text>',
        f'<text x="{left}" y="{top - 16}">200 requests, up to 200 tokens, temperature 0.7, top-p 0.9</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path class="grid" d="M{left} {y(share):.1f}h{width}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for nats in (0, 0.1, 0.2, 0.3):
        parts.append(f'<path class="axis" d="M{x(nats):.1f} {top + height}v5"/>')
        parts.append(f'<text x="{x(nats):.1f}" y="{top + height + 20}" text-anchor="middle">{nats:g}</text>')
    parts.append(f'<path class="axis" d="M{left} {top + height}h{width}"/>')
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle">'
        "price in nats a token, with its 95% interval (0: as likely as unmarked text)</text>"
    )
    placed: list[tuple[str, float, float]] = []
    for name, nats, half, share in sorted(points, key=lambda point: -point[3]):
        ours = name.startswith("DEW")
        kind, bar, label = ("dew", "dewbar", "ours") if ours else ("other", "bar", "")
        parts.append(f'<path class="{bar}" d="M{x(nats - half):.1f} {y(share):.1f}H{x(nats + half):.1f}"/>')
        parts.append(
            f'<circle class="{kind}" cx="{x(nats):.1f}" cy="{y(share):.1f}" r="{6 if ours else 4}"/>'
        )
        # this library's names stand on the right of their points, the others' on the left
        right = ours and "drafts" not in name
        side, anchor = (half, "start") if right else (-half, "end")
        at, down = x(nats + side) + (8 if right else -8), y(share) + 4
        while any(way == anchor and abs(at - x_) < 70 and abs(down - y_) < 14 for way, x_, y_ in placed):
            down += 14
        placed.append((anchor, at, down))
        parts.append(
            f'<text class="{label}" x="{at:.1f}" y="{down:.1f}" text-anchor="{anchor}">{name}</text>'
        )
    return parts


def false_alarms() -> str:
    """The measured share of false alarms against the level that was asked for."""
    found = json.loads((DOCS / "results" / "one-key.json").read_text(encoding="utf-8"))
    left, top, width, height = 74, 56, 550, 330
    asked = f"{found['texts']:,} texts of {len(found['rows'])} kinds under {found['keys']:,} keys"

    def x(level: float) -> float:
        return left + width * (math.log10(level) + 5) / 4

    def y(share: float) -> float:
        return top + height * (1 - (math.log10(share) + 5) / 4)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 450" role="img">',
        "<title>Measured share of false alarms against the level</title>",
        STYLE,
        f'<text class="title" x="{left}" y="20">Unmarked texts called marked, against the level</text>',
        f'<text x="{left}" y="40">{asked}</text>',
    ]
    for level in (1e-4, 1e-3, 1e-2, 1e-1):
        parts.append(f'<path class="grid" d="M{left} {y(level):.1f}h{width}"/>')
        parts.append(f'<text x="{left - 8}" y="{y(level) + 4:.1f}" text-anchor="end">{level:.2%}</text>')
        parts.append(f'<path class="axis" d="M{x(level):.1f} {top + height}v5"/>')
        parts.append(
            f'<text x="{x(level):.1f}" y="{top + height + 20}" text-anchor="middle">{level:.2%}</text>'
        )
    low, high = 1e-5, 0.1
    parts.append(f'<path class="axis" d="M{left} {top + height}h{width}"/>')
    line = f"M{x(low):.1f} {y(low):.1f}L{x(high):.1f} {y(high):.1f}"
    parts.append(f'<path class="bar" stroke-dasharray="5 4" d="{line}"/>')
    parts.append(
        f'<text x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle">'
        "level; on the dashed line the share is the level</text>"
    )
    for name, share in found["levels"].items():
        at, down = x(float(name)), y(share)
        parts.append(f'<circle class="dew" cx="{at:.1f}" cy="{down:.1f}" r="6"/>')
        label = f'<text class="ours" x="{at - 12:.1f}" y="{down - 6:.1f}" text-anchor="end">'
        parts.append(f"{label}{100 * share:.3g}%</text>")
    return "\n".join([*parts, "</svg>"]) + "\n"
