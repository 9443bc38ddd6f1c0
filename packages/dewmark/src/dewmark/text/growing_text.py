"""The words of a text that grows piece by piece, and the word that each next piece would make.

A candidate starts a word, extends the last one, or makes no word. This depends only on the open end of the
text, so results are cached by (open end, piece) and shared by all rows and steps. A stream has the same words
as `dewmark.text.words.words` of the same text; the last few may still change as it grows.

Boundary: text and token ids; no vectors, no keys.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dewmark.text.words import MAX_FORM, open_tail, words
from dewmark.workspace import Tokenizer

__all__ = ["Spelling"]

_KEPT = 64  # words that a stream remembers: the widest context
_OPEN = 6  # last words that a piece may still change, in scripts without spaces
_LONGEST = 4 * MAX_FORM
_ENOUGH = 8192  # characters at the end of a long text that contain all words a stream remembers
_UNDECODED = "\N{REPLACEMENT CHARACTER}"
_UTF8 = 4


class Extension(NamedTuple):
    """The effect of a piece on the words so far.

    ``form`` is the word at the end of the text after the piece: a new word, or the last one extended; None if
    the piece makes no word (spaces, punctuation, part of a character). ``back`` is the number of last words
    that are replaced: 0 for a new word, 1 for an extended one. ``between`` are new words before ``form``:
    none unless the piece makes several words, or changes the segmentation of a script without spaces. The
    context for scoring the word is `WordStream.context`.
    """

    form: str | None
    back: int = 0
    between: tuple[str, ...] = ()


NOTHING = Extension(None)


@functools.lru_cache(maxsize=1 << 18)
def extend(tail: str, piece: str) -> Extension:
    """The effect of ``piece`` after a text with the open end ``tail`` ("" if no word is open)."""
    if _UNDECODED in piece:
        return NOTHING
    before, after = _forms(tail), _forms(tail + piece)
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    if same == len(after):
        return NOTHING
    return Extension(after[-1], len(before) - same, tuple(after[same:-1]))


def _forms(text: str) -> list[str]:
    return [word.form for word in words(text)]


class WordStream:
    """The last words of one growing text."""

    def __init__(self, text: str = "") -> None:
        self._final: deque[str] = deque(maxlen=_KEPT)
        self.finished = 0
        """How many words can no longer change."""
        self._open: list[str] = []
        self._tail = ""
        self.append(text)

    def append(self, piece: str) -> None:
        """Append ``piece`` to the text."""
        text = self._tail + piece[-_ENOUGH:]
        tail = open_tail(text)
        found = words(tail)
        kept = found[-_OPEN:] if len(tail) <= _LONGEST else found[-1:]
        final = _forms(text[: len(text) - len(tail)])
        final += [word.form for word in found[: len(found) - len(kept)]]
        self._final.extend(final)
        self.finished += len(final)
        tail = tail[kept[0].start :] if kept else ""
        if len(tail) > _LONGEST:
            tail = tail[:MAX_FORM] + tail[-2:]  # one endless word: its form, and its end
        self._open = [word.form for word in kept]
        self._tail = tail

    def extensions(self, pieces: Iterable[str]) -> list[Extension]:
        """The effect of each candidate for the next piece."""
        tail = self._tail
        # a piece that begins with a space does not depend on the tail, so all texts share the result
        return [extend("" if piece[:1].isspace() else tail, piece) for piece in pieces]

    def recent(self, k: int) -> tuple[str, ...]:
        """The last ``k`` words (at most 64; fewer at the start), oldest first."""
        return self.context(Extension(None), k=k)

    def finished_since(self, count: int) -> list[str]:
        """The words finished after the first ``count``, of those that the stream remembers."""
        return list(self._final)[max(len(self._final) - (self.finished - count), 0) :]

    @property
    def unfinished(self) -> Sequence[str]:
        """The last words, which the next piece may still change."""
        return self._open

    def context(self, extension: Extension, *, k: int) -> tuple[str, ...]:
        """The ``k`` words before the word that an extension makes, oldest first."""
        known = [*self._final, *self._open]
        before = (*known[: len(known) - extension.back], *extension.between)
        return before[max(len(before) - k, 0) :]


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

    def forms(self) -> list[str]:
        """The words that single tokens make, sorted; worth encoding before generation."""
        return sorted({form for piece in self.pieces if (form := extend("", piece).form) is not None})

    def is_special(self, token: int) -> bool:
        """Whether an id has no text."""
        return token in self._tokenizer.special_ids


class TokenStream(WordStream):
    """The last words of a text that a host generates token by token; special tokens end a word."""

    def __init__(self, spelling: Spelling, ids: Sequence[int] = ()) -> None:
        super().__init__()
        self._spelling = spelling
        self._pending: list[int] = []
        for token in ids[-_ENOUGH:]:
            self.push(token)

    def candidates(self, tokens: Sequence[int]) -> list[Extension]:
        """The effect of each of these tokens if it came next."""
        if self._pending:
            return self.extensions(self._spelling.decode([[*self._pending, token] for token in tokens]))
        return self.extensions(self._spelling.pieces[token] for token in tokens)

    def push(self, token: int) -> None:
        """Append one token; the bytes of a character are held back until it is complete."""
        if self._spelling.is_special(token):
            self._pending = []
            self.append("\n")
            return
        piece = self._spelling.pieces[token]
        if self._pending or _UNDECODED in piece:
            self._pending.append(token)
            piece = self._spelling.decode([self._pending])[0]
            if piece.endswith(_UNDECODED) and len(self._pending) < _UTF8:
                return
            self._pending = []
        self.append(piece)
