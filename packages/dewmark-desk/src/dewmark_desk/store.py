"""The database of a service (SQLite or PostgreSQL): API tokens, jobs and an optional query log.

Every change is one short transaction. SQLite runs in WAL mode, so that workers can read while one writes; a
write starts with BEGIN IMMEDIATE, which waits for its turn instead of failing half-way. Times are seconds
since 1970. A program opens stores of its own schema's version only. Boundary: tables and connections;
`api_tokens`, `jobs` and `query_log` give the rows their meaning.

A store has an identity, drawn when it is created. Workers open the store of the service's start and no other:
a file that was moved away is never created again, because a store without tokens would open the service.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from dewmark.errors import ConfigError, StorageError

VERSION = 7  # of the schema: whoever changes a table counts on
_LOCK = 0x6465776D  # of PostgreSQL's advisory lock; any number that nobody else uses
_IDENTITY, _CHECKED = "identity", "checked"
_CHECKPOINT_PAUSES = (0.0, 0.02, 0.1, 0.5)  # seconds before each attempt

metadata = sa.MetaData()

tokens = sa.Table(
    "dewmark_tokens",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),  # SHA-256 of the secret part
    sa.Column("scopes", sa.Text, nullable=False),  # space-separated
    sa.Column("tenants", sa.Text, nullable=False),  # space-separated ids, or *
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("expires", sa.Float),
    sa.Column("revoked", sa.Float),
    sa.Column("per_minute", sa.Float, nullable=False),
    sa.Column("free_at", sa.Float, nullable=False),  # when past requests will have been paid off
    sa.Column("budget", sa.BigInteger),  # texts over the token's lifetime; NULL: no limit
    sa.Column("used", sa.BigInteger, nullable=False),
    sa.Column("budget_bytes", sa.BigInteger),  # bytes of text over the token's lifetime; NULL: no limit
    sa.Column("used_bytes", sa.BigInteger, nullable=False, server_default="0"),
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
    sa.Column("kind", sa.String(10), nullable=False, server_default="audit"),
    sa.Column("options", sa.Text, nullable=False, server_default="{}"),  # JSON
    sa.Index("dewmark_jobs_finished", "finished"),
)

items = sa.Table(
    "dewmark_items",  # a job's texts without their words, and their results
    metadata,
    sa.Column("job", sa.String(40), sa.ForeignKey("dewmark_jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("language", sa.Text, nullable=False),
    sa.Column("length", sa.Integer),
    sa.Column("p_value", sa.Float),  # NULL with a length: too short for a verdict
    sa.Column("name", sa.Text),  # the caller's id of the text
    sa.Column("result", sa.Text),  # JSON, in a batch of detections
)

texts = sa.Table(
    # Alone in a table, whose pages SQLite overwrites with zeros when it is emptied; pages in use may keep old
    # copies of moved rows.
    "dewmark_texts",
    metadata,
    sa.Column("job", sa.String(40), sa.ForeignKey("dewmark_jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("prompt", sa.Text),
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
    sa.Column("verdict", sa.String(32), nullable=False),
    sa.Column("sketch", sa.LargeBinary, nullable=False),  # finds similar texts
)

asked = sa.Table(
    "dewmark_asked",  # hashes of the texts that public tokens asked about (`resemblance`)
    metadata,
    sa.Column("token", sa.String(16), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("time", sa.Float, nullable=False),
    sa.Column("digest", sa.String(32), nullable=False),
    sa.Column("sketch", sa.LargeBinary, nullable=False),
)

secrets_ = sa.Table(
    "dewmark_secrets",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", sa.String(64), nullable=False),
)

schema = sa.Table("dewmark_schema", metadata, sa.Column("version", sa.Integer, nullable=False))


class Store:
    """An open database; threads may share it, because connections come from a pool."""

    def __init__(self, url: str, *, identity: str = "") -> None:
        """Open ``sqlite:///FILE`` or ``postgresql+psycopg://…``, with new tables if there are none.

        With an ``identity``, open that store only, and create nothing.
        """
        self._engine = _engine(url, create=not identity)
        try:
            if not identity:
                with self.write() as connection:
                    _prepare_tables(connection)
            self.identity = self.secret(_IDENTITY)
        except sa.exc.SQLAlchemyError as error:
            self.close()
            raise StorageError(
                f"cannot open the store: {_reason(error)}; check --store and its permissions"
            ) from None
        except StorageError:
            self.close()
            raise
        if identity and self.identity != identity:
            self.close()
            raise StorageError("the store is not the one that the service was started with: restart it")

    def secret(self, name: str) -> str:
        """A random secret of this store in hexadecimal, created on first use."""
        chosen = sa.select(secrets_.c.value).where(secrets_.c.name == name)
        with self.read() as connection:
            found = connection.execute(chosen).scalar()
        if found is None:
            with self.write() as connection:
                found = connection.execute(chosen).scalar()
                if found is None:
                    found = secrets.token_hex(32)
                    connection.execute(sa.insert(secrets_).values(name=name, value=found))
        return str(found)

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction."""
        with _damage_reported(), self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading."""
        with (
            _damage_reported(),
            self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        ):
            yield connection

    def check(self) -> None:
        """Raise an error unless the database can be read and written: a disk may be full."""
        self.secret(_CHECKED)
        with self.write() as connection:
            checked = sa.update(secrets_).where(secrets_.c.name == _CHECKED)
            connection.execute(checked.values(value=secrets.token_hex(32)))

    def forget_deleted(self) -> None:
        """Remove deleted rows from SQLite's write-ahead log, too, once no reader needs it."""
        if self._engine.dialect.name != "sqlite":
            return
        for pause in _CHECKPOINT_PAUSES:
            time.sleep(pause)
            with self.read() as connection:
                (busy, *_) = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
            if not busy:
                return

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _engine(url: str, *, create: bool) -> Engine:
    try:
        parsed = sa.engine.make_url(url)
    except sa.exc.ArgumentError:
        raise ConfigError("--store must be a URL such as sqlite:///service.db") from None
    if parsed.get_backend_name() != "sqlite":
        try:
            return sa.create_engine(parsed, pool_pre_ping=True)
        except (ImportError, sa.exc.NoSuchModuleError):
            raise ConfigError(
                f"no driver for a {parsed.drivername} store: pip install 'dewmark[postgresql]' and use "
                "postgresql+psycopg://…"
            ) from None
    if parsed.database in (None, "", ":memory:"):
        raise ConfigError("the store must be a file that all workers share: give sqlite:///FILE")
    file = Path(str(parsed.database)).absolute()
    if not create and not file.is_file():
        raise StorageError(f"the store {file} is gone: put it back, or restart the service")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError as error:
        raise StorageError(f"cannot write the store {file}: {error.strerror}") from None

    def connect() -> sqlite3.Connection:  # never creates a file, unlike a plain path
        where = f"{file.as_uri()}?mode=rw"
        return sqlite3.connect(where, uri=True, timeout=10.0, check_same_thread=False)

    engine = sa.create_engine(parsed, creator=connect)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_tables(connection: Connection) -> None:
    """Create the tables of a new store; refuse one of another version. Many processes may start at once."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    if not sa.inspect(connection).has_table(tokens.name):
        metadata.create_all(connection)
        connection.execute(sa.insert(schema).values(version=VERSION))
        return
    found = None
    if sa.inspect(connection).has_table(schema.name):
        found = connection.execute(sa.select(schema.c.version)).scalar()
    if found != VERSION:
        raise StorageError(
            f"the store has schema version {found} and this program {VERSION}: name a new store, or use the "
            "version of dewmark that made it"
        )


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


@contextlib.contextmanager
def _damage_reported() -> Iterator[None]:
    try:
        yield
    except sa.exc.DatabaseError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        raise StorageError(
            f"the store is damaged ({_reason(error)}): stop the service and restore it from a backup"
        ) from None
