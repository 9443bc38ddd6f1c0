"""The page about a mark's price, in Markdown, and its rows, which the command prints too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dewmark.version import __version__
from dewmark_lab.quality.equivalence import Outcome
from dewmark_lab.quality.measuring import Measured, Quality

HEADS = ("measure", "marked", "unmarked", "difference (95%)", "margin", "outcome", "worst key (95%)")


def table_row(found: Measured) -> tuple[str, ...]:
    """A measure as texts in the order of `HEADS`."""
    compared = found.compared
    difference, worst = compared.difference, compared.worst_difference
    return (
        found.label,
        f"{found.marked:.3f}",
        f"{found.unmarked:.3f}",
        f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})",
        f"±{compared.margin:g}",
        compared.outcome.value,
        f"{compared.worst + 1}: {worst.value:+.3f} ({worst.low:+.3f} to {worst.high:+.3f})",
    )


def sentences(found: Quality) -> list[str]:
    """What was found, in words: what exceeds its margin, and what more prompts would decide."""
    said = []
    if names := found.named(Outcome.EXCEEDED):
        said.append(f"Outside the margin: {', '.join(names)}.")
    if names := found.named(Outcome.INCONCLUSIVE):
        said.append(f"Inconclusive, the interval reaches across the margin: {', '.join(names)}.")
        needed = [each.compared.needed for each in found.measures.values() if each.compared.needed]
        if needed:
            said.append(f"At these estimates {max(needed):,} prompts or items of each kind would decide.")
    return said or ["Every measure is within its margin."]


def quality_page(found: Quality, summary: Mapping[str, Any]) -> str:
    """The page; ``summary`` holds scheme, host and how texts were written."""
    rows = [HEADS, ("---",) * len(HEADS), *map(table_row, found.measures.values())]
    keys = ", ".join(f"{i}: `{each}`" for i, each in enumerate(found.keys, start=1))
    settings = {name: value for name, value in summary.items() if name not in found.to_dict()}
    note = (
        "Intervals are over prompts and keys; that of the worst key is over prompts, for all keys together."
    )
    return "\n".join(
        [
            f"# Quality: {summary['scheme']} on {summary['host']}\n",
            f"Written by dewmark {__version__} from {found.texts:,} texts, half of them marked.\n",
            *(f"{each}\n" for each in sentences(found)),
            *(f"| {' | '.join(row)} |" for row in rows),
            f"\nKeys: {keys}. {note}\n",
            f"```json\n{json.dumps(settings, indent=1, ensure_ascii=False)}\n```\n",
        ]
    )
