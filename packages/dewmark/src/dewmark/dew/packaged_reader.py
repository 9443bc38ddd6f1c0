"""The reader that comes with the package: it predicts each word from the words before it alone.

A small causal network over rows of the lexicon predicts μ_i = E[t_i | words before], the mean vector of the
next word; `dewmark.dew.reading` says what detection does with it. It knows no tokenizer and no host, so it
reads texts of any model, in all languages of the lexicon, whose vectors are shared between languages.

    x_j = t_j A + e(word j)                                     e: a table of the most frequent words
    h_i = x_(i−1) + mean(x_0 … x_(i−1)) G
    h  ← h + gelu(n(h_i) U + n(h_(i−δ)) V + b) O    for δ = 1, 2, 4, 8;    n scales a row to length √width
    μ_i = n(h_i) R + r

It is trained on what language models expected in texts that they wrote (`dewmark_lab.training.word_reader`).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.encoders.lexicon import Lexicon
from dewmark.storage import load_bundle

__all__ = ["STEPS", "PackagedReader", "load_packaged_reader"]

STEPS = (1, 2, 4, 8)
"""δ of the layers."""
_TEXTS_KEPT = 64  # predictions of the last texts, for detectors of several keys; 2 MB of a long one


class PackagedReader:
    """The network over one lexicon; safe to share between threads.

    ``arrays`` are ``rows`` (N,) of the words in the ``table`` (N, D) int8 with ``scales`` (D,), the network's
    weights by name, ``unlisted`` (D,) for words that are not in the table, and ``start`` (D,), which stands
    for the word before the first.
    """

    name = "packaged"

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]], lexicon: Lexicon, *, identity: str) -> None:
        self.identity, self._lexicon = identity, lexicon
        self._place = np.zeros(len(lexicon) + 1, dtype=np.int64)
        self._place[np.asarray(arrays["rows"])] = np.arange(1, len(arrays["rows"]) + 1)
        self._kept = functools.lru_cache(maxsize=_TEXTS_KEPT)(self._means)
        self._table = np.asarray(arrays["table"])
        self._weights = {
            name: np.asarray(array, dtype=np.float32)
            for name, array in arrays.items()
            if name not in ("rows", "table")
        }

    def means(self, rows: I64) -> F32:
        """μ (L, d_T) at each word of a text, given as rows of the lexicon (L,); it is kept for other keys."""
        return self._kept(np.asarray(rows, dtype=np.int64).tobytes())

    def _means(self, text: bytes) -> F32:
        rows, w = np.frombuffer(text, dtype=np.int64), self._weights
        x = self._lexicon.tokens(rows) @ w["lexicon"]
        place = self._place[rows]
        listed = place > 0
        x[listed] += self._table[place[listed] - 1] * w["scales"]
        x[~listed] += w["unlisted"]
        before = np.concatenate((w["start"][None], x[:-1]))
        counts = np.arange(1, len(rows) + 1, dtype=np.float32)[:, None]
        h: F32 = before + np.asarray(np.cumsum(before, axis=0) / counts, dtype=np.float32) @ w["topic"]
        for i, step in enumerate(STEPS):
            n = _scaled(h)
            inner = n @ w[f"own{i}"] + w[f"bias{i}"]
            inner[step:] += n[:-step] @ w[f"earlier{i}"]
            gelu = inner / (1.0 + np.exp(-1.702 * inner))  # x σ(1.702 x), which is nearly x Φ(x)
            h = h + np.asarray(gelu @ w[f"out{i}"])
        return np.asarray(_scaled(h) @ w["result"] + w["offset"])


def _scaled(h: F32) -> F32:
    """Rows of length √width."""
    return np.asarray(h / np.sqrt(np.mean(np.square(h), axis=1, keepdims=True) + 1e-6))


def load_packaged_reader(lexicon: Lexicon, folder: Path | None = None) -> PackagedReader | None:
    """The reader in a folder, or the one that comes with the package; None if it reads another lexicon."""
    path = folder or Path(str(resources.files("dewmark") / "data" / "reader"))
    if not (path / "bundle.json").exists():
        return None
    return _load(path, lexicon)


@functools.lru_cache(maxsize=4)
def _load(folder: Path, lexicon: Lexicon) -> PackagedReader | None:
    bundle = load_bundle(folder)
    if bundle.meta["lexicon"] != lexicon.identity:
        return None
    sums = json.dumps(bundle.meta, sort_keys=True) + (folder / "bundle.json").read_text("utf-8")
    return PackagedReader(
        bundle.arrays, lexicon, identity=f"packaged {hashlib.sha256(sums.encode()).hexdigest()[:16]}"
    )
