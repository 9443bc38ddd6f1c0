"""The query log: who asked about texts like this one, and when.

One row per text that was checked: time, request, token, endpoint, verdict, an HMAC of the text and a keyed
sketch of it. Equal texts have equal HMACs and similar texts similar sketches, so that whoever
holds the store finds earlier queries about a text that they hold themselves. Without the key, which is kept
in the same store, the log reveals no text, not even to guessing. Rows expire.

**Sketches.** A text's *shingles* are its runs of three words. Every shingle is hashed under a secret key, and
for each of 60 ways to order the hashes the smallest one is kept (MinHash). Two texts agree in a place with
probability J, the Jaccard similarity of their sets of shingles, so the share of equal places estimates J with
a standard error of at most 0.065. A search compares the sketches of all rows, page by page.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import regex
import sqlalchemy as sa
from numpy.typing import NDArray

from dewmark.errors import ConfigError
from dewmark_desk.store import Store, queries

PLACES = 60
_SHINGLE = 3  # words
_LONGEST = 65_536  # characters that are read
# Scripts without spaces between words: each of their characters counts as a word.
_WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u9fff]+")
_INVISIBLE = regex.compile(r"[\p{Cf}\p{Mn}]+")
_KEY = "query-log"
_PAGE = 10_000  # rows that a search or an export reads at a time
Row = dict[str, Any]


class Sketcher:
    """Makes sketches under a 32-byte key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        seed = int.from_bytes(hashlib.blake2b(b"orders", key=key, digest_size=16).digest(), "big")
        rng = np.random.default_rng(seed)
        # multiply-add on 64 bits, of which the upper 32 are used, orders hashes at random
        self._factors = rng.integers(0, 1 << 63, size=PLACES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._terms = rng.integers(0, 1 << 63, size=PLACES, dtype=np.uint64)

    def __call__(self, text: str) -> bytes:
        """The smallest hashes of a text, 32 bits each."""
        digests = b"".join(
            hashlib.blake2b(each.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8).digest()
            for each in shingles(text)
        )
        hashes = np.frombuffer(digests, dtype="<u8").astype(np.uint64)
        places = (self._factors[:, None] * hashes[None, :] + self._terms[:, None]) >> np.uint64(32)
        return bytes(places.min(axis=1).astype("<u4"))


def similarities(sketch: bytes, others: Sequence[bytes]) -> NDArray[np.float64]:
    """The estimated similarities (N,) of a text to the texts of other sketches."""
    places = np.frombuffer(b"".join(others), dtype="<u4").reshape(-1, PLACES)
    return np.asarray((places == np.frombuffer(sketch, dtype="<u4")).mean(axis=1))


def shingles(text: str) -> list[str]:
    """The distinct runs of words, in any order; a shorter text is one run.

    Accents and invisible characters are left out: they would hide that a text is the same.
    """
    bare = _INVISIBLE.sub("", unicodedata.normalize("NFKD", text[:_LONGEST]))
    words = _WORD.findall(unicodedata.normalize("NFKC", bare).casefold())
    runs = {" ".join(words[i : i + _SHINGLE]) for i in range(len(words) - _SHINGLE + 1)}
    return sorted(runs) or [" ".join(words)]


@dataclass(frozen=True, slots=True)
class Logged:
    """One logged query; ``similarity`` to the text of a search, if there was one, and 1 for the same text."""

    number: int
    time: float
    request: str
    token: str
    endpoint: str
    characters: int
    tenant: str
    verdict: str
    digest: str
    similarity: float | None = None


class QueryLog:
    """Logs queries to a store, and answers questions about them."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._key = bytes.fromhex(store.secret(_KEY))
        self._sketch = Sketcher(self._key)

    def digest(self, text: str) -> str:
        """A text's HMAC in the log."""
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def write(
        self, *, request: str, token: str, endpoint: str, texts: Sequence[str], answers: Sequence[Row]
    ) -> None:
        """Write one row per text."""
        now = self._clock()
        rows = [
            {
                "time": now,
                "request": request,
                "token": token,
                "endpoint": endpoint,
                "digest": self.digest(text),
                "sketch": self._sketch(text),
                "characters": len(text),
                "tenant": answer["tenant"] or "",
                "verdict": answer["verdict"],
            }
            for text, answer in zip(texts, answers, strict=True)
        ]
        if rows:
            with self._store.write() as connection:
                connection.execute(sa.insert(queries), rows)

    def like(self, text: str, *, least: float = 0.5, limit: int = 1000) -> list[Logged]:
        """Queries about texts of at least this similarity, the latest first."""
        if not 0.0 < least <= 1.0:
            raise ConfigError(f"similarity must lie in (0, 1], got {least:g}")
        sketch, digest = self._sketch(text), self.digest(text)
        found: list[Logged] = []
        for rows in self._pages():
            shares = similarities(sketch, [row.sketch for row in rows])
            for row, share in zip(rows, shares.tolist(), strict=True):
                share = 1.0 if row.digest == digest else share
                if share >= least:
                    found.append(_logged(row, share))
        return found[: -limit - 1 : -1]

    def export(self) -> Iterator[Logged]:
        """All rows, oldest first."""
        for rows in self._pages():
            yield from map(_logged, rows)

    def _pages(self) -> Iterator[Sequence[Any]]:
        after = 0
        while True:
            chosen = sa.select(queries).where(queries.c.number > after).order_by(queries.c.number)
            with self._store.read() as connection:
                rows = connection.execute(chosen.limit(_PAGE)).all()
            if not rows:
                return
            yield rows
            after = rows[-1].number

    def expire(self, *, days: float) -> int:
        """Delete the rows that are older, for good; returns their number."""
        if not days >= 0.0:
            raise ConfigError(f"days must be at least 0, got {days:g}")
        with self._store.write() as connection:
            old = sa.delete(queries).where(queries.c.time < self._clock() - 86_400.0 * days)
            gone = connection.execute(old).rowcount
        if gone:
            self._store.forget_deleted()
        return int(gone)


def _logged(row: Any, similarity: float | None = None) -> Logged:  # noqa: ANN401 - a row of SQLAlchemy
    names = [name for name in Logged.__dataclass_fields__ if name != "similarity"]
    return Logged(**{name: getattr(row, name) for name in names}, similarity=similarity)
