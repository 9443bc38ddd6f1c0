"""Windows of token ids, and the ids that an encoder's tokenizer gives to their texts.

A window is the k token ids before a position; `ABSENT` stands for positions before the text and for special
tokens. The ``window`` contexts of DEW encode the text of every window, and each decoding step waits for the
encoder's ids of these texts. Consecutive windows share all words but one, so ids are cached by word:

* `WordTokenizer` tokenizes texts word by word. It joins many texts into one, with a separator word that no
  text contains, splits at spaces, looks up each word, and joins the ids: a few calls in all. One text at a
  time would take several times as long.
* `WindowTokenizer` tokenizes windows. If each token but the first begins with a space, its ids do not depend
  on its neighbours and no text is needed. Other windows go through their texts, and the few with part of a
  character, or with a word that cannot be tokenized on its own, are tokenized one by one.

Every Python object that is touched between two decoding steps takes time. So the ids of a word are the bytes
of an int32 array: a *row*, the ids of one text, is built by one join, and a batch by another.
"""

from __future__ import annotations

import copy
import json
import unicodedata
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from dewmark.arrays import I64
from dewmark.errors import InputError
from dewmark.workspace import HostInfo, Tokenizer

if TYPE_CHECKING:
    import torch

__all__ = [
    "ABSENT",
    "FastWordTokenizer",
    "WindowTokenizer",
    "WordIds",
    "WordTokenizer",
    "fast_word_tokenizer",
    "ids_and_mask",
    "pack_ids",
    "pad_rows",
    "window_texts",
    "window_tokenizer",
    "windows_of",
]

ABSENT = -1

_INT = "i"
_WIDTH = array(_INT).itemsize  # bytes per id
_NO_ID = b"\xff"  # every byte of -1

SpecialIds = tuple[bytes, bytes]
"""The ids that a tokenizer puts before and after those of a text."""

Windows = Sequence[Sequence[int]]

# No text contains half of a surrogate pair.
_SEPARATOR_WORD, _PARTIAL = "\ud800", "\ud801"
_SEPARATOR = f" {_SEPARATOR_WORD} "

_CACHED_WORDS = 1 << 17  # besides the permanent ones
_CACHED_CHARACTERS = 48  # longer words are not cached
_PRELOADED_TOKENS = 1 << 16  # tokens whose words are cached beforehand: the frequent ones come first


def windows_of(ids: Sequence[int], *, k: int, host: HostInfo) -> I64:
    """The window before each position of ``ids``: (len(ids), k), oldest first, padded with `ABSENT`."""
    special, size = host.tokenizer.special_ids, host.vocab_size
    plain = np.array([ABSENT if i in special or i >= size else i for i in ids], dtype=np.int64)
    padded = np.concatenate((np.full(k, ABSENT, dtype=np.int64), plain))
    return np.lib.stride_tricks.sliding_window_view(padded, k)[: len(ids)]


def window_texts(tokenizer: Tokenizer, windows: Windows) -> list[str]:
    """The text of each window."""
    return tokenizer.decode([[token for token in window if token >= 0] for window in windows])


def pack_ids(ids: Iterable[int]) -> bytes:
    """Ids as a row."""
    return array(_INT, ids).tobytes()


# An id below 2²⁴ has a zero byte, these have none: neither occurs inside a row of ids.
_END_OF_ROW, _UNKNOWN = pack_ids([-2]), pack_ids([-3])


def pad_rows(rows: Sequence[bytes], *, multiple: int = 1) -> torch.Tensor:
    """Rows as one batch of ids (N, T), int32, padded with -1; T is a multiple of ``multiple``."""
    import torch

    longest, step = max(map(len, rows)) or _WIDTH, _WIDTH * multiple
    width = -(-longest // step) * step
    joined = bytearray().join([row.ljust(width, _NO_ID) for row in rows])
    return torch.frombuffer(joined, dtype=torch.int32).view(len(rows), -1)


def ids_and_mask(batch: torch.Tensor, *, fill: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, (N, T) each, int64, of a padded batch (N, T); ``fill`` is the padding id."""
    present = batch >= 0
    return batch.long().masked_fill_(~present, fill), present.long()


class WordIds(dict[str, bytes]):
    """A cache of the ids of words, by ``tokenize``; `_UNKNOWN` for a word with part of a character."""

    def __init__(self, tokenize: Callable[[Sequence[str]], list[bytes]]) -> None:
        self._tokenize = tokenize
        self._permanent: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        if _PARTIAL in word:
            return _UNKNOWN
        (ids,) = self._tokenize([word])
        if len(word) <= _CACHED_CHARACTERS:
            if len(self) >= _CACHED_WORDS + len(self._permanent):
                self.clear()
                self.update(self._permanent)
            self[word] = ids
        return ids

    def preload(self, words: Iterable[str]) -> None:
        """Tokenize words and cache them permanently."""
        new = [word for word in words if word not in self._permanent]
        self.pin(dict(zip(new, self._tokenize(new), strict=True)))

    def pin(self, known: dict[str, bytes]) -> None:
        """Cache the ids of words permanently."""
        self._permanent |= known
        self.update(known)


class WordTokenizer(ABC):
    """An encoder's tokenizer, applied word by word; used by one thread at a time.

    ``special`` is None if the tokenizer does not work word by word. The ids of a word are `_UNKNOWN` if they
    depend on the text before it.
    """

    def __init__(self, special: SpecialIds | None, words: WordIds) -> None:
        self.special = special
        self._words = words
        if special is not None:
            before, after = special
            words.pin({_SEPARATOR_WORD: after + _END_OF_ROW + before})

    @abstractmethod
    def rows(self, texts: Sequence[str]) -> list[bytes]:
        """The row of each text, special ids included."""

    @abstractmethod
    def finish(self, rows: list[bytes]) -> list[bytes]:
        """Apply the rules for whole texts to rows joined from words; `_UNKNOWN` stays."""

    def preload(self, texts: Iterable[str]) -> None:
        """Cache the words of texts permanently."""
        if self.special is not None:
            self._words.preload(dict.fromkeys(chain.from_iterable(text.split(" ") for text in texts)))

    def word_ids(self, text: str) -> bytes:
        """The ids of the words of a text, without special ids."""
        return b"".join(map(self._words.__getitem__, text.split(" ")))

    def known_rows(self, texts: Sequence[str], special: SpecialIds) -> list[bytes]:
        """The row of each text, `_UNKNOWN` if it must be tokenized as a whole."""
        joined = _SEPARATOR.join(texts)
        if joined.count(_SEPARATOR_WORD) >= len(texts) or _PARTIAL in joined:
            raise InputError("a text contains a lone surrogate, which is not a character: decode it properly")
        return self.known_rows_of_joined(joined, special)

    def known_rows_of_joined(self, texts: str, special: SpecialIds) -> list[bytes]:
        """`known_rows` of texts that are joined by the separator already."""
        before, after = special
        joined = b"".join((before, *map(self._words.__getitem__, texts.split(" ")), after))
        rows = joined.split(_END_OF_ROW)
        if _UNKNOWN in joined:
            rows = [_UNKNOWN if _UNKNOWN in row else row for row in rows]
        return self.finish(rows)


# Pre-tokenizers that split at every space, and normalizers that see one character, or one run of combining
# marks with its base, at a time: none of them sees two words at once.
_SPLIT_AT_SPACES = frozenset({"BertPreTokenizer", "WhitespaceSplit", "Whitespace"})
_LOCAL_NORMALIZERS = frozenset(
    {"BertNormalizer", "Precompiled", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"}
)


def fast_word_tokenizer(tokenizer: Any, max_length: int | None) -> FastWordTokenizer | None:  # noqa: ANN401
    """A word-by-word version of a transformers tokenizer, or None if it is not a usual fast one."""
    usual = (
        getattr(tokenizer, "is_fast", False)
        and tokenizer.padding_side == tokenizer.truncation_side == "right"
    )
    if not usual or max_length is None or tokenizer.pad_token_id is None:
        return None
    return FastWordTokenizer(tokenizer.backend_tokenizer, max_length=max_length)


class FastWordTokenizer(WordTokenizer):
    """A copy of a fast tokenizer of transformers, truncated at ``max_length`` ids."""

    def __init__(self, backend: Any, *, max_length: int) -> None:  # noqa: ANN401 - a tokenizers.Tokenizer
        self._plain = copy.deepcopy(backend)
        self._plain.no_padding()
        self._plain.no_truncation()
        self._truncated = copy.deepcopy(self._plain)
        self._truncated.enable_truncation(max_length)
        self._max_length = max_length
        special = _special_ids(self._plain) if _splits_at_spaces(backend) else None
        super().__init__(special, WordIds(self._tokenize_words))

    def rows(self, texts: Sequence[str]) -> list[bytes]:
        """The row of each text, special ids included."""
        if self.special is None or not texts:
            return self._tokenize_texts(texts)
        rows = self.known_rows(texts, self.special)
        return [
            self._tokenize_texts([text])[0] if row == _UNKNOWN else row
            for text, row in zip(texts, rows, strict=True)
        ]

    def finish(self, rows: list[bytes]) -> list[bytes]:
        """Truncate rows at the maximum length."""
        assert self.special is not None
        after, most = self.special[1], self._max_length * _WIDTH
        if max(map(len, rows)) <= most:
            return rows
        return [row if len(row) <= most else row[: most - len(after)] + after for row in rows]

    def _tokenize_texts(self, texts: Sequence[str]) -> list[bytes]:
        return [pack_ids(found.ids) for found in self._truncated.encode_batch_fast(list(texts))]

    def _tokenize_words(self, words: Sequence[str]) -> list[bytes]:
        if len(words) == 1:  # a batch costs more to set up
            found = [self._plain.encode(words[0], add_special_tokens=False)]
        else:
            found = self._plain.encode_batch_fast(list(words), add_special_tokens=False)
        return [
            pack_ids(each.ids) if _stands_alone(word) else _UNKNOWN
            for word, each in zip(words, found, strict=True)
        ]


def _special_ids(backend: Any) -> SpecialIds | None:  # noqa: ANN401 - a tokenizers.Tokenizer
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a").ids
    for start in range(len(full) - len(plain) + 1):
        if plain and full[start : start + len(plain)] == plain:
            return pack_ids(full[:start]), pack_ids(full[start + len(plain) :])
    return None


def _stands_alone(word: str) -> bool:
    """Whether a word is tokenized the same way after any text: its first character joins no other."""
    first = word[:1]
    joins = first != "" and (unicodedata.category(first)[0] == "M" or first in "\u200c\u200d")
    return not joins


def _splits_at_spaces(backend: Any) -> bool:  # noqa: ANN401 - a tokenizers.Tokenizer
    """Whether the ids of a text are those of its words, judging by the tokenizer's components."""
    parts = json.loads(backend.to_str())
    first = _components(parts["pre_tokenizer"], "pretokenizers")[:1]
    normalizers = _components(parts["normalizer"], "normalizers")
    spaced = any(" " in token["content"] for token in parts["added_tokens"])
    local = set(normalizers) <= _LOCAL_NORMALIZERS
    return bool(first) and first[0] in _SPLIT_AT_SPACES and local and not spaced


def _components(part: dict[str, Any] | None, within: str) -> list[str]:
    """The types of a tokenizer's components, sequences flattened."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [kind for each in part[within] for kind in _components(each, within)]
    return [str(part["type"])]


def window_tokenizer(words: WordTokenizer, host: Tokenizer, *, prefix: str = "") -> WindowTokenizer | None:
    """A tokenizer for windows of a host's ids, or None if the encoder's tokenizer needs whole texts.

    ``prefix`` is prepended to each text. The words of the host's tokens are cached now.
    """
    if words.special is None:
        return None
    if host.pieces is not None:
        words.preload(piece for piece in host.pieces if piece is not None)
    else:
        words.preload(host.decode([[token] for token in range(min(host.size, _PRELOADED_TOKENS))]))
    return WindowTokenizer(words, words.special, host, prefix=prefix)


class WindowTokenizer:
    """Rows of the encoder's ids for windows of a host's ids; used by one thread at a time."""

    def __init__(self, words: WordTokenizer, special: SpecialIds, host: Tokenizer, *, prefix: str) -> None:
        self._words, self._host, self._prefix = words, host, prefix
        self._pieces: _Pieces | None = None
        if host.pieces is not None:
            self._pieces = _Pieces(words, special, host.pieces, prefix=prefix)

    def __call__(self, windows: Windows) -> list[bytes]:
        """The row of each window; all windows have the same length."""
        if self._pieces is None:
            return self._from_texts(windows)
        try:
            rows = _fill_unknown(self._pieces.rows_of_tokens(windows), windows, self._pieces.rows_of_texts)
        except IndexError:  # an id that the host's tokenizer does not know
            return self._from_texts(windows)
        return _fill_unknown(rows, windows, self._from_texts)

    def _from_texts(self, windows: Windows) -> list[bytes]:
        return self._words.rows([self._prefix + text for text in window_texts(self._host, windows)])


class _Pieces:
    """The texts of a host's tokens and the encoder's ids of each.

    ``_first`` holds the ids of each token as the first of a window, ``_later`` those at any later position:
    `_UNKNOWN` if they depend on the neighbours.
    """

    def __init__(
        self, words: WordTokenizer, special: SpecialIds, pieces: Sequence[str | None], *, prefix: str
    ) -> None:
        self._words, self._special, self._separator = words, special, _SEPARATOR + prefix
        self._before = special[0] + words.word_ids(prefix)
        # one more for `ABSENT`, at index -1, with an empty text
        self._pieces = [*(_PARTIAL if piece is None else piece for piece in pieces), ""]
        shared: dict[bytes, bytes] = {}
        ids = [shared.setdefault(each, each) for each in map(words.word_ids, self._pieces)]
        alone = prefix == "" or prefix.endswith(" ")
        self._first = [each if alone and _UNKNOWN not in each else _UNKNOWN for each in ids]
        self._later = [
            each if piece == "" or piece.startswith(" ") else _UNKNOWN
            for piece, each in zip(self._pieces, self._first, strict=True)
        ]

    def rows_of_tokens(self, windows: Windows) -> list[bytes]:
        """Rows from the ids of single tokens; `_UNKNOWN` if a token depends on its neighbours."""
        first, *others = zip(*windows, strict=True)
        later = (map(self._later.__getitem__, column) for column in others)
        parts = zip(
            repeat(self._before), map(self._first.__getitem__, first), *later, repeat(self._special[1])
        )
        return self._words.finish([_UNKNOWN if _UNKNOWN in each else b"".join(each) for each in parts])

    def rows_of_texts(self, windows: Windows) -> list[bytes]:
        """Rows from the words of the windows' texts; `_UNKNOWN` if a word depends on the text before it."""
        each = map(self._pieces.__getitem__, chain.from_iterable(windows))
        separated = zip(repeat(self._separator), *[each] * len(windows[0]))
        texts = "".join(chain.from_iterable(separated))
        return self._words.known_rows_of_joined(texts, self._special)[1:]


def _fill_unknown(
    rows: list[bytes], windows: Windows, tokenize: Callable[[Windows], list[bytes]]
) -> list[bytes]:
    """Rows with the unknown ones tokenized by a slower method."""
    if _UNKNOWN not in rows:
        return rows
    found = iter(tokenize([window for window, row in zip(windows, rows, strict=True) if row == _UNKNOWN]))
    return [next(found) if row == _UNKNOWN else row for row in rows]
