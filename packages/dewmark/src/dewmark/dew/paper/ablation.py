"""The four semantic modes of the ablation (appendix C.1), keyed and reproducible.

- ``both``: DEW itself.
- ``context_only``: token semantics removed; the key permutes the token rows.
- ``token_only``: context semantics removed; the context vector is a pseudo-random direction that depends only
  on the key and the context's token ids.
- ``neither``: both removed.

The pseudo-random direction is drawn in the context space and then projected like any other vector. Over keys
its projection is uniform on the unit sphere of R^n, as the ablation requires, and the folded table serves it
unchanged.
"""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.core.keys import Key, KeyStream
from dewmark.core.whitening import normalize_rows
from dewmark.encoders.contexts import Contexts
from dewmark.text.windows import ABSENT


def permuted_rows(key: Key, markable: I64, vocab_size: int) -> I64:
    """The row each token borrows: a keyed permutation of the markable ids; other ids keep their own."""
    source = np.arange(vocab_size, dtype=np.int64)
    source[markable] = markable[key.stream("dew/context_only").permutation(len(markable))]
    return source


class NoContexts(Contexts):
    """Stands for contexts that only a key can make; their vectors (N, 0) are empty."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) to nothing."""
        return np.zeros((len(windows), 0), dtype=np.float32)


class HashedContexts(Contexts):
    """A pseudo-random unit vector per window, from the key and the window's ids."""

    def __init__(self, secret: bytes, dim: int) -> None:
        self._secret = secret
        self.dim = dim

    def secret_array(self) -> NDArray[np.uint8]:
        """The secret, for a stored detector. As secret as the key."""
        return np.frombuffer(self._secret, dtype=np.uint8)

    def vectors(self, windows: I64) -> F32:
        """Windows (N, k) to pseudo-random unit rows (N, dim); empty windows give zero rows."""
        out = np.zeros((len(windows), self.dim))
        for i, window in enumerate(np.ascontiguousarray(windows, dtype="<i8")):
            if (window != ABSENT).any():
                seed = hmac.digest(self._secret, window.tobytes(), hashlib.sha256)
                out[i] = KeyStream(seed).normals(self.dim)
        return normalize_rows(out)
