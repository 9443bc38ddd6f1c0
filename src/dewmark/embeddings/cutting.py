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
from collections.abc import Sequence
from typing import Any

from dewmark.embeddings.joining import UNKNOWN, Around, WordCutter, Words
from dewmark.embeddings.packing import WIDTH, packed

__all__ = ["Cutter", "cutter_of"]

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


class Cutter(WordCutter):
    """A tokenizer that gives rows of ids; used by one thread at a time."""

    def __init__(self, backend: Any, *, longest: int) -> None:  # noqa: ANN401 - a Tokenizer of tokenizers
        self._plain = copy.deepcopy(backend)
        self._plain.no_padding()
        self._plain.no_truncation()
        self._backend = copy.deepcopy(self._plain)
        self._backend.enable_truncation(longest)
        self._longest = longest
        super().__init__(_around(self._plain) if _cuts_at_spaces(backend) else None, Words(self._cut))

    def rows(self, texts: Sequence[str]) -> list[bytes]:
        """The ids of each text, special ones included."""
        if self.around is None or not texts:
            return self._whole(texts)
        rows = self.many(texts, self.around)
        return [
            self._whole([text])[0] if row == UNKNOWN else row for text, row in zip(texts, rows, strict=True)
        ]

    def finished(self, rows: list[bytes]) -> list[bytes]:
        """Rows, none of them longer than the encoder takes."""
        assert self.around is not None
        after, most = self.around[1], self._longest * WIDTH
        if max(map(len, rows)) <= most:
            return rows
        return [row if len(row) <= most else row[: most - len(after)] + after for row in rows]

    def _whole(self, texts: Sequence[str]) -> list[bytes]:
        return [packed(found.ids) for found in self._backend.encode_batch_fast(list(texts))]

    def _cut(self, words: Sequence[str]) -> list[bytes]:
        """The ids of words; `UNKNOWN` for those that cannot be cut without what stands before."""
        if len(words) == 1:  # less work before and after it than a batch
            found = [self._plain.encode(words[0], add_special_tokens=False)]
        else:
            found = self._plain.encode_batch_fast(list(words), add_special_tokens=False)
        return [
            packed(each.ids) if _stands_alone(word) else UNKNOWN
            for word, each in zip(words, found, strict=True)
        ]


def _around(backend: Any) -> Around | None:  # noqa: ANN401 - a Tokenizer of tokenizers
    """What the tokenizer puts before and after a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a").ids
    for start in range(len(full) - len(plain) + 1):
        if plain and full[start : start + len(plain)] == plain:
            return packed(full[:start]), packed(full[start + len(plain) :])
    return None


def _stands_alone(word: str) -> bool:
    """Whether a word is cut alike after anything: it begins with nothing that may join, even with a space."""
    first = word[:1]
    joins = first != "" and (unicodedata.category(first)[0] == "M" or first in "\u200c\u200d")
    return not joins


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
