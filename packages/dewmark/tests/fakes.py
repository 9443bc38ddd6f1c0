"""Small stand-ins for unit tests: an encoder that needs no model, a scheme on the tiny fake host."""

from __future__ import annotations

import atexit
import functools
import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dewmark.encoders import lexicon
from dewmark.encoders.base import Encoder
from dewmark.encoders.lexicon_build import FormList, build_lexicon
from dewmark.encoders.word_vectors import WordStatistics, WordVectors

COMPOSED = {"context_encoding": "composed", "whiten_contexts": True}
"""`dew-paper` without an encoder at each step: whitened contexts, composed of token vectors."""


_FORMS = 1200


def replace_encoders(monkeypatch: pytest.MonkeyPatch, encoder: Encoder) -> None:
    """Let `load_encoder` return this encoder, whatever the name."""
    monkeypatch.setattr("dewmark.encoders.loaded", {})
    monkeypatch.setattr("dewmark.encoders.create", lambda name, **_: encoder)
    monkeypatch.setattr("dewmark.scheme.encoder_languages", lambda name: encoder.languages)
    load = lexicon.load_lexicon
    monkeypatch.setattr(
        "dewmark.dew.scheme.load_lexicon",
        lambda name, *, workspace: load(
            str(tiny_lexicon()) if name == "default" else name, workspace=workspace
        ),
    )


@functools.cache
def tiny_lexicon() -> Path:
    """A lexicon of the words that fake hosts write, with the vectors of the small encoder."""
    fake = pytest.importorskip("dewmark.hosts.fake", exc_type=ImportError)  # needs torch

    forms = tuple(itertools.islice(fake._words(), _FORMS))
    listed = FormList(forms, 0.1 / np.arange(2.0, 2.0 + len(forms)), ("en",) * len(forms))
    vectors = WordVectors(BagEncoder(), None)
    nothing = np.zeros(vectors.dim, dtype=np.float32)
    centre = vectors.vectors(forms).mean(axis=0)
    statistics = WordStatistics(centre, centre, centre, nothing[:, None][:0].reshape(0, vectors.dim))
    out = Path(tempfile.mkdtemp(prefix="dewmark-lexicon-"))
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    build_lexicon(listed, vectors, statistics, out=out, dim=vectors.dim)
    return out


class BagEncoder(Encoder):
    """A pseudo-random vector per character trigram, summed, plus a constant: like texts, like vectors."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.name, self.identity = "bag", f"bag:{dim}"
        self._dim = dim
        self.calls: list[int] = []

    @property
    def dim(self) -> int:
        return self._dim

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(len(texts))
        return np.array([self._one(text) for text in texts], dtype=np.float32).reshape(len(texts), self._dim)

    def _one(self, text: str) -> NDArray[np.float64]:
        padded = f" {text} "
        total = np.full(self._dim, 0.5)
        for i in range(len(padded) - 2):
            total += _trigram(padded[i : i + 3], self._dim) / np.sqrt(len(padded))
        return total


@functools.cache
def _trigram(text: str, dim: int) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.blake2b(b"a" + text.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).normal(size=dim)
