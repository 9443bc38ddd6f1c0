"""Pairs of sentences that mean about the same, to train a space of sentences on.

Where nothing better is at hand a paraphrase is made from the sentence itself: words left out, neighbours
swapped, clauses in another order, one half alone. A file of rewrites, JSONL with ``text`` and ``paraphrase``,
adds real ones: sentences of the two are matched by the letters they share, and only where each is the other's
best match.

Boundary: text in, text out; one seed decides everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dewmark import storage
from dewmark.baselines._sentences import sentences
from dewmark.errors import InputError

__all__ = ["Pairs", "given_pairs", "made_pairs"]

LEAST_WORDS = 5
_VARIANTS = 3  # made of each sentence
_LEAST_OVERLAP = 0.15
_CLAUSES = re.compile(r"[,;:–—]\s+")


@dataclass
class Pairs:
    """Sentences and their paraphrases; ``owners`` number the texts that the sentences stand in."""

    sentences: list[str] = field(default_factory=list)
    paraphrases: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)

    def add(self, sentence: str, paraphrase: str, owner: int) -> None:
        """Append one pair."""
        self.sentences.append(sentence)
        self.paraphrases.append(paraphrase)
        self.owners.append(owner)

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(
            self.sentences + other.sentences,
            self.paraphrases + other.paraphrases,
            self.owners + other.owners,
        )

    def __len__(self) -> int:
        return len(self.sentences)


def made_pairs(texts: Sequence[str], *, seed: int) -> Pairs:
    """Three variants of every whole sentence of at least five words."""
    rng = np.random.default_rng([seed, 1])
    pairs = Pairs()
    for owner, text in enumerate(texts):
        for sentence in dict.fromkeys(_whole(text)):
            if len(sentence.split()) >= LEAST_WORDS:
                for variant in _variants(sentence, rng):
                    pairs.add(sentence, variant, owner)
    return pairs


def given_pairs(path: Path, *, first_owner: int = 0) -> Pairs:
    """The sentence pairs of a JSONL file's rows that have a ``paraphrase`` beside their ``text``."""
    pairs = Pairs()
    if path.suffix != ".jsonl":
        return pairs
    for number, row in storage.read_jsonl(path):
        if "paraphrase" not in row:
            continue
        text, rewrite = row.get("text"), row["paraphrase"]
        if not isinstance(text, str) or not isinstance(rewrite, str):
            raise InputError(f'{path}, line {number}: "text" and "paraphrase" must both be text')
        for sentence, paraphrase in _matched(_whole(text), _whole(rewrite)):
            pairs.add(sentence, paraphrase, first_owner + number)
    return pairs


def _variants(sentence: str, rng: np.random.Generator) -> Iterator[str]:
    """Another choice of three kinds each time: fewer words, other order, half of it."""
    words = sentence.split()
    kept = rng.random(len(words)) >= rng.uniform(0.1, 0.4)
    yield " ".join(word for word, keep in zip(words, kept, strict=True) if keep) or sentence
    clauses = _CLAUSES.split(sentence)
    if len(clauses) > 1:
        turn = int(rng.integers(1, len(clauses)))
        yield ", ".join(clauses[turn:] + clauses[:turn])
    else:
        swapped = list(words)
        for i in rng.choice(len(words) - 1, size=max(len(words) // 5, 1), replace=False).tolist():
            swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
        yield " ".join(swapped)
    middle = len(words) // 2
    yield " ".join(words[:middle] if rng.random() < 0.5 else words[middle:])


def _matched(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of sentences that share more three-letter pieces with each other than with any other."""
    if not ours or not theirs:
        return
    pieces = [[_pieces(sentence) for sentence in side] for side in (ours, theirs)]
    overlap = np.array([[len(a & b) / len(a | b) for b in pieces[1]] for a in pieces[0]])
    for i, j in enumerate(overlap.argmax(axis=1).tolist()):
        if overlap[i, j] >= _LEAST_OVERLAP and overlap[:, j].argmax() == i:
            yield ours[i], theirs[j]


def _whole(text: str) -> list[str]:
    return [text[sentence.start : sentence.end] for sentence in sentences(text) if sentence.complete]


def _pieces(sentence: str) -> set[str]:
    padded = f"  {sentence.lower()} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}
