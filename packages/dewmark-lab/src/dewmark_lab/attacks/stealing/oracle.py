"""Attackers who learn nothing: a detector as an oracle, and words of one's own in a genuine text.

**With p-values** every question says whether a change helped. A text of n effective words has
z = Σ u_i/√n, so replacing one word at random changes z by N(0, 2/n), and keeping the changes that help gains
E[max(0, ·)] = 0.56/√n a question. A forgery at z* takes about 1.8 z* √n questions: some dozens. Removing a
mark works the same way downwards.

**With verdicts** at one level α nothing can be seen until a text passes. All that is left is to ask about
texts that share nothing until one passes by chance: 1/α questions. A detector that names several levels is a
ladder between the two, so strangers should get one level, and their number of answers times α bounds how many
false "marked" they can collect.

The attacker here pays no attention to what the text says, so the counts are lower bounds for sensible texts.

**Piggybacking** (`replaced`) asks nothing: a mark that survives editing survives a malicious edit as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from scipy.special import ndtri

PValue = Callable[[str], float]
Verdict = Callable[[str], bool]
GAIN = 1.0 / math.sqrt(math.pi)
"""E[max(0, N(0, 2))]: what a random change gains on average, in units of 1/√n."""


@dataclass(frozen=True, slots=True)
class OracleRun:
    """How many questions an attack took, whether it got there, the text and the share of words changed."""

    queries: int
    reached: bool
    text: str
    changed: float


def expected_queries(level: float, words: float) -> float:
    """About how many p-values it takes to forge a text of this many effective words at this level."""
    return float(-ndtri(level)) * math.sqrt(words) / GAIN


def forge_by_p_values(
    ask: PValue, words: Sequence[str], others: Sequence[str], *, level: float, most: int, random: Random
) -> OracleRun:
    """Replace words by ``others`` one at a time, keep what lowers p, until p < level."""
    return _climb(ask, words, others, random, most=most, better=lambda p: -p, done=lambda p: p < level)


def scrub_by_p_values(
    ask: PValue, words: Sequence[str], others: Sequence[str], *, level: float, most: int, random: Random
) -> OracleRun:
    """The same upwards, until p is at least ``level``."""
    return _climb(ask, words, others, random, most=most, better=lambda p: p, done=lambda p: p >= level)


def forge_by_verdicts(
    ask: Verdict, words: Sequence[str], others: Sequence[str], *, most: int, random: Random
) -> OracleRun:
    """Ask about texts of which half of the words are replaced at random, until one is called marked."""
    for query in range(1, most + 1):
        tried = [random.choice(others) if random.random() < 0.5 else word for word in words]
        if ask(" ".join(tried)):
            return _run(query, True, words, tried)
    return _run(most, False, words, words)


def replaced(words: Sequence[str], others: Sequence[str], number: int, random: Random) -> list[str]:
    """The text with ``number`` scattered words replaced."""
    places = set(random.sample(range(len(words)), min(number, len(words))))
    return [random.choice(others) if i in places else word for i, word in enumerate(words)]


def _climb(
    ask: PValue,
    words: Sequence[str],
    others: Sequence[str],
    random: Random,
    *,
    most: int,
    better: Callable[[float], float],
    done: Callable[[float], bool],
) -> OracleRun:
    now = list(words)
    best = ask(" ".join(now))
    queries = 1
    while not done(best) and queries < most:
        place = random.randrange(len(now))
        before, now[place] = now[place], random.choice(others)
        p = ask(" ".join(now))
        queries += 1
        if better(p) > better(best):
            best = p
        else:
            now[place] = before
    return _run(queries, done(best), words, now)


def _run(queries: int, reached: bool, words: Sequence[str], now: Sequence[str]) -> OracleRun:
    changed = sum(a != b for a, b in zip(words, now, strict=True)) / max(len(words), 1)
    return OracleRun(queries, reached, " ".join(now), changed)
