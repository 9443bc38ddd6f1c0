"""The expected vector of each unit, μ_i = E[t | the text before], from a language model.

The efficient score of a small preference between candidates subtracts from each unit its expected vector,
M = Σ_i w_i (t_i − μ_i) c_iᵀ. A place with one possible word has t_i ≈ μ_i and weighs nothing,
so no threshold on the entropy is needed. μ_i is the mean of the candidates' vectors; the probability that
they leave to other words goes to the text's mean unit t̄, so a model that knows nothing of a text, or of its
language, leaves the test as it is without a model. μ_i is a function of the text, so z is still N(0, 1) over
keys.

The packaged reader gives μ_i itself, up to the text's own mean: M = Σ_i w_i (t_i − μ_i − δ) c_iᵀ, where δ is
the mean of t_i − μ_i over the text.

Boundary: candidate words with probabilities in (`dewmark.workspace.ExpectedWords`), rows of vectors out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dewmark.arrays import F32, I64
from dewmark.dew.packaged_reader import PackagedReader, load_packaged_reader
from dewmark.dew.reading import LexiconReader, Pairs, Reading
from dewmark.errors import ConfigError
from dewmark.workspace import NO_READER, Expectations, ExpectedWords, ReaderFolder, Texts, Tokenized

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["READ", "read"]

Vectors = Callable[[Sequence[str]], F32]

PROMPT = 64
"""The last words of a prompt, which the packaged reader reads before a text."""
READ = 4096
"""The words of a text that the packaged reader reads; what follows is compared with δ alone."""


def read(reader: LexiconReader, expectations: Expectations | None, texts: Texts, prompts: Texts) -> Reading:
    """Read texts, each after its prompt, with what the reader expected in them.

    That is a language model, or without one (None) the reader that comes with the package.
    """
    reading, packaged = reader.read(texts, prompts), reader.packaged
    if isinstance(expectations, ReaderFolder):
        packaged = load_packaged_reader(reader.lexicon, expectations.folder)
        if packaged is None:
            raise ConfigError(f"the reader {expectations.name} is for another lexicon: train it anew")
    elif expectations is not None:
        if expectations.name == NO_READER.name:
            return reading
        expected = expectations.read([text.text for text in texts], [prompt.text for prompt in prompts])
        return add_expectations(reading, texts, expected, reader.vectors)
    return reading if packaged is None else add_means(reading, reader, packaged, texts, prompts)


def add_means(
    reading: Reading, reader: LexiconReader, packaged: PackagedReader, texts: Texts, prompts: Texts
) -> Reading:
    """The reading of ``texts``, and behind its units' rows μ + δ of each pair, by the packaged reader."""
    blocks, made, size = [reading.token_rows], [], len(reading.token_rows)
    for pairs, text, prompt in zip(reading.texts, texts, prompts, strict=True):
        n = len(pairs.tokens)
        scored = np.flatnonzero(pairs.positions >= 0)
        before = prompt.forms[-PROMPT:]
        rows = reader.lexicon.listed_rows((*before, *text.forms[:READ]))
        scored = scored[scored < READ]
        means = packaged.means(rows)[len(before) :][scored]
        own = pairs.positions[scored]
        sums = np.zeros((n, reading.token_rows.shape[1]), dtype=np.float32)
        np.add.at(sums, own, means)
        sums /= np.maximum(np.bincount(own, minlength=n), 1)[:, None].astype(np.float32)
        if n:
            share = (pairs.weights / pairs.weights.sum()).astype(np.float32)
            sums += share @ (reading.token_rows[pairs.tokens] - sums)
        blocks.append(sums)
        none = np.zeros(n, dtype=np.float32)
        made.append(dataclasses.replace(pairs, expected=size + np.arange(n), unforeseen=none))
        size += n
    return dataclasses.replace(reading, token_rows=np.concatenate(blocks), texts=tuple(made))


def add_expectations(
    reading: Reading, texts: Texts, expected: Sequence[ExpectedWords], vectors: Vectors
) -> Reading:
    """The reading of ``texts``, and behind its units' rows one row for each pair that has a place.

    ``vectors`` gives ê_T of word forms. A pair that occurs several times gets the mean of its places, which
    leaves the text's matrix M what it is when every occurrence has its own.
    """
    known: dict[str, int] = {}
    for words in expected:
        for form in words.forms:
            known.setdefault(form, len(known))
    rows = vectors(list(known))
    marks = np.any(rows != 0.0, axis=1).astype(np.float32)  # a word without a vector carries no mark
    nothing = np.zeros((1, reading.token_rows.shape[1]), dtype=np.float32)
    blocks, made = [reading.token_rows, nothing], []
    size = len(reading.token_rows) + 1
    for pairs, text, words in zip(reading.texts, texts, expected, strict=True):
        forms = np.fromiter((known[form] for form in words.forms), dtype=np.int64, count=len(words.forms))
        likely, chosen = _probabilities(pairs, text, words)
        blocks.append(np.asarray(likely @ rows[forms], dtype=np.float32))
        index = np.full(len(pairs.tokens), len(reading.token_rows), dtype=np.int64)
        index[chosen] = size + np.arange(len(chosen))
        unforeseen = np.ones(len(pairs.tokens), dtype=np.float32)
        unforeseen[chosen] = np.maximum(1.0 - likely @ marks[forms], 0.0)
        made.append(dataclasses.replace(pairs, expected=index, unforeseen=unforeseen))
        size += len(chosen)
    return dataclasses.replace(reading, token_rows=np.concatenate(blocks), texts=tuple(made))


def _probabilities(pairs: Pairs, text: Tokenized, words: ExpectedWords) -> tuple[csr_matrix, I64]:
    """Probabilities (E, forms) in the places of E pairs that have one, and which pairs they are, (E,)."""
    from scipy.sparse import csr_matrix  # slow to import, and detection without a reader does without

    starts = np.array([start for start, _ in text.offsets], dtype=np.int64)
    place = np.searchsorted(words.starts, starts)
    known = np.append(words.starts, -1)[place] == starts
    scored = np.flatnonzero(known & (pairs.positions >= 0))
    chosen, own = np.unique(pairs.positions[scored], return_inverse=True)
    shape = (len(words.starts), len(words.forms))
    likely = csr_matrix((words.probabilities, words.index, words.bounds), shape=shape)
    share = (1.0 / np.bincount(own, minlength=len(chosen))[own]).astype(np.float32)
    each = csr_matrix((share, (own, place[scored])), shape=(len(chosen), shape[0]))
    return each @ likely, chosen
