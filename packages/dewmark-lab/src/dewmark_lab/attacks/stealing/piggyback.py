"""Piggybacking: put words of one's own into a genuine text, and let its mark vouch for them.

No learning is needed, and no watermark of single words prevents it: a mark that survives editing survives a
malicious edit as well. What remains to be measured is what a reader of the verdict sees: whether the text is
still *marked*, still *attributable*, and whether `locate` leaves out the inserted words. It finds passages of
dozens of words, so a changed word is invisible to it and an inserted paragraph is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from dewmark.passages import Located
from dewmark.types import Detection


@dataclass(frozen=True, slots=True)
class Piggyback:
    """One tampered text: how many words are the attacker's, its detection, and what `locate` says of them.

    ``covered`` is the share of the attacker's words inside passages that are called marked; None if nothing
    was located.
    """

    text: str
    foreign: int
    detection: Detection
    covered: float | None


def replaced(
    words: Sequence[str], others: Sequence[str], number: int, random: Random
) -> tuple[list[str], set[int]]:
    """The text with ``number`` scattered words replaced, and their places."""
    places = set(random.sample(range(len(words)), min(number, len(words))))
    return [random.choice(others) if i in places else word for i, word in enumerate(words)], places


def spliced(words: Sequence[str], passage: Sequence[str], random: Random) -> tuple[list[str], set[int]]:
    """The text with a passage inserted at a random place, and the passage's places."""
    start = random.randrange(len(words) + 1)
    return [*words[:start], *passage, *words[start:]], set(range(start, start + len(passage)))


def piggyback(
    detect: Callable[[str], Detection],
    locate: Callable[[str], Located] | None,
    words: Sequence[str],
    places: set[int],
) -> Piggyback:
    """Judge a tampered text whose words at ``places`` are the attacker's."""
    text = " ".join(words)
    covered = None
    if locate is not None and places:
        passages = [(p.start, p.end) for p in locate(text).passages]
        inside, at = 0, 0
        for i, word in enumerate(words):
            if i in places:
                inside += any(start <= at < end for start, end in passages)
            at += len(word) + 1
        covered = inside / len(places)
    return Piggyback(text, len(places), detect(text), covered)
