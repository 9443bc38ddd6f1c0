"""Ids of short texts by a fast tokenizer of transformers, word by word: most words have been seen before.

Windows of a growing text share all their words but one, and every step of a decoding loop waits for their
ids. `Cutter` keeps the ids of words where the tokenizer cuts at spaces before all else, so that the ids of a
text are those of its words. It works on a copy of the tokenizer's backend, without the padding and with the
truncation of the model.
Boundary: texts in, rows of ids out, as the tokenizer itself gives them with its special tokens.
"""

from __future__ import annotations

import copy
import json
import unicodedata
from collections.abc import Sequence
from itertools import chain
from typing import Any

__all__ = ["Cutter", "cutter_of"]

_LIMIT = 1 << 17  # words in memory
_CHARACTERS = 48  # of a word that is kept
# Pre-tokenizers that cut at every space, and normalisers that look at no more than one character or one run
# of marks with what carries them: none of them sees two words at once.
_CUT_AT_SPACES = frozenset({"BertPreTokenizer", "WhitespaceSplit", "Whitespace"})
_LOCAL = frozenset(
    {"BertNormalizer", "Precompiled", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"}
)

_Ids = tuple[int, ...]


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
        self._words = copy.deepcopy(backend)
        self._words.no_padding()
        self._words.no_truncation()
        self._longest = longest
        self._around = self._special_ids() if _cuts_at_spaces(self._backend) else None
        self._memo: dict[str, _Ids] = {}
        self._joined: set[str] = set()  # words not to be cut from what stands before them

    def rows(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """The ids of each text, special ones included."""
        if self._around is None:
            return self._whole(texts)
        cut = [text.split(" ") for text in texts]
        rows = [self._known(words) for words in cut]
        if not all(rows):
            self._learn([words for words, row in zip(cut, rows, strict=True) if not row])
            rows = [row or self._known(words) for words, row in zip(cut, rows, strict=True)]
            rest = iter(self._whole([text for text, row in zip(texts, rows, strict=True) if not row]))
            return [row or next(rest) for row in rows]
        return rows

    def _known(self, words: Sequence[str]) -> Sequence[int]:
        """The ids of a text of known words, at least one; nothing, if there are others."""
        assert self._around is not None
        before, after = self._around
        try:
            row = [*before, *chain.from_iterable(map(self._memo.__getitem__, words)), *after]
        except KeyError:
            return ()
        if len(row) > self._longest:
            row[self._longest - len(after) :] = after
        return row

    def _learn(self, cut: Sequence[Sequence[str]]) -> None:
        """Cut the words that are new."""
        words = dict.fromkeys(chain.from_iterable(cut))
        if len(self._memo) + len(words) > _LIMIT:
            self._memo.clear()
            self._joined.clear()
        new = [word for word in words if word not in self._memo and word not in self._joined]
        for word, found in zip(
            new, self._words.encode_batch_fast(new, add_special_tokens=False), strict=True
        ):
            if len(word) <= _CHARACTERS and not (word and _leans(word[0])):
                self._memo[word] = tuple(found.ids)
            else:
                self._joined.add(word)

    def _whole(self, texts: Sequence[str]) -> list[Sequence[int]]:
        return [found.ids for found in self._backend.encode_batch_fast(list(texts))] if texts else []

    def _special_ids(self) -> tuple[_Ids, _Ids] | None:
        """What the tokenizer puts before and after a text."""
        plain = self._words.encode("a", add_special_tokens=False).ids
        full = self._words.encode("a").ids
        for start in range(len(full) - len(plain) + 1):
            if plain and full[start : start + len(plain)] == plain:
                return tuple(full[:start]), tuple(full[start + len(plain) :])
        return None


def _leans(character: str) -> bool:
    """Whether a character may join with what stands before it, even a space."""
    return unicodedata.category(character)[0] == "M" or character in "\u200c\u200d"


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
