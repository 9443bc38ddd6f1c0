"""Text of ids by joining the texts of single ids, for tokenizers whose ids stand for bytes.

The backend takes several times as long, and the decoding loop of a mark that reads windows waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Pieces"]

_REPLACED = "\ufffd"  # what stands for bytes that are no character


class Pieces(dict[int, str]):
    """The texts of single ids; a `KeyError` is an id whose bytes are not whole characters.

    ``slow`` gives the text of any ids. That of ids which are whole characters each is theirs joined.
    """

    def __init__(self, slow: Callable[[Sequence[Sequence[int]]], list[str]]) -> None:
        self._slow = slow

    def __missing__(self, token: int) -> str:
        (text,) = self._slow([[token]])
        if _REPLACED in text:
            raise KeyError
        self[int(token)] = text
        return text

    def of_all(self, size: int) -> list[str | None]:
        """The text of every id below ``size``; None, where its bytes are not whole characters."""
        texts = self._slow([[token] for token in range(size)])
        return [None if _REPLACED in text else text for text in texts]

    def decode(self, batch: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids."""
        try:
            return self._joined(batch)
        except KeyError:
            return [self._decode_one(ids) for ids in batch]

    def _joined(self, batch: Sequence[Sequence[int]]) -> list[str]:
        piece = self.__getitem__
        return ["".join(map(piece, ids)) for ids in batch]

    def _decode_one(self, ids: Sequence[int]) -> str:
        try:
            return self._joined([ids])[0]
        except KeyError:
            return self._slow([ids])[0]
