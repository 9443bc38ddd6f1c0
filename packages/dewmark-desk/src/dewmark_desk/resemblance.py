"""The price of an answer to a public token: each further answer about similar texts costs more.

Someone who may ask often about variants of one text learns which of its words count, and so how to remove or
forge a mark. Every answer here is the verdict on the very text that was sent, but the first `FREE` answers
about texts that resemble each other cost one text of the token's budget each, and every further one twice as
much as the one before. A budget of 1,000 texts pays for 12 answers about texts that resemble each other.

Texts are compared by what the detector sees, the words of the public lexicon, so that letter case, markup and
invisible characters make no difference. Of the words that are not frequent, the first letters are hashed
under a secret key. A text is a row of windows of `WINDOW` words that the default scheme scores, and then a
row of windows of the others: words that are put where they carry no mark (behind three numbers) cannot
dilute those that do, and varying them costs as much. Texts resemble each other if a window of either shares
a sixth of its words with one of the other (containment), so that neither order, nor additions, nor cutting a
text to pieces helps. The same words after the same prompt have the same verdict and cost one text.
`docs/security.md` says what this is worth.

The store keeps hashes of a token's texts as long as the token is valid, and no answers.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from dewmark.core.keys import Key
from dewmark.opening import load_scheme
from dewmark.text.words import places_and_forms
from dewmark_desk.api_tokens import Caller
from dewmark_desk.store import Store, asked, tokens
from dewmark_desk.verdicts import Query

FREE = 4
WINDOW, SHARE = 48, 0.17
_STRIDE = 16  # between the windows of a text that is compared
_FREQUENT = 1e-3  # words above this share of running text are in every text
_LETTERS = 5  # of a word that are compared: most inflections change the rest
_LEAST = 8  # words; a text with fewer is compared by all of its words
_MOST = 5_000  # texts kept per token; the oldest are forgotten
_MOST_TOKENS = 200  # whose texts one process remembers; the others are read again
_DEAREST = 40  # powers of two; no budget is as large
_END = 0  # of the scored words, among the hashes of a text


@dataclass(slots=True)
class _Known:
    """The texts of one token that this process has read."""

    last: int = 0
    digests: set[str] = field(default_factory=set)
    windows: list[tuple[int, int]] = field(default_factory=list)  # (number of the text, words)
    index: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # hash: its windows

    def add(self, number: int, digest: str, hashes: Sequence[int]) -> None:
        self.last = number
        self.digests.add(digest)
        for window in _windows(hashes, WINDOW):
            for each in window:
                self.index[each].append(len(self.windows))
            self.windows.append((number, len(window)))

    def resembling(self, hashes: Sequence[int]) -> int:
        """The number of earlier texts that resemble one with these hashes."""
        found: set[int] = set()
        for window in _windows(hashes, _STRIDE):
            shared = Counter(place for each in window for place in self.index.get(each, ()))
            for place, count in shared.items():
                number, size = self.windows[place]
                if count >= SHARE * min(size, len(window)):
                    found.add(number)
        return len(found)


def _windows(hashes: Sequence[int], stride: int) -> Iterator[Sequence[int]]:
    """The windows of a text's scored words, and those of its other words."""
    end = hashes.index(_END) if _END in hashes else len(hashes)
    for row in (hashes[:end], hashes[end + 1 :]):
        for start in range(0, max(len(row) - WINDOW + stride, min(len(row), 1)), stride):
            yield row[start : start + WINDOW]


@dataclass(frozen=True, slots=True)
class Asked:
    """Texts that a token has asked about, and the price of the answers in texts."""

    token: str
    numbers: tuple[int, ...]
    price: int


class Resemblance:
    """The texts of public tokens; with ``remember=False`` in this process's memory only."""

    def __init__(
        self, store: Store, *, remember: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._remember, self._clock = store, remember, clock
        self._key = bytes.fromhex(store.secret("resemblance"))
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def ask(self, caller: Caller, queries: Sequence[Query]) -> Asked:
        """Note that a token asks about texts.

        Texts are compared outside the transaction, which would keep all other writers waiting.
        """
        sketches = [self.sketch(query) for query in queries]
        while True:
            with self._lock:
                known = self._read(caller.id)
                rows, price = [], 0
                for digest, hashes in sketches:
                    if digest in known.digests:
                        price += 1
                        continue
                    price += 2 ** min(max(known.resembling(hashes) - FREE + 1, 0), _DEAREST)
                    known.add(known.last + 1, digest, hashes)
                    rows.append(self._row(caller.id, known.last, digest, hashes))
                try:
                    if rows and self._remember:
                        self._insert(rows)
                except sa.exc.IntegrityError:  # another process has just noted a text of this token
                    del self._known[caller.id]
                    continue
            return Asked(caller.id, tuple(row["number"] for row in rows), price)

    def withdraw(self, asking: Asked) -> None:
        """Forget texts about which nothing was answered; their numbers stay, so that none is used twice."""
        mine = sa.and_(asked.c.token == asking.token, asked.c.number.in_(asking.numbers))
        if asking.numbers and self._remember:
            with self._lock, self._store.write() as connection:
                connection.execute(sa.update(asked).where(mine).values(digest="", sketch=b""))
                self._known.pop(asking.token, None)

    def sketch(self, query: Query) -> tuple[str, list[int]]:
        """A digest of all words of a text and the end of its prompt, and the hashes that are compared."""
        (_, forms), (_, before) = map(places_and_forms, (query.text, query.prompt or ""))
        digest = self._hash("\n".join(("", *before[-8:], "", *forms)), 16).hex()
        rows, scored = _reader().lexicon.rows(forms), _reader().scored(forms)
        rare = (rows > 0) & (_reader().lexicon.frequency[rows] < _FREQUENT)
        kept = next(
            (each for each in (scored & rare, scored) if np.count_nonzero(each) >= _LEAST), np.ones_like(rare)
        )
        compared = dict.fromkeys(forms[i][:_LETTERS] for i in np.flatnonzero(kept))
        others = dict.fromkeys(forms[i][:_LETTERS] for i in np.flatnonzero(rare & ~kept))
        row, rest = list(compared), [each for each in others if each not in compared]
        if len(rest) < _LEAST:  # too few to be compared by themselves
            row, rest = row + rest, []
        found = [int.from_bytes(self._hash(each, 4), "little") for each in (*row, *rest)]
        return digest, [*found[: len(row)], _END, *found[len(row) :]]

    def expire(self) -> int:
        """Delete the texts of tokens that have ended; returns their number."""
        ended = sa.or_(tokens.c.revoked.is_not(None), tokens.c.expires < self._clock())
        gone = sa.delete(asked).where(asked.c.token.in_(sa.select(tokens.c.id).where(ended)))
        with self._store.write() as connection:
            return int(connection.execute(gone).rowcount)

    def _hash(self, value: str, size: int) -> bytes:
        data = value.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, key=self._key, digest_size=size).digest()

    def _row(self, token: str, number: int, digest: str, hashes: Sequence[int]) -> dict[str, Any]:
        sketch = np.array(hashes, dtype="<u4").tobytes()
        return {"token": token, "number": number, "time": self._clock(), "digest": digest, "sketch": sketch}

    def _insert(self, rows: Sequence[dict[str, Any]]) -> None:
        token, last = rows[-1]["token"], rows[-1]["number"]
        old = sa.and_(asked.c.token == token, asked.c.number <= last - _MOST)
        with self._store.write() as connection:
            connection.execute(sa.insert(asked), list(rows))
            connection.execute(sa.delete(asked).where(old))

    def _read(self, token: str) -> _Known:
        """The texts of a token, with those that other processes have stored since."""
        if token not in self._known and len(self._known) >= _MOST_TOKENS and self._remember:
            self._known.clear()
        known = self._known.setdefault(token, _Known())
        if self._remember:
            newer = sa.select(asked).where(asked.c.token == token, asked.c.number > known.last)
            with self._store.read() as connection:
                rows = connection.execute(newer.order_by(asked.c.number)).all()
            for row in rows:
                known.add(row.number, row.digest, np.frombuffer(row.sketch, dtype="<u4").tolist())
        return known


@functools.cache
def _reader() -> Any:  # noqa: ANN401 - of the default scheme; no key enters it
    bound: Any = load_scheme(Key(bytes(32)), host=None, settings={})
    return bound.reader
