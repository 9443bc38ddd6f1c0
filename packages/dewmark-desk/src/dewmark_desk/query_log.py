"""The query log: who asked about texts like this one, and when.

One row per text that was checked: time, request, token, endpoint, verdict, an HMAC of the text and a keyed
sketch of it (`text_sketch`). Equal texts have equal HMACs and similar texts similar sketches, so that whoever
holds the store finds earlier queries about a text that they hold themselves. Without the key, which is kept
in the same store, the log reveals no text, not even to guessing. Rows expire.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dewmark.errors import ConfigError
from dewmark_desk.store import Store, bands, queries
from dewmark_desk.text_sketch import Sketcher

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
