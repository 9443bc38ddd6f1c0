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

    def split(self, characters: Sequence[str]) -> dict[tuple[int, ...], str]:
        """The characters that the tokenizer cuts, by the ids that write them; the first id may hold more."""
        part, begun = "\N{REPLACEMENT CHARACTER}", dict[bytes, list[str]]()
        for each in characters:
            for length in range(1, len(data := each.encode())):
                begun.setdefault(data[:length], []).append(each)
        bytes_of, asked = self._tokenizer.pieces, dict[tuple[str, str], None]()
        for token, piece in enumerate(self.pieces):
            head = piece.rstrip(part)
            if head == piece or part in head:
                continue
            rest = b"" if bytes_of is None else bytes_of[token].removeprefix(head.encode())
            fitting = characters if bytes_of is None else begun.get(rest, ())
            asked |= dict.fromkeys((head, each) for each in fitting)
        rows = self._tokenizer.encode([f"{self._prefix}{head}{each}" for head, each in asked])
        found: dict[tuple[int, ...], str] = {}
        for (_, each), row in zip(asked, rows, strict=True):
            whole = [i for i, id_ in enumerate(row.ids) if part not in self.pieces[id_]]
            ids = row.ids[whole[-1] + 1 if whole else 0 :]
            if len(ids) < 2 or ids in found:
                continue
            if self.decode([ids])[0] == self.pieces[ids[0]].rstrip(part) + each:
                found[ids] = each
        return found
