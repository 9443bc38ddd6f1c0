"""Reads texts as the host's tokens, each after the k tokens before it; no key is involved."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32, I64
from dewmark.core.keys import KeyStream
from dewmark.core.whitening import normalize_rows
from dewmark.dew.reading import Reading, distinct_windows, pairs_of
from dewmark.encoders.contexts import Contexts
from dewmark.encoders.token_tables import rows_of
from dewmark.text.cleaning import tokenize_cleaned
from dewmark.text.windows import ABSENT, windows_of
from dewmark.workspace import HostInfo, Texts, Tokenized

__all__ = ["TokenReader"]


@dataclass(frozen=True)
class TokenReading(Reading):
    """``ids`` (V,) and ``windows`` (W, k) of the reading serve the modes that ignore meaning."""

    ids: I64
    windows: I64


class TokenReader:
    """Reads the host's tokens; ``token_rows`` (vocab, d_T) is Ê_T."""

    def __init__(self, host: HostInfo, token_rows: F16, contexts: Contexts, *, k: int) -> None:
        self.host, self.token_rows, self.contexts, self.k = host, token_rows, contexts, k

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into the host's tokens, without markup and disguises."""
        return tokenize_cleaned(self.host.tokenizer, texts)

    def read(self, texts: Texts, prompts: Texts) -> TokenReading:
        """Read texts, each after its prompt."""
        k = self.k
        windows, scored = [np.zeros((0, k), dtype=np.int64)], [np.zeros(0, dtype=bool)]
        for text, prompt in zip(texts, prompts, strict=True):
            before = prompt.ids[-k:]
            mine = windows_of(before + text.ids, k=k, host=self.host)[len(before) :]
            usable = (mine != ABSENT).any(axis=1)
            if not before:  # without the prompt, the first k contexts are not those at marking time
                usable[:k] = False
            windows.append(mine)
            scored.append(usable)
        tokens = np.array([i for text in texts for i in text.ids], dtype=np.int64)
        known = tokens < self.host.vocab_size
        ids, token_index = np.unique(np.where(known, tokens, 0), return_inverse=True)
        rows = rows_of(self.token_rows, ids)
        usable = np.concatenate(scored) & known & np.any(rows != 0, axis=1)[token_index]
        distinct, found = distinct_windows(np.concatenate(windows)[usable], self.host.vocab_size)
        window_index = np.full(len(tokens), -1, dtype=np.int64)
        window_index[usable] = found
        return TokenReading(
            carrying=(),
            token_rows=rows,
            context_rows=self.contexts.vectors(distinct),
            texts=pairs_of(token_index, window_index, [len(text.ids) for text in texts]),
            ids=ids,
            windows=distinct,
        )


# Contexts of the modes that ignore their meaning


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
        self._secret, self.dim = secret, dim

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
