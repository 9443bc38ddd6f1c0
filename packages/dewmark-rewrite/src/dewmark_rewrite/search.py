"""Which changes to make: the fewest and best-reading ones that give a text its mark.

The score of a text is the detector's own z, so a change is worth exactly what it adds to z: the word itself,
and the contexts of the words after it. Changes are taken one by one, the most valuable first. Words are what
is spent: a change of two must bring twice as much as a change of one.

What a change adds depends on its neighbours, so those near the last change are scored again before one of
them is taken. A language model's reading takes longest: only changes that would be taken are read. The score
of a detector with a reader takes second longest: without one it sorts the candidates as well, at a quarter of
the time.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from dewmark.text.words import words
from dewmark_rewrite.thesaurus import Candidate, apply

Score = Callable[[Sequence[str]], list[float]]
"""z of texts under the key that marks."""

Read = Callable[[Sequence[Candidate]], list[Candidate]]
"""Those of some changes that read well, with their costs."""

_LEAST_GAIN = 0.04  # of z; less is not worth a changed word
_FIRST = 6  # changes whose score must be new before the best of them is taken
_READ_AT_ONCE = 16
_NEAR = 60  # characters around the last change within which scores are old


@dataclass(frozen=True)
class Step:
    """One change, and z of the text after it and those before."""

    change: Candidate
    z: float


@dataclass(frozen=True)
class SearchLimits:
    """When a search ends: ``words`` changed, or ``enough`` (text, z) says so.

    ``price`` is what a nat of a language model's loss costs in z. ``read`` leaves out changes that read
    badly, and ``allowed`` decides on each change, given those before it.
    """

    words: float
    enough: Callable[[str, float], bool]
    price: float = 0.0
    read: Read = list
    allowed: Callable[[Candidate, Sequence[Candidate]], bool] = lambda change, before: True

    def worth(self, change: Candidate, gain: float) -> float:
        """What a change brings for each word that it changes."""
        return (gain - self.price * max(change.cost, 0.0)) / size(change)


@functools.lru_cache(maxsize=1 << 14)
def size(change: Candidate) -> int:
    """How many words a change changes."""
    old, new = ([word.form for word in words(part)] for part in (change.old, change.new))
    if sorted(old) == sorted(new):  # another order
        kept = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
        return max(len(old) - sum(block.size for block in kept), 1)
    gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
    return max(gone.total(), come.total(), 1)


def search(
    text: str,
    candidates: Sequence[Candidate],
    score: Score,
    limits: SearchLimits,
    *,
    guess: Score | None = None,
) -> list[Step]:
    """The changes to make, in the order in which they were chosen.

    ``guess`` is a faster score that sorts the candidates at first; those that come first by it are scored.
    """
    (z,) = score([text])
    guess = guess or score
    left = dict(zip(candidates, gains(text, [], candidates, guess, *guess([text])), strict=True))
    exact = set[Candidate]()  # scored since a neighbour changed
    readable: set[Candidate] = set()
    steps: list[Step] = []
    spent = 0
    while left and not limits.enough(apply(text, _changes(steps)), z):
        before = _changes(steps)
        open_ = [
            each
            for each, gain in left.items()
            if spent + size(each) <= limits.words and gain >= _LEAST_GAIN * size(each)
        ]
        ranked = sorted(open_, key=lambda each: limits.worth(each, left[each]), reverse=True)
        if again := [each for each in ranked[:_FIRST] if each not in exact]:
            left.update(zip(again, gains(text, before, again, score, z), strict=True))
            exact.update(again)
            continue
        if not ranked:
            break
        best = ranked[0]
        if best not in readable:
            some = [each for each in ranked[: 4 * _READ_AT_ONCE] if each not in readable][:_READ_AT_ONCE]
            found = {replace(each, cost=0.0): each for each in limits.read(some)}
            for each in some:
                gain = left.pop(each)
                if (read := found.get(each)) is not None:
                    left[read] = gain
                    readable.add(read)
                    exact.update([read] if each in exact else [])
            continue
        if not limits.allowed(best, before):
            del left[best]
            continue
        (z,) = score([apply(text, [*before, best])])
        steps.append(Step(best, z))
        spent += size(best)
        left = {each: gain for each, gain in left.items() if not each.span.overlaps(best.span)}
        exact = {each for each in exact if abs(each.start - best.start) > _NEAR}
    return steps


def pruned(text: str, steps: Sequence[Step], score: Score, limits: SearchLimits) -> list[Step]:
    """The steps without those that turned out not to be needed for enough."""
    kept = list(steps)
    if not kept or not limits.enough(apply(text, _changes(kept)), kept[-1].z):
        return kept
    for step in steps:
        fewer = [each for each in kept if each is not step]
        shorter = apply(text, _changes(fewer))
        (z,) = score([shorter])
        if limits.enough(shorter, z):
            kept = fewer
    changes = _changes(kept)
    scores = score([apply(text, changes[: i + 1]) for i in range(len(changes))]) if changes else []
    return [Step(change, z) for change, z in zip(changes, scores, strict=True)]


def _changes(steps: Sequence[Step]) -> list[Candidate]:
    return [step.change for step in steps]


def gains(
    text: str, before: Sequence[Candidate], candidates: Sequence[Candidate], score: Score, z: float
) -> list[float]:
    """What each candidate adds to z of the text with the changes before it, which is ``z``."""
    if not candidates:
        return []
    return [found - z for found in score([apply(text, [*before, each]) for each in candidates])]
