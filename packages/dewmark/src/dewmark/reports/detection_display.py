"""Detections in words and colours, the same in HTML pages, in a terminal and in the service's answers.

Words: p-values, verdicts and passages as one-line sentences, and the caveats that belong to them. Colours:
`spans` splits a text into the stretches that are shown in one colour, and `level` gives a score's colour.
The service's web page repeats `spans`, `level` and `one_in` in JavaScript; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dewmark.text.languages import language_name
from dewmark.types import Coverage, Detection, Extent, Passage, TokenScore, Verdict, length_in_words
from dewmark.verdict import LEAST_P, MIN_EFFECTIVE_LENGTH

if TYPE_CHECKING:
    from dewmark.detect import Examined

__all__ = ["CAVEATS", "one_in", "p_value", "sentence", "share_in_words"]

CAVEATS = (
    "“Marked” means that few keys would score this text so high by chance: a share p of all keys.",
    "p counts keys, not texts: how often one key errs on texts like yours, only an audit of that key tells.",
    "It is evidence, not proof: among many unmarked texts, some pass any threshold.",
    "It does not say who wrote the text, or why.",
    "“Not marked” means that no mark of this key was found. It does not mean that a person wrote the text.",
    "Another model, another key or heavy rewriting leaves no mark that this detector can see.",
    "“Too short” means that the text has too few independent tokens for any verdict.",
    "“Unsupported language” means that false alarms of this key are not known in the text’s language.",
)

PASSAGE_CAVEATS = (
    "A passage’s p-value is the share of keys for which anything in an unmarked text would look as striking.",
    "A passage shows where the evidence lies: it may begin or end a sentence or two off.",
    "Short marked stretches may be missed.",
)

PAGE_CAVEATS = (*CAVEATS, *PASSAGE_CAVEATS)

LEVELS = 4
"""Colour levels on each side of 0."""

_SCORE_PER_LEVEL = 0.6


def p_value(value: float) -> str:
    """A p-value with two significant digits."""
    if not math.isfinite(value):
        return "p unknown"
    return f"p = {max(value, LEAST_P):.2g}"


def one_in(value: float) -> str:
    """A p-value as a share: ``40 in 100``, or ``1 in N`` below a tenth, N to two significant digits."""
    if not math.isfinite(value):
        return "an unknown share"
    if value >= 0.1:
        return f"{100 * value:.0f} in 100"
    n = 1.0 / max(value, LEAST_P)
    if n >= 1e9:
        return f"1 in 10^{math.floor(math.log10(n))}"
    scale = 10.0 ** max(math.floor(math.log10(n)) - 1, 0)
    return f"1 in {round(n / scale) * scale:,.0f}"


def sentence(detection: Detection) -> str:
    """The numbers behind a verdict, in one line."""
    length = f"{length_in_words(detection.effective_length, detection.tokens_scored)} scored"
    if detection.verdict is Verdict.UNSUPPORTED_LANGUAGE:
        code = detection.language
        language = "an unknown language" if code is None else language_name(code)
        unknown = f"the text is in {language}, which this detector does not know"
        if detection.effective_length < MIN_EFFECTIVE_LENGTH:
            return (
                f"{unknown}: its words carry no evidence (effective length "
                f"{detection.effective_length:.0f}), and more of them would not lead to a verdict"
            )
        return (
            f"{unknown}: one key may call all such texts marked, or none, so it gives no verdict before an "
            "audit of this key on them (dewmark audit)"
        )
    if detection.verdict is Verdict.TOO_SHORT:
        if detection.leaves_no_room:
            return f"{length}: such a text (code, a list, repetition) leaves no room for a mark"
        return f"{length}: too few independent tokens for a verdict"
    share = share_in_words(detection.p_value, test=detection.test)
    return f"{p_value(detection.p_value)} ({share}), z = {detection.z:.2f}, {length}"


def share_in_words(value: float, *, test: str) -> str:
    """What a p-value counts: keys, or with calibrated scores texts."""
    if test == "empirical":
        verb = "score" if value >= 0.1 else "scores"
        return f"{one_in(value)} unmarked texts {verb} this high"
    return f"{one_in(value)} keys would score this text so high"


def located_sentence(found: Examined) -> str:
    """The verdict on a text and its passages, in one line."""
    looks = f"{p_value(found.p_value)} over {found.looks}" if str(found.looks) else p_value(found.p_value)
    if not found.verdict.conclusive:
        return f"{found.judged.words}: {sentence(found.detection)}"
    where = f", {coverage_sentence(found.coverage)}" if found.coverage else ""
    number = len(found.passages)
    count = f"{number or 'no'} marked {'passages' if number > 1 else 'passage'} at level {found.fpr:g}"
    whole = f"the whole text alone: {p_value(found.detection.p_value)}"
    return f"{found.verdict.words}{found.judged.origin}{where}; {count}, {looks}; {whole}"


def coverage_sentence(coverage: Coverage) -> str:
    """How much of a marked text the mark explains, and where it is."""
    places = ", ".join(f"{passage.start} to {passage.end}" for passage in coverage.passages)
    if coverage.extent is Extent.PART:
        return f"part of it: about {100 * coverage.share:.0f}%, characters {places}"
    if coverage.extent is Extent.WHOLE:
        return "all of it"
    return f"most clearly in characters {places}; the rest is too short or too weak to tell"


def passage_sentence(passage: Passage) -> str:
    """The numbers behind a passage, in one line."""
    return (
        f"characters {passage.start} to {passage.end}, {p_value(passage.p_value)} over all passages tried, "
        f"z = {passage.z:.2f}, {passage.tokens} tokens, about {100 * passage.share:.0f}% of them marked"
    )


def level(score: float) -> int:
    """The colour level of a score, −4 … 4: 0 near 0, ±4 beyond ±2.1 (2% of unmarked tokens on each side)."""
    if not math.isfinite(score):
        return 0
    return max(-LEVELS, min(LEVELS, round(score / _SCORE_PER_LEVEL)))


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Some characters of a text and the tokens that share them, in order; possibly none."""

    text: str
    tokens: tuple[TokenScore, ...]

    @property
    def scored(self) -> bool:
        """Whether any of the tokens carries evidence."""
        return any(token.scored for token in self.tokens)

    @property
    def score(self) -> float:
        """Σu/√n over the scored tokens: standard normal on unmarked text, like a single token's score."""
        scores = [token.score for token in self.tokens if token.scored]
        return sum(scores) / math.sqrt(len(scores)) if scores else 0.0


def spans(text: str, tokens: Iterable[TokenScore]) -> list[ScoredSpan]:
    """Split ``text`` into spans whose texts join up to it exactly, whatever the tokens' offsets.

    Byte-level pieces of one character share its offsets, some tokens have no character of their own, and
    some characters belong to no token.
    """
    pieces: list[ScoredSpan] = []
    group: list[TokenScore] = []
    start = end = 0  # offsets of the group's characters

    def close() -> None:
        if group and end > start:
            pieces.append(ScoredSpan(text[start:end], tuple(group)))
            group.clear()

    for token in sorted(tokens, key=lambda token: token.start):
        first, last = (min(max(offset, 0), len(text)) for offset in (token.start, token.end))
        if first >= end and last > first:
            close()  # a group without characters stays open and joins the next characters
            if first > end:
                pieces.append(ScoredSpan(text[end:first], ()))
            start, end = first, last
        group.append(token)
        if last > first:
            end = max(end, last)
    close()
    if end < len(text):
        pieces.append(ScoredSpan(text[end:], ()))
    return pieces


def group_by_passage(
    pieces: Iterable[ScoredSpan], places: Sequence[tuple[int, int]]
) -> list[tuple[int | None, list[ScoredSpan]]]:
    """Group spans by the passage they lie in: (index of the passage or None, its spans), in order.

    ``places`` are the passages' (start, end) character offsets, disjoint and in order. A span that overlaps
    a passage belongs to it, to the first if it overlaps two.
    """
    groups: list[tuple[int | None, list[ScoredSpan]]] = []
    at = 0
    for piece in pieces:
        end = at + len(piece.text)
        place = next((i for i, (first, last) in enumerate(places) if at < last and end > first), None)
        if groups and groups[-1][0] == place:
            groups[-1][1].append(piece)
        else:
            groups.append((place, [piece]))
        at = end
    return groups
