"""Schema versions of the store: a new store gets the newest tables, an older one is brought up to date.

``dewmark_schema`` has one row, the version. A change of the tables adds a step here; steps run in order, in
one transaction, under a lock, so that of many processes that open a store only one changes it. A store that
is newer than the program is refused.

Boundary: versions and DDL; `store` defines the tables themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dewmark.errors import StorageError

_LOCK = 0x6465776D  # of PostgreSQL's advisory lock; any number that nobody else uses

Step = Callable[[Connection, sa.MetaData], None]


def upgrade(connection: Connection, metadata: sa.MetaData) -> tuple[int, int]:
    """Bring the store to the newest version, in the caller's transaction; returns versions before and after.

    A store without tables has version 0.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    before = stored_version(connection)
    if before > NEWEST:
        raise StorageError(
            f"the store has schema version {before} and this program knows {NEWEST}: update dewmark"
        )
    if before == 0:
        metadata.create_all(connection)
    for version in range(max(before, 1) + 1, NEWEST + 1) if before else ():
        _STEPS[version](connection, metadata)
    if before < NEWEST:
        _schema.create(connection, checkfirst=True)
        connection.execute(sa.delete(_schema))
        connection.execute(sa.insert(_schema).values(version=NEWEST))
    return before, NEWEST


def stored_version(connection: Connection) -> int:
    """The version of a store: 0 without tables, 1 with tables that carry no version."""
    inspector = sa.inspect(connection)
    if inspector.has_table(_schema.name):
        return int(connection.execute(sa.select(_schema.c.version)).scalar_one())
    return 1 if inspector.has_table("dewmark_tokens") else 0


def _add_missing(connection: Connection, metadata: sa.MetaData) -> None:
    """Create the tables, columns and indexes that an older store lacks; a new column needs a default."""
    metadata.create_all(connection)
    inspector = sa.inspect(connection)
    for table in metadata.sorted_tables:
        present = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in present:
                ddl = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {ddl}")
        indexed = {index["name"] for index in inspector.get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in indexed:
                index.create(connection)


def _second(connection: Connection, metadata: sa.MetaData) -> None:
    """Batch jobs, webhooks, named requests, sketches in the query log, and longer verdicts."""
    _add_missing(connection, metadata)
    if connection.dialect.name == "postgresql":  # SQLite's strings have no limit
        connection.exec_driver_sql("ALTER TABLE dewmark_queries ALTER COLUMN verdict TYPE VARCHAR(32)")


def _third(connection: Connection, metadata: sa.MetaData) -> None:
    """Budgets of bytes, and * for all tenants, which an empty list meant before."""
    _add_missing(connection, metadata)
    connection.exec_driver_sql("UPDATE dewmark_tokens SET tenants = '*' WHERE tenants = ''")


def _fourth(connection: Connection, metadata: sa.MetaData) -> None:
    """The words of texts in a table of their own."""
    _add_missing(connection, metadata)
    if "text" in {column["name"] for column in sa.inspect(connection).get_columns("dewmark_items")}:
        connection.exec_driver_sql(
            "INSERT INTO dewmark_texts SELECT job, number, text, prompt FROM dewmark_items "
            "WHERE text IS NOT NULL"
        )
        for column in ("text", "prompt"):
            connection.exec_driver_sql(f"ALTER TABLE dewmark_items DROP COLUMN {column}")


def _fifth(connection: Connection, metadata: sa.MetaData) -> None:
    """What public tokens asked about, in place of what they were answered."""
    _add_missing(connection, metadata)
    connection.exec_driver_sql("DROP TABLE IF EXISTS dewmark_answers")


_schema = sa.Table("dewmark_schema", sa.MetaData(), sa.Column("version", sa.Integer, nullable=False))

_STEPS: dict[int, Step] = {2: _second, 3: _third, 4: _fourth, 5: _fifth}
NEWEST = max(_STEPS)
