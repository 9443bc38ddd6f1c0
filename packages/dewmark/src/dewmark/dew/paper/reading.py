"""Reads texts as the host's tokens, each after the k tokens before it; no key is involved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dewmark.arrays import F16, I64
from dewmark.dew.reading import Reader, Reading, distinct_windows, pairs_of
from dewmark.encoders.contexts import Contexts
from dewmark.encoders.token_tables import rows_of
from dewmark.text.cleaning import tokenize_cleaned
from dewmark.text.windows import ABSENT, windows_of
from dewmark.workspace import HostInfo, Tokenized

__all__ = ["TokenReader"]


@dataclass(frozen=True)
class TokenReading(Reading):
    """``ids`` (V,) and ``windows`` (W, k) of the reading serve the modes that ignore meaning."""

    ids: I64
    windows: I64


class TokenReader(Reader):
    """Reads the host's tokens; ``token_rows`` (vocab, d_T) is Ê_T."""

    def __init__(self, host: HostInfo, token_rows: F16, contexts: Contexts, *, k: int) -> None:
        self.host = host
        self.token_rows = token_rows
        self.contexts = contexts
        self.k = k

    def tokenize(self, texts: Sequence[str]) -> list[Tokenized]:
        """Split texts into the host's tokens, without markup and disguises."""
        return tokenize_cleaned(self.host.tokenizer, texts)

    def read(self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]) -> TokenReading:
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
            token_rows=rows,
            contexts=self.contexts.summed(distinct),
            texts=pairs_of(token_index, window_index, [len(text.ids) for text in texts]),
            ids=ids,
            windows=distinct,
        )
