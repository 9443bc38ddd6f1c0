"""The page about a mark's price, in Markdown, and its rows, which the command prints too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dewmark.version import __version__
from dewmark_lab.quality.equivalence import Outcome
from dewmark_lab.quality.measuring import Measured, Quality

HEADS = ("measure", "marked", "unmarked", "difference (95%)", "margin", "outcome", "worst key")


def table_row(name: str, found: Measured) -> tuple[str, ...]:
    """A measure as texts in the order of `HEADS`."""
    compared = found.compared
    difference, worst = compared.difference, compared.worst_difference
    return (
        name,
        f"{found.marked:.3f}",
        f"{found.unmarked:.3f}",
        f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})",
        f"±{compared.margin:g}",
        compared.outcome.value,
        f"{compared.worst + 1}: {worst.value:+.3f}",
    )


def plain_table(found: Quality) -> str:
    """All measures in aligned columns."""
    rows = [HEADS, *(table_row(name, each) for name, each in found.measures.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def sentences(found: Quality) -> list[str]:
    """What was found, in words."""
    said = []
    if names := found.named(Outcome.EXCEEDED):
        said.append(f"Outside the margin: {', '.join(names)}.")
    if names := found.named(Outcome.INCONCLUSIVE):
        said.append(f"Inconclusive, the interval reaches across the margin: {', '.join(names)}.")
        said.append("More prompts narrow the intervals and, where keys differ, more keys.")
    return said or ["Every measure is within its margin."]


def quality_page(found: Quality, summary: Mapping[str, Any]) -> str:
    """The page; ``summary`` holds scheme, host and how texts were written."""
    rows = [HEADS, ("---",) * len(HEADS)]
    for name, each in found.measures.items():
        first, *others = table_row(f"`{name}`", each)
        rows.append((f"{first}: {each.label}", *others))
    keys = ", ".join(f"{i}: `{each}`" for i, each in enumerate(found.keys, start=1))
    settings = {name: value for name, value in summary.items() if name not in found.to_dict()}
    return "\n".join(
        [
            f"# Quality: {summary['scheme']} on {summary['host']}\n",
            f"Written by dewmark {__version__} from {found.texts:,} texts, half of them marked.\n",
            *(f"{each}\n" for each in sentences(found)),
            *(f"| {' | '.join(row)} |" for row in rows),
            f"\nIntervals are over prompts and keys. Keys: {keys}.\n",
            f"```json\n{json.dumps(settings, indent=1, ensure_ascii=False)}\n```\n",
        ]
    )
