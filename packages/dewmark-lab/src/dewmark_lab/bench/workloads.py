"""Prompts to continue and texts to score, as many as a benchmark needs.

Texts must not repeat: a detector's caches would make the second one cheaper, and the package's own texts
would last for a hundred. So texts are random walks over pairs of adjacent words in the package's English
texts, with the same word frequencies and ever new windows.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from dewmark.encoders.word_vectors import register_texts
from dewmark.prompts import openings
from dewmark.workspace import Tokenizer


def prompts(count: int, *, first: int = 0) -> list[str]:
    """``count`` of the package's openings from the ``first`` on, repeated if there are too few."""
    return [row["text"] for row in itertools.islice(itertools.cycle(openings()), first, first + count)]


def random_texts(tokenizer: Tokenizer, count: int, *, tokens: int, seed: int) -> list[str]:
    """``count`` texts of ``tokens`` tokens, give or take two; every seed has its own."""
    texts = tokenizer.encode(random_walks(count, words=tokens, seed=seed))  # a word is at least one token
    return tokenizer.decode([text.ids[:tokens] for text in texts])


def random_walks(count: int, *, words: int, seed: int) -> list[str]:
    """``count`` texts of ``words`` words each; every seed has its own."""
    random = np.random.default_rng(seed)
    return [_random_walk(random, words) for _ in range(count)]


def _random_walk(random: np.random.Generator, length: int) -> str:
    words, successors = _word_pairs()
    at = int(random.integers(len(words)))
    walk = []
    for share in random.random(length):
        walk.append(words[at])
        following = successors[words[at]]
        at = following[int(share * len(following))]
    return " ".join(walk)


@functools.cache
def _word_pairs() -> tuple[list[str], dict[str, list[int]]]:
    """All words in order, and for each distinct word the positions that follow it."""
    words = " ".join(register_texts()).split()
    successors: dict[str, list[int]] = {}
    for position, word in enumerate(words):
        successors.setdefault(word, []).append((position + 1) % len(words))
    return words, successors
