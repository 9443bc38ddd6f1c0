"""Small stand-ins for unit tests: an encoder that needs no model, a scheme on the tiny fake host."""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dewmark.encoders import lexicon
from dewmark.encoders.base import Encoder

COMPOSED = {"context_encoding": "composed", "whiten_contexts": True}
"""`dew-paper` without an encoder at each step: whitened contexts, composed of token vectors."""


def replace_encoders(monkeypatch: pytest.MonkeyPatch, encoder: Encoder) -> None:
    """Let `load_encoder` return this encoder, whatever the name."""
    monkeypatch.setattr("dewmark.encoders.loaded", {})
    monkeypatch.setattr("dewmark.encoders.create", lambda name, **_: encoder)
    monkeypatch.setattr("dewmark.scheme.encoder_languages", lambda name: encoder.languages)
    monkeypatch.setattr("dewmark.dew.scheme._READERS", weakref.WeakValueDictionary())  # of other lexicons
    load = lexicon.load_lexicon
    monkeypatch.setattr(
        "dewmark.dew.scheme.load_lexicon",
        lambda name, *, workspace: load(
            str(tiny_lexicon()) if name == "default" else name, workspace=workspace
        ),
    )


def tiny_lexicon() -> Path:
    """A lexicon of the words that fake hosts write, with the vectors of the small encoder.

    `dewmark_lab.lexicon_build.build_lexicon` wrote it with `BagEncoder`, and nothing removed but the mean.
    """
    return Path(__file__).parent / "data" / "tiny_lexicon"


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
