"""Radioactivity: whether a model was trained on marked text, from what it writes.

A student that learns from marked text learns some of the mark's preferences. No single text of it shows them,
so the test adds up many. A text is one public matrix M_i, and under a key with matrix W its evidence is
⟨M_i, W⟩ (`dewmark.dew.matrix`). For a corpus

    M = Σ_i M_i − (n / m) Σ_j B_j,    z = ⟨f(M), W⟩ / ‖f(M)‖,    p = 1 − Φ(z),

with the matrices B_j of m texts by a *control*, if there is one: the same model before it was trained, or any
model that has not seen the mark. f cuts singular values above `_LIMIT` times their root mean square, which
removes what all texts of a kind share.

**The null is exact.** If nothing that the student learned depends on the key, its texts do not, and z is
standard normal over keys whatever the texts repeat, as for a single text: no independence between texts is
assumed. What breaks it is the key reaching the texts in another way, above all marked text in the prompts:
a model that quotes marked text is not radioactive. Prompts must be written without the key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from dewmark.arrays import F64
from dewmark.dew.matrix import WordReading
from dewmark.dew.scheme import BoundDEW
from dewmark.errors import ConfigError, InputError
from dewmark.scheme import BoundScheme
from dewmark.types import Plain

_LIMIT = 1.75  # as for single texts
_ROUNDS = 30
_CHUNK = 256  # texts


@dataclass(frozen=True, slots=True)
class Radioactivity(Plain):
    """The test of a corpus. ``strength`` is z per root of a text: what one text shows on average."""

    texts: int
    control_texts: int
    z: float
    p_value: float
    strength: float


def radioactivity(bound: BoundScheme, texts: Sequence[str], *, control: Sequence[str] = ()) -> Radioactivity:
    """Test whether the texts, together, carry the bound key's mark; ``control`` are texts without it."""
    M = corpus_matrix(bound, texts, control=control)
    z = z_under(M, _words(bound).own.W)
    return Radioactivity(len(texts), len(control), z, float(ndtr(-z)), z / math.sqrt(len(texts)))


def corpus_matrix(bound: BoundScheme, texts: Sequence[str], *, control: Sequence[str] = ()) -> F64:
    """f(M) (d_T, d_C) of a corpus; it depends on no key."""
    if not texts:
        raise InputError("radioactivity needs at least one text, got 0")
    M = _sum(bound, texts)
    if control:
        M = M - (len(texts) / len(control)) * _sum(bound, control)
    left, values, right = np.linalg.svd(M, full_matrices=False)
    if not values[0] > 0.0:
        raise InputError(f"none of the {len(texts)} texts has a word that carries a mark: use longer texts")
    bounded = values
    for _ in range(_ROUNDS):
        bounded = np.minimum(values, _LIMIT * math.sqrt(float(np.mean(np.square(bounded)))))
    return np.asarray((left * bounded) @ right, dtype=np.float64)


def z_under(M: F64, W: Any) -> float:  # noqa: ANN401 - an array of any precision
    """⟨M, W⟩ / ‖M‖ for a key's matrix W (d_T, d_C)."""
    return float(np.vdot(M, np.asarray(W, dtype=np.float64)) / np.linalg.norm(M))


def _sum(bound: BoundScheme, texts: Sequence[str]) -> F64:
    words = _words(bound)
    total = np.zeros(words.own.W.shape)
    for start in range(0, len(texts), _CHUNK):
        chunk = list(texts[start : start + _CHUNK])
        for text in words.read(words.tokenize(chunk), words.tokenize([""] * len(chunk))):
            assert isinstance(text, WordReading)
            total += text.matrix.F
    return total


def _words(bound: BoundScheme) -> BoundDEW:
    if not isinstance(bound, BoundDEW) or bound.uses is not None:
        raise ConfigError(
            f"radioactivity needs texts as matrices and a plain key, which {bound.scheme.name} with this key "
            "has not: use dew with a plain key"
        )
    return bound
