"""The query log: who asked about texts like this one, and when.

One row per text that was checked: time, request, token, endpoint, verdict, an HMAC of the text and a keyed
sketch of it. Equal texts have equal HMACs and similar texts similar sketches, so that whoever
holds the store finds earlier queries about a text that they hold themselves. Without the key, which is kept
in the same store, the log reveals no text, not even to guessing. Rows expire.

**Sketches.** A text's *shingles* are its runs of three words. Every shingle is hashed under a secret key, and
for each of 60 ways to order the hashes the smallest one is kept (MinHash). Two texts agree in a place with
probability J, the Jaccard similarity of their sets of shingles, so the share of equal places estimates J with
a standard error of at most 0.065. Places are joined to 20 *bands* of three, and texts that share a band are
candidates: 93% of the pairs with J = 0.5, and 0.25% of those with J = 0.05.
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
from dewmark_desk.store import Store, bands, queries

BANDS, _ROWS = 20, 3
PLACES = BANDS * _ROWS
_SHINGLE = 3  # words
_LONGEST = 65_536  # characters that are read
# Scripts without spaces between words: each of their characters counts as a word.
_WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_\u3040-\u9fff]+")

_INVISIBLE = regex.compile(r"[\p{Cf}\p{Mn}]+")


@dataclass(frozen=True, slots=True)
class Sketch:
    """The smallest hashes of a text (`PLACES` of 32 bits), and its bands."""

    places: tuple[int, ...]
    bands: tuple[str, ...]

    def to_hex(self) -> str:
        """The places in 8 hexadecimal digits each."""
        return "".join(f"{place:08x}" for place in self.places)

    def similarity(self, stored: str) -> float:
        """The estimated similarity to the text of a `to_hex` string."""
        same = sum(place == int(stored[8 * i : 8 * i + 8], 16) for i, place in enumerate(self.places))
        return same / len(self.places)


class Sketcher:
    """Makes sketches under a 32-byte key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        seed = int.from_bytes(hashlib.blake2b(b"orders", key=key, digest_size=16).digest(), "big")
        rng = np.random.default_rng(seed)
        # multiply-add on 64 bits, of which the upper 32 are used, orders hashes at random
        self._factors = rng.integers(0, 1 << 63, size=PLACES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._terms = rng.integers(0, 1 << 63, size=PLACES, dtype=np.uint64)

    def __call__(self, text: str) -> Sketch:
        """The sketch of a text."""
        hashes = self._hashes(shingles(text))
        places = (self._factors[:, None] * hashes[None, :] + self._terms[:, None]) >> np.uint64(32)
        smallest = tuple(int(place) for place in places.min(axis=1))
        bands = tuple(
            self._band(number, smallest[number * _ROWS : (number + 1) * _ROWS]) for number in range(BANDS)
        )
        return Sketch(smallest, bands)

    def _hashes(self, found: Sequence[str]) -> NDArray[np.uint64]:
        digests = b"".join(
            hashlib.blake2b(each.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8).digest()
            for each in found
        )
        return np.frombuffer(digests, dtype="<u8").astype(np.uint64)

    def _band(self, number: int, places: Sequence[int]) -> str:
        value = f"{number}:{','.join(map(str, places))}".encode()
        return hashlib.blake2b(value, key=self._key, digest_size=8).hexdigest()


def shingles(text: str, size: int = _SHINGLE) -> list[str]:
    """The distinct runs of ``size`` words, in any order; a shorter text is one run.

    Accents and invisible characters are left out: they would hide that a text is the same.
    """
    bare = _INVISIBLE.sub("", unicodedata.normalize("NFKD", text[:_LONGEST]))
    words = _WORD.findall(unicodedata.normalize("NFKC", bare).casefold())
    runs = {" ".join(words[i : i + size]) for i in range(len(words) - size + 1)}
    return sorted(runs) or [" ".join(words)]


_KEY = "query-log"
_PAGE = 500


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
        self,
        *,
        request: str,
        token: str,
        endpoint: str,
        texts: Sequence[str],
        answers: Sequence[dict[str, Any]],
    ) -> None:
        """Write one row per text."""
        now = self._clock()
        sketches = [self._sketch(text) for text in texts]
        rows = [
            {
                "time": now,
                "request": request,
                "token": token,
                "endpoint": endpoint,
                "digest": self.digest(text),
                "sketch": sketch.to_hex(),
                "characters": len(text),
                "tenant": answer["tenant"] or "",
                "verdict": answer["verdict"],
            }
            for text, sketch, answer in zip(texts, sketches, answers, strict=True)
        ]
        if not rows:
            return
        with self._store.write() as connection:
            numbers = connection.execute(
                sa.insert(queries).returning(queries.c.number, sort_by_parameter_order=True), rows
            ).scalars()
            connection.execute(
                sa.insert(bands),
                [
                    {"query": number, "band": band}
                    for number, sketch in zip(numbers, sketches, strict=True)
                    for band in dict.fromkeys(sketch.bands)
                ],
            )

    def like(self, text: str, *, least: float = 0.5, limit: int = 1000) -> list[Logged]:
        """Queries about texts of at least this similarity, the latest first."""
        if not 0.0 < least <= 1.0:
            raise ConfigError(f"similarity must lie in (0, 1], got {least:g}")
        sketch, digest = self._sketch(text), self.digest(text)
        candidates = sa.select(bands.c.query).where(bands.c.band.in_(sketch.bands))
        chosen = sa.select(queries).where(
            sa.or_(queries.c.digest == digest, queries.c.number.in_(candidates))
        )
        with self._store.read() as connection:
            rows = connection.execute(chosen.order_by(queries.c.number.desc())).all()
        found = [_logged(row, 1.0 if row.digest == digest else sketch.similarity(row.sketch)) for row in rows]
        return [each for each in found if (each.similarity or 0.0) >= least][:limit]

    def page(
        self, *, after: int = 0, limit: int = _PAGE, since: float = 0.0, until: float | None = None
    ) -> list[Logged]:
        """The next rows after a row's number, oldest first."""
        chosen = sa.select(queries).where(queries.c.number > after, queries.c.time >= since)
        if until is not None:
            chosen = chosen.where(queries.c.time < until)
        with self._store.read() as connection:
            rows = connection.execute(chosen.order_by(queries.c.number).limit(limit)).all()
        return [_logged(row) for row in rows]

    def export(self, *, since: float = 0.0, until: float | None = None) -> Iterator[Logged]:
        """All rows, oldest first."""
        after = 0
        while rows := self.page(after=after, since=since, until=until):
            yield from rows
            after = rows[-1].number

    def expire(self, *, days: float) -> int:
        """Delete the rows that are older, for good; returns their number."""
        if not days >= 0.0:
            raise ConfigError(f"days must be at least 0, got {days:g}")
        old = queries.c.time < self._clock() - 86_400.0 * days
        with self._store.write() as connection:
            connection.execute(
                sa.delete(bands).where(bands.c.query.in_(sa.select(queries.c.number).where(old)))
            )
            gone = connection.execute(sa.delete(queries).where(old)).rowcount
        if gone:
            self._store.forget_deleted()
        return int(gone)


def _logged(row: Any, similarity: float | None = None) -> Logged:  # noqa: ANN401 - a row of SQLAlchemy
    names = [name for name in Logged.__dataclass_fields__ if name != "similarity"]
    return Logged(**{name: getattr(row, name) for name in names}, similarity=similarity)
