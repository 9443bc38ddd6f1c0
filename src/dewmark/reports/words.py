"""How a detection is put into words, the same on a page and in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dewmark.types import Detection, Verdict

if TYPE_CHECKING:
    from dewmark.passages import Located, Passage

__all__ = ["CAVEATS", "PASSAGE_CAVEATS", "count_of", "located", "one_in", "p_value", "passage", "sentence"]

CAVEATS = (
    "“Marked” means that unmarked text rarely scores this high: about once in 1/p texts, for a random key.",
    "It is evidence, not proof: of many unmarked texts some pass any threshold.",
    "It does not say who wrote the text, nor why.",
    "“Not marked” means that no mark of this key was found. It does not mean that a person wrote the text:",
    "another model, another key or heavy rewriting leaves no mark that this detector can see.",
    "“Too short” means that the text holds too few independent tokens for any verdict.",
)

PASSAGE_CAVEATS = (
    "A passage’s p-value counts all the passages that were tried: for what share of keys anything in an",
    "unmarked text would look as striking. A passage is where the evidence lies: its first and last words",
    "may be off by a sentence or two, and short marked stretches may go unseen.",
)


def p_value(value: float) -> str:
    """A p-value with two significant digits."""
    if not math.isfinite(value):
        return "p unknown"
    return "p < 1e-300" if value < 1e-300 else f"p = {value:.2g}"


def one_in(value: float) -> str:
    """A p-value as a share: ``40 in 100``, or ``1 in N`` below a tenth, N to two significant digits."""
    if not math.isfinite(value):
        return "an unknown share"
    if value < 1e-300:
        return "fewer than 1 in 10^300"
    if value >= 0.1:
        return f"{100 * value:.0f} in 100"
    n = 1.0 / value
    if n >= 1e9:
        exponent = math.floor(math.log10(n))
        return f"1 in 10^{exponent}"
    scale = 10.0 ** max(math.floor(math.log10(n)) - 1, 0)
    return f"1 in {round(n / scale) * scale:,.0f}"


def sentence(detection: Detection) -> str:
    """The numbers behind a verdict, in one line."""
    length = f"effective length {detection.effective_length:.0f} of {detection.tokens_scored} tokens scored"
    if detection.verdict is Verdict.TOO_SHORT:
        return f"{length}: too few independent tokens for a verdict"
    verb = "score" if detection.p_value >= 0.1 else "scores"
    return (
        f"{p_value(detection.p_value)} ({one_in(detection.p_value)} unmarked texts {verb} this high), "
        f"z = {detection.z:.2f}, {length}"
    )


def located(found: Located) -> str:
    """What was found in a text, in one line."""
    share = f", about {100 * found.share:.0f}% of its tokens marked" if found.passages else ""
    whole = f"whole text {found.detection.verdict.value}, {p_value(found.detection.p_value)}"
    return f"{count_of(found.passages)} at level {found.fpr:g}{share}; {whole}"


def count_of(passages: Sequence[Passage]) -> str:
    """How many passages there are."""
    return {0: "no marked passage", 1: "1 marked passage"}.get(
        len(passages), f"{len(passages)} marked passages"
    )


def passage(found: Passage) -> str:
    """The numbers behind a passage, in one line."""
    return (
        f"characters {found.start} to {found.end}, {p_value(found.p_value)} over all passages tried, "
        f"z = {found.z:.2f}, {found.tokens} tokens, about {100 * found.share:.0f}% of them marked"
    )
