"""The text of every token of a tokenizer as it appears after other text, with its spaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

    def split(self, characters: Iterable[str]) -> dict[tuple[int, ...], str]:
        """The characters that the tokenizer cuts, by the ids that write them; the first id may hold more."""
        part = "\N{REPLACEMENT CHARACTER}"
        heads = {piece.rstrip(part) for piece in self.pieces if piece.endswith(part)}
        heads = {head for head in heads if part not in head}
        found: dict[tuple[int, ...], str] = {}
        asked = [(head, each) for each in characters for head in heads]
        tokens = self._tokenizer.encode([f"{self._prefix}{head}{each}" for head, each in asked])
        for (_, each), token in zip(asked, tokens, strict=True):
            whole = [i for i, id_ in enumerate(token.ids) if part not in self.pieces[id_]]
            ids = token.ids[whole[-1] + 1 if whole else 0 :]
            if len(ids) > 1 and self.decode([ids])[0] == self.pieces[ids[0]].rstrip(part) + each:
                found[ids] = each
        return found
