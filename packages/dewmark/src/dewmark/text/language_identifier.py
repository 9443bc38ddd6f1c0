"""The model that names a text's language: py3langid's naive Bayes over byte n-grams, read without its loops.

The model is an automaton over bytes and a table of log-probabilities. A state depends on the last few bytes
only (``depth``), so the states of all places in a text follow together, from that many bytes each. Both
tables are unpacked once into the cache and memory-mapped from then on: unpacking takes most of a second and
80 MB.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.config import cache_dir
from dewmark.errors import ArtifactError, StorageError
from dewmark.storage import load_bundle, save_bundle

_FOLDER = "languages"
_BREAK = b"\xff"  # occurs in no text; after it the automaton is in its first state again
# Written alike, and one language to an encoder: Arabic with Moroccan and Egyptian, Chinese with Wu and Yue.
_SAME = {"ary": "ar", "arz": "ar", "wuu": "zh", "yue": "zh", "nn": "no", "nb": "no"}


class LanguageIdentifier:
    """``moves`` (rows, 256) give the next state by row and byte, ``rows`` (states,) each state's row.

    ``features`` (states,) are what a visit counts towards, or -1; ``logs`` (features, classes) and ``prior``
    (classes,) the log-probabilities; ``classes`` the languages, of which some are one (``labels``).
    """

    def __init__(self, arrays: dict[str, NDArray[np.generic]], *, classes: list[str], depth: int) -> None:
        self._moves = np.asarray(arrays["moves"]).reshape(-1)
        self._starts = np.asarray(arrays["rows"]).astype(np.int64) << 8
        self._features = np.asarray(arrays["features"])
        self._logs = np.asarray(arrays["logs"])
        self._prior = np.asarray(arrays["prior"], dtype=np.float32)
        self._depth = depth
        merged = [_SAME.get(each, each) for each in classes]
        self.labels = list(dict.fromkeys(merged))
        self._label_of = np.array([self.labels.index(each) for each in merged])

    def probabilities(self, texts: Sequence[str]) -> F32:
        """The probability of each label in each text (texts, labels); all alike where nothing tells."""
        data = [_normalised(text) for text in texts]
        lengths = np.array([len(each) for each in data], dtype=np.int64)
        visited = self._features.take(self._states(np.frombuffer(_BREAK.join((*data, b"")), np.uint8)))
        told = np.flatnonzero(visited >= 0)
        first_codes = np.arange(len(texts) + 1, dtype=np.int32) * len(self._logs)
        of_text = np.repeat(first_codes[:-1], lengths + len(_BREAK))
        codes, counts = np.unique(of_text[told] + visited[told], return_counts=True)
        ends = np.searchsorted(codes, first_codes).tolist()
        features, weights = codes % len(self._logs), np.log1p(counts.astype(np.float32))
        scores = np.zeros((len(texts), len(self._prior)), dtype=np.float32)
        for row, start, end in zip(scores, ends, ends[1:], strict=False):
            if start < end:
                row += weights[start:end] @ self._logs.take(features[start:end], axis=0) + self._prior
        # keeps the probabilities honest at every length
        scores /= np.sqrt(np.maximum(lengths, 1)).astype(np.float32)[:, None]
        np.exp(scores - scores.max(axis=1, keepdims=True), out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        merged = np.arange(len(texts))[:, None] * len(self.labels) + self._label_of
        size = len(texts) * len(self.labels)
        sums = np.bincount(merged.ravel(), weights=scores.ravel(), minlength=size)
        return sums.reshape(len(texts), -1).astype(np.float32)

    def _states(self, data: NDArray[np.uint8]) -> I64:
        """The automaton's state after each byte (N,)."""
        states = np.zeros(len(data), dtype=np.int64)
        for back in range(min(self._depth, len(data)) - 1, -1, -1):
            # the first places have fewer bytes before them, and stay in the first state until then
            at = states[back:]
            at[:] = self._moves.take(self._starts.take(at) + data[: len(data) - back])
        return states


def _normalised(text: str) -> bytes:
    text = text.lower() if text.isupper() else text
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")


@functools.cache
def load_identifier() -> LanguageIdentifier:
    """The packaged model: unpacked tables from the cache, where the first use writes them."""
    from py3langid.langid import MODEL_DIR, MODEL_FILE

    packed = MODEL_DIR / MODEL_FILE
    about = packed.stat()
    folder = cache_dir() / _FOLDER / f"{about.st_size}-{about.st_mtime_ns}"
    try:
        bundle = load_bundle(folder, verify=False)
        return LanguageIdentifier(bundle.arrays, classes=bundle.meta["classes"], depth=bundle.meta["depth"])
    except (ArtifactError, KeyError):
        return _unpack(packed, folder)


def _unpack(packed: Path, folder: Path) -> LanguageIdentifier:
    from py3langid.modelio import load_model

    logs, prior, classes, moves, rows, features = load_model(packed)
    arrays = {
        "moves": np.asarray(moves).reshape(-1, 256),
        "rows": np.asarray(rows),
        "features": np.array(features, dtype=np.int32),
        "logs": logs,
        "prior": prior,
    }
    depth = _depth(arrays["moves"], arrays["rows"])
    try:
        save_bundle(folder, meta={"classes": list(classes), "depth": depth}, arrays=arrays)
    except StorageError:  # a cache that cannot be written costs time, nothing else
        return LanguageIdentifier(arrays, classes=list(classes), depth=depth)
    return load_identifier.__wrapped__()


def _depth(moves: NDArray[np.unsignedinteger], rows: NDArray[np.unsignedinteger]) -> int:
    """The most bytes that a state remembers: the length of the longest shortest path to one."""
    seen = np.zeros(len(rows), dtype=bool)
    reached, depth = np.zeros(1, dtype=np.int64), -1
    while len(reached):
        seen[reached] = True
        found = np.zeros_like(seen)
        found[moves[np.unique(rows[reached])]] = True
        reached = np.flatnonzero(found & ~seen)
        depth += 1
    return depth
