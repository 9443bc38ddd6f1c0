"""The database of a service (SQLite or PostgreSQL): API tokens, audit jobs and an optional query log.

Every change is one short transaction. SQLite runs in WAL mode, so that workers can read while one writes; a
write starts with BEGIN IMMEDIATE, which waits for its turn instead of failing half-way. Times are seconds
since 1970. Boundary: tables and connections; `api_tokens` and `audit_jobs` give the rows their meaning.

The query log records who asked about which text and when, with the text as a keyed hash. Equal texts have
equal hashes, so whoever holds the store can find out who asked about a given text. Without the HMAC key,
which is kept in the same store, the log reveals no text, not even to guessing.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from dewmark.errors import ConfigError, StorageError

__all__ = ["QueryLog", "Store", "items", "jobs", "metadata", "queries", "secrets_", "tokens"]

_QUERY_LOG_KEY = "query-log"

metadata = sa.MetaData()

tokens = sa.Table(
    "dewmark_tokens",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),  # SHA-256 of the secret part
    sa.Column("scopes", sa.Text, nullable=False),  # space-separated
    sa.Column("tenants", sa.Text, nullable=False),  # space-separated ids; empty: all
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("expires", sa.Float),
    sa.Column("revoked", sa.Float),
    sa.Column("per_minute", sa.Float, nullable=False),
    sa.Column("free_at", sa.Float, nullable=False),  # when past requests will have been paid off
    sa.Column("budget", sa.BigInteger),  # texts over the token's lifetime; NULL: no limit
    sa.Column("used", sa.BigInteger, nullable=False),
)

jobs = sa.Table(
    "dewmark_jobs",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("owner", sa.String(16), nullable=False, index=True),  # a token's id; empty: no token needed
    sa.Column("state", sa.String(10), nullable=False, index=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("test", sa.Text),
    sa.Column("total", sa.Integer, nullable=False),
    sa.Column("left_out", sa.Integer, nullable=False),
    sa.Column("done", sa.Integer, nullable=False),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("finished", sa.Float),
    sa.Column("worker", sa.String(40)),  # the holder of the lease
    sa.Column("leased_until", sa.Float, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("result", sa.Text),
)

items = sa.Table(
    "dewmark_items",  # a job's texts, deleted when it ends
    metadata,
    sa.Column("job", sa.String(40), sa.ForeignKey("dewmark_jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("text", sa.Text),
    sa.Column("prompt", sa.Text),
    sa.Column("language", sa.Text, nullable=False),
    sa.Column("length", sa.Integer),
    sa.Column("p_value", sa.Float),  # NULL with a length: too short for a verdict
)

queries = sa.Table(
    "dewmark_queries",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("time", sa.Float, nullable=False, index=True),
    sa.Column("request", sa.String(64), nullable=False),
    sa.Column("token", sa.String(16), nullable=False),
    sa.Column("endpoint", sa.String(32), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False, index=True),  # HMAC-SHA256 of the text
    sa.Column("characters", sa.Integer, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("verdict", sa.String(16), nullable=False),
)

secrets_ = sa.Table(
    "dewmark_secrets",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.String(64), nullable=False),
)


class Store:
    """An open database; threads may share it, because connections come from a pool."""

    def __init__(self, url: str) -> None:
        """Open ``sqlite:///FILE`` or ``postgresql+psycopg://…`` and create missing tables."""
        self._engine = _engine(url)
        try:
            metadata.create_all(self._engine)
        except sa.exc.SQLAlchemyError as error:
            # two workers may create the tables at the same moment: the second attempt finds them
            try:
                metadata.create_all(self._engine)
            except sa.exc.SQLAlchemyError:
                raise StorageError(
                    f"cannot open the store: {_reason(error)}; check --store and its permissions"
                ) from None

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction."""
        with self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading."""
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


class QueryLog:
    """Logs queries to a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = _secret(store)

    def digest(self, text: str) -> str:
        """A text's hash in the log."""
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


def _engine(url: str) -> Engine:
    try:
        parsed = sa.engine.make_url(url)
    except sa.exc.ArgumentError:
        raise ConfigError("--store must be a URL such as sqlite:///service.db") from None
    if parsed.get_backend_name() != "sqlite":
        try:
            return sa.create_engine(parsed, pool_pre_ping=True)
        except (ImportError, sa.exc.NoSuchModuleError):
            raise ConfigError(
                f"no driver for a {parsed.drivername} store: pip install 'psycopg[binary]' and use "
                "postgresql+psycopg://…"
            ) from None
    if parsed.database in (None, "", ":memory:"):
        raise ConfigError("the store must be a file that all workers share: give sqlite:///FILE")
    file = Path(str(parsed.database))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError as error:
        raise StorageError(f"cannot write the store {file}: {error.strerror}") from None
    engine = sa.create_engine(parsed, connect_args={"check_same_thread": False, "timeout": 10.0})
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:  # noqa: ANN401 - sqlite3's, through SQLAlchemy
    connection.isolation_level = None  # `_begin_sqlite` starts transactions
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _reason(error: sa.exc.SQLAlchemyError) -> str:
    """The driver's message in one line, without the statement and its values."""
    cause = getattr(error, "orig", None) or error
    return " ".join(str(cause).split())[:200]


def _secret(store: Store) -> bytes:
    """The store's HMAC key, created on first use."""
    with store.write() as connection:
        found = connection.execute(
            sa.select(secrets_.c.value).where(secrets_.c.name == _QUERY_LOG_KEY)
        ).scalar()
        if found is None:
            found = secrets.token_hex(32)
            connection.execute(sa.insert(secrets_).values(name=_QUERY_LOG_KEY, value=found))
    return bytes.fromhex(found)
