"""The text of every token of a tokenizer as it appears after other text, with its spaces."""

from __future__ import annotations

from collections.abc import Sequence

from dewmark.workspace import Tokenizer

__all__ = ["Spelling"]


class Spelling:
    """The text of every token of a tokenizer as it appears after other text, with its spaces."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode(["a"])[0].ids[-1:]
        self._prefix = tokenizer.decode([self._anchor])[0]
        known = [[i] for i in range(min(tokenizer.size, vocab_size))]
        self.pieces = self.decode(known) + [""] * (vocab_size - len(known))
        """One text per id; "" for special and unknown ids, U+FFFD for part of a character."""

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """Token ids to text as it appears after other text."""
        # many tokenizers drop the space of the first token, so an anchor comes first
        texts = self._tokenizer.decode([[*self._anchor, *ids] for ids in batch])
        return [text[len(self._prefix) :] for text in texts]
