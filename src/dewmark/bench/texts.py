"""Prompts to continue and texts to detect, as many as are asked for.

The package's own texts would last for a hundred texts, and a benchmark's texts must not repeat: what a
detector remembers of one would serve the next. So texts are random walks along pairs of neighbouring words of
the package's English: words as frequent as they are, in ever new windows.
"""

from __future__ import annotations

import functools
import json
import math
from importlib import resources

import numpy as np

from dewmark.embeddings.word_space import register_texts
from dewmark.workspace import Tokenizer

__all__ = ["plain_texts", "prompts"]


def prompts(count: int, *, first: int = 0) -> list[str]:
    """``count`` of the package's openings, from the ``first`` on, over and over if there are fewer."""
    lines = (resources.files("dewmark") / "data" / "openings.jsonl").read_text(encoding="utf-8").splitlines()
    known = [json.loads(line)["prompt"] for line in lines]
    return (known * math.ceil((first + count) / len(known)))[first : first + count]


def plain_texts(tokenizer: Tokenizer, count: int, *, tokens: int, seed: int) -> list[str]:
    """``count`` texts of ``tokens`` tokens of this tokenizer (or one or two more); each seed has its own."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        text = _walk(random, tokens)  # a word is one token at least
        rows.append(tokenizer.encode([text])[0].ids[:tokens])
    return tokenizer.decode(rows)


def _walk(random: np.random.Generator, length: int) -> str:
    words, following = _chain()
    at = int(random.integers(len(words)))
    walked = []
    for share in random.random(length):
        walked.append(words[at])
        nexts = following[words[at]]
        at = nexts[int(share * len(nexts))]
    return " ".join(walked)


@functools.cache
def _chain() -> tuple[list[str], dict[str, list[int]]]:
    """All words in their order, and for each word the places that come after it."""
    words = " ".join(register_texts()).split()
    following: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        following.setdefault(word, []).append((place + 1) % len(words))
    return words, following
