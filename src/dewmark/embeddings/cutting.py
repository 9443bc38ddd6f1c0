"""Ids of short texts by a fast tokenizer of transformers, word by word: most words have been seen before.

Windows of a growing text share all their words but one, and every step of a decoding loop waits for their
ids. `Cutter` keeps the ids of words where the tokenizer cuts at spaces before all else, so that the ids of a
text are those of its words. It works on a copy of the tokenizer's backend, without the padding and with the
truncation of the model.
Boundary: texts in, rows of ids out (as bytes, `dewmark.embeddings.packing`), those that the tokenizer itself
gives with its special tokens.
"""

from __future__ import annotations

import copy
import json
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from dewmark.embeddings.packing import WIDTH, packed

__all__ = ["Cutter", "cutter_of"]

_LIMIT = 1 << 17  # words in memory, beside those learned beforehand
_CHARACTERS = 48  # of a word that is kept
# Pre-tokenizers that cut at every space, and normalisers that look at no more than one character or one run
# of marks with what carries them: none of them sees two words at once.
_CUT_AT_SPACES = frozenset({"BertPreTokenizer", "WhitespaceSplit", "Whitespace"})
_LOCAL = frozenset(
    {"BertNormalizer", "Precompiled", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"}
)


def cutter_of(tokenizer: Any, longest: int | None) -> Cutter | None:  # noqa: ANN401 - any of transformers
    """A cutter that gives at most ``longest`` ids a text, if the tokenizer is of the usual kind."""
    usual = (
        getattr(tokenizer, "is_fast", False)
        and tokenizer.padding_side == tokenizer.truncation_side == "right"
    )
    if not usual or longest is None or tokenizer.pad_token_id is None:
        return None
    return Cutter(tokenizer.backend_tokenizer, longest=longest)


class Cutter:
    """A tokenizer that gives rows of ids; used by one thread at a time."""

    def __init__(self, backend: Any, *, longest: int) -> None:  # noqa: ANN401 - a Tokenizer of tokenizers
        self._backend = copy.deepcopy(backend)
        self._backend.no_padding()
        self._backend.enable_truncation(longest)
        self._longest = longest
        self._words = _Words(backend)
        self._around = self._words.around() if _cuts_at_spaces(self._backend) else None

    def learn(self, texts: Iterable[str]) -> None:
        """Cut the words of texts beforehand, and never forget them."""
        if self._around is not None:
            self._words.learn(dict.fromkeys(chain.from_iterable(text.split(" ") for text in texts)))

    def rows(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text, special ones included."""
        if self._around is None:
            return self._whole(texts)
        try:
            return self._by_words(texts)
        except KeyError:
            return [self._row(text) for text in texts]

    def _by_words(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of texts that can be cut at their spaces; a `KeyError`, if one cannot."""
        assert self._around is not None
        (before, after), most, ids = self._around, self._longest * WIDTH, self._words.__getitem__
        rows = [b"".join((before, *map(ids, text.split(" ")), after)) for text in texts]
        if max(map(len, rows), default=0) > most:
            rows = [row if len(row) <= most else row[: most - len(after)] + after for row in rows]
        return rows

    def _row(self, text: str) -> bytes:
        try:
            return self._by_words([text])[0]
        except KeyError:
            return self._whole([text])[0]

    def _whole(self, texts: Sequence[str]) -> list[bytes]:
        return [packed(found.ids) for found in self._backend.encode_batch_fast(list(texts))]


class _Words(dict[str, bytes]):
    """The ids of words, cut when they are first asked for.

    A `KeyError` is a word that cannot be cut without what stands before it, or is too long to be kept.
    """

    def __init__(self, backend: Any) -> None:  # noqa: ANN401 - a Tokenizer of tokenizers
        self._backend = copy.deepcopy(backend)
        self._backend.no_padding()
        self._backend.no_truncation()
        self._learned: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        if not _stands_alone(word):
            raise KeyError
        if len(self) >= _LIMIT + len(self._learned):
            self.clear()
            self.update(self._learned)
        ids = self[word] = packed(self._backend.encode(word, add_special_tokens=False).ids)
        return ids

    def learn(self, words: Iterable[str]) -> None:
        """Cut words, never to forget them."""
        self._learned |= {word: self[word] for word in words if _stands_alone(word)}
        self.update(self._learned)

    def around(self) -> tuple[bytes, bytes] | None:
        """What the tokenizer puts before and after a text."""
        plain = self._backend.encode("a", add_special_tokens=False).ids
        full = self._backend.encode("a").ids
        for start in range(len(full) - len(plain) + 1):
            if plain and full[start : start + len(plain)] == plain:
                return packed(full[:start]), packed(full[start + len(plain) :])
        return None


def _stands_alone(word: str) -> bool:
    """Whether a word is cut alike after anything: it begins with nothing that may join, even with a space."""
    first = word[:1]
    joins = first != "" and (unicodedata.category(first)[0] == "M" or first in "\u200c\u200d")
    return not joins and len(word) <= _CHARACTERS


def _cuts_at_spaces(backend: Any) -> bool:  # noqa: ANN401 - a Tokenizer of tokenizers
    """Whether the ids of a text are those of its words, by what the tokenizer is made of."""
    parts = json.loads(backend.to_str())
    first = _steps(parts["pre_tokenizer"], "pretokenizers")[:1]
    normal = _steps(parts["normalizer"], "normalizers")
    spaced = any(" " in token["content"] for token in parts["added_tokens"])
    return bool(first) and first[0] in _CUT_AT_SPACES and set(normal) <= _LOCAL and not spaced


def _steps(part: dict[str, Any] | None, within: str) -> list[str]:
    """The kinds of which a part of a tokenizer is made, in their order."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [kind for each in part[within] for kind in _steps(each, within)]
    return [str(part["type"])]
