"""Texts as matrices and numbers, and keys drawn for them, without words."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from dewmark.dew.form import FormKey, FormPairs


def drawn_forms(rng: np.random.Generator, count: int) -> tuple[FormKey, ...]:
    """What gives the h of ``count`` independent members."""
    return tuple(FormKey(*map(int, rng.integers(2**63, size=2))) for _ in range(count))


def matrix_of(F: np.ndarray, *, words: int = 60) -> SimpleNamespace:
    """A text with the matrix f(M) = F (d_T, d_C) and so many words whose h counts."""
    numbers = np.random.default_rng(words).integers(2**63, size=words).astype(np.uint64)
    form = FormPairs(numbers, np.arange(words), np.ones(words))
    return SimpleNamespace(F=np.asarray(F, dtype=np.float64), form=form)
