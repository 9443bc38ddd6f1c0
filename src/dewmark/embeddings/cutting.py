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
        self._memo: dict[str, _Ids | None] = {}  # None: not to be cut from what stands before it

    def rows(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """The ids of each text, special ones included."""
        if self._around is None:
            return self._whole(texts)
        cut = [text.split(" ") for text in texts]
        self._learn(cut)
        get, (before, after) = self._memo.get, self._around
        room = self._longest - len(before) - len(after)
        rows: list[Sequence[int]] = []
        whole = []
        for place, words in enumerate(cut):
            row = list(before)
            for word in words:
                known = get(word)
                if known is None:
                    whole.append(place)
                    break
                row += known
            del row[len(before) + room :]
            row += after
            rows.append(row)
        for place, found in zip(whole, self._whole([texts[i] for i in whole]), strict=True):
            rows[place] = found
        return rows

    def _learn(self, cut: Sequence[Sequence[str]]) -> None:
        """Cut the words that are new."""
        memo = self._memo
        new = list(dict.fromkeys(word for words in cut for word in words if word not in memo))
        if not new:
            return
        if len(memo) + len(new) > _LIMIT:
            memo.clear()
            new = list(dict.fromkeys(word for words in cut for word in words))
        for word, found in zip(
            new, self._words.encode_batch_fast(new, add_special_tokens=False), strict=True
        ):
            alone = len(word) <= _CHARACTERS and not (word and _leans(word[0]))
            memo[word] = tuple(found.ids) if alone else None

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
