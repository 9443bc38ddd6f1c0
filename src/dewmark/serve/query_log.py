"""An optional log of queries: who asked about which text when, the text as a keyed hash only.

The same text always gives the same hash, so a person with the store can find who asked about a text that they
hold, or who sends many variations; from the log alone no text can be read or guessed without the store's own
HMAC key, which lies beside it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from dewmark.serve.store import Store, queries, secrets_

__all__ = ["QueryLog"]

_KEY = "query-log"


class QueryLog:
    """Writes queries to a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = _secret(store)

    def digest(self, text: str) -> str:
        """The hash under which a text stands in the log."""
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
        """One row per text."""
        now = time.time()
        rows = [
            {
                "time": now,
                "request": request,
                "token": token,
                "endpoint": endpoint,
                "digest": self.digest(text),
                "characters": len(text),
                "tenant": answer["tenant"] or "",
                "verdict": answer["verdict"],
            }
            for text, answer in zip(texts, answers, strict=True)
        ]
        with self._store.write() as connection:
            connection.execute(sa.insert(queries), rows)


def _secret(store: Store) -> bytes:
    """The store's HMAC key, made on first use."""
    with store.write() as connection:
        found = connection.execute(sa.select(secrets_.c.value).where(secrets_.c.name == _KEY)).scalar()
        if found is None:
            found = secrets.token_hex(32)
            connection.execute(sa.insert(secrets_).values(name=_KEY, value=found))
    return bytes.fromhex(found)
