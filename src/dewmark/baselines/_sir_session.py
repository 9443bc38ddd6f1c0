"""How SIR and X-SIR mark: each row's bias over the vocabulary stays until ten more words are whole.

A row's text is read piece by piece as the host writes it, the prompt included; rows whose context has changed
are encoded together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dewmark.baselines._session import TokenSession
from dewmark.baselines._sir_chunks import GrowingWords

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dewmark.baselines._sir import BoundSIR

__all__ = ["ChunkSession"]

_UNDECODED = "\N{REPLACEMENT CHARACTER}"
_UTF8 = 4  # bytes that a character has at most


class ChunkSession(TokenSession):
    """Keeps each row's words and its bias (vocab,), 0 before its first whole chunk."""

    def __init__(
        self, bound: BoundSIR, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> None:
        super().__init__(bound, prompt_ids, attention_mask)
        self._bound = bound
        self._rows = [_Row(bound) for _ in range(len(prompt_ids))]
        self._read = 0  # ids of each row that were read
        self._bias = torch.zeros((len(prompt_ids), bound.host.vocab_size))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits, same shape."""
        self._ids = input_ids
        return super().__call__(input_ids, scores)

    def mark(self, windows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) with δ s added to every token that stands for text."""
        self._bias = self._bias.to(scores)
        self._follow()
        return scores + self._bias

    def _follow(self) -> None:
        """Read the ids that are new, and renew the bias of rows whose context is another one now."""
        fresh = self._ids[:, self._read :].tolist()
        padding = [0] * len(self._rows)
        if self._read == 0:
            padding = self._padding.flatten().tolist()
        self._read = self._ids.shape[1]
        changed = [
            i
            for i, (row, ids, skip) in enumerate(zip(self._rows, fresh, padding, strict=True))
            if row.push(ids[skip:])
        ]
        if not changed:
            return
        bound = self._bound
        signs = bound.transform.signs([self._rows[i].context() for i in changed])
        bias = bound.scheme.delta * torch.from_numpy(signs[:, bound.places] * bound.flips).to(self._bias)
        self._bias[changed] = bias * self._markable


class _Row:
    """One text that grows token by token; special tokens are no text."""

    def __init__(self, bound: BoundSIR) -> None:
        self._spelling = bound.spelling
        self._scheme = bound.scheme
        self._words = GrowingWords()
        self._pending: list[int] = []  # bytes of one character wait for each other

    def push(self, ids: Sequence[int]) -> bool:
        """The text goes on; says whether the context of the next token is a new one."""
        before = self._words.chunks(self._scheme.chunk)
        for token in ids:
            self._words.append(self._text(token))
        return self._words.chunks(self._scheme.chunk) > before

    def context(self) -> str:
        """The context of the next token."""
        return self._words.context(size=self._scheme.chunk, reach=self._scheme.reach)

    def _text(self, token: int) -> str:
        piece = self._spelling.pieces[token]
        if not self._pending and _UNDECODED not in piece:
            return piece
        self._pending.append(token)
        piece = self._spelling.decode([self._pending])[0]
        if piece.endswith(_UNDECODED) and len(self._pending) < _UTF8:
            return ""
        self._pending = []
        return piece
