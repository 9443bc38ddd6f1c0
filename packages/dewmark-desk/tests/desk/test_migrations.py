"""The store's schema: an old store becomes what a new one is, once, and keeps its rows."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from dewmark.errors import StorageError
from dewmark_desk.api_tokens import Tokens
from dewmark_desk.jobs import Jobs
from dewmark_desk.migrations import NEWEST, stored_version
from dewmark_desk.store import Store

# The tables as the first version created them.
FIRST = """
CREATE TABLE dewmark_tokens (id VARCHAR(16) PRIMARY KEY, name TEXT NOT NULL, digest VARCHAR(64) NOT NULL,
  scopes TEXT NOT NULL, tenants TEXT NOT NULL, created FLOAT NOT NULL, expires FLOAT, revoked FLOAT,
  per_minute FLOAT NOT NULL, free_at FLOAT NOT NULL, budget BIGINT, used BIGINT NOT NULL);
CREATE TABLE dewmark_jobs (id VARCHAR(40) PRIMARY KEY, owner VARCHAR(16) NOT NULL, state VARCHAR(10) NOT NULL,
  tenant TEXT NOT NULL, test TEXT, total INTEGER NOT NULL, left_out INTEGER NOT NULL, done INTEGER NOT NULL,
  created FLOAT NOT NULL, finished FLOAT, worker VARCHAR(40), leased_until FLOAT NOT NULL,
  attempts INTEGER NOT NULL, error TEXT, result TEXT);
CREATE INDEX ix_dewmark_jobs_owner ON dewmark_jobs (owner);
CREATE INDEX ix_dewmark_jobs_state ON dewmark_jobs (state);
CREATE TABLE dewmark_items (job VARCHAR(40) NOT NULL REFERENCES dewmark_jobs (id) ON DELETE CASCADE,
  number INTEGER NOT NULL, text TEXT, prompt TEXT, language TEXT NOT NULL, length INTEGER, p_value FLOAT,
  PRIMARY KEY (job, number));
CREATE TABLE dewmark_queries ({serial}, time FLOAT NOT NULL, request VARCHAR(64) NOT NULL,
  token VARCHAR(16) NOT NULL, endpoint VARCHAR(32) NOT NULL, digest VARCHAR(64) NOT NULL,
  characters INTEGER NOT NULL, tenant TEXT NOT NULL, verdict VARCHAR(16) NOT NULL);
CREATE INDEX ix_dewmark_queries_time ON dewmark_queries (time);
CREATE INDEX ix_dewmark_queries_digest ON dewmark_queries (digest);
CREATE TABLE dewmark_secrets (name VARCHAR(32) PRIMARY KEY, value VARCHAR(64) NOT NULL);
INSERT INTO dewmark_tokens VALUES ('abc', 'desk', 'x', 'detect', '', 1.0, NULL, NULL, 60.0, 0.0, 9, 4);
INSERT INTO dewmark_jobs (id, owner, state, tenant, total, left_out, done, created, leased_until, attempts)
  VALUES ('j_old', 'abc', 'queued', 'acme', 1, 0, 0, 5.0, 0.0, 0);
INSERT INTO dewmark_items (job, number, text, language) VALUES ('j_old', 0, 'an old text', 'en');
"""


def execute(url: str, script: str) -> None:
    parsed = sa.engine.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in script.split(";"):
            if statement.strip():
                connection.execute(sa.text(statement))
    engine.dispose()


def columns(url: str) -> dict[str, set[str]]:
    """Columns and indexes of every table."""
    engine = sa.create_engine(url)
    found = sa.inspect(engine)
    shape = {
        table: {column["name"] for column in found.get_columns(table)}
        | {str(index["name"]) for index in found.get_indexes(table)}
        for table in found.get_table_names()
        if table.startswith("dewmark_")
    }
    engine.dispose()
    return shape


@pytest.fixture
def old(store_url: str) -> str:
    """A store of the first version, with a token and a job."""
    postgres = store_url.startswith("postgresql")
    serial = "number SERIAL PRIMARY KEY" if postgres else "number INTEGER PRIMARY KEY"
    execute(store_url, FIRST.replace("{serial}", serial))
    return store_url


def test_an_old_store_gets_the_tables_of_a_new_one_and_keeps_its_rows(old, tmp_path):
    store = Store(old)
    assert store.upgraded == (1, NEWEST)
    (token,) = Tokens(store).all()
    assert (token.name, token.budget, token.used) == ("desk", 9, 4)
    jobs = Jobs(store, lease=1.0)
    job = jobs.get("j_old")
    assert [item.text for item in jobs.open_items(job, count=9)] == ["an old text"]
    assert (job.kind, job.state, job.settings, job.webhook_state) == ("audit", "queued", {}, None)
    store.close()
    again = Store(old)
    assert again.upgraded == (NEWEST, NEWEST)
    again.close()
    fresh = f"sqlite:///{tmp_path}/fresh.db"
    Store(fresh).close()
    assert columns(old) == columns(fresh)


def test_many_processes_may_open_an_old_store_at_once(old):
    found: list[tuple[int, int]] = []

    def open_it() -> None:
        store = Store(old)
        found.append(store.upgraded)
        store.close()

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(1, NEWEST)] + [(NEWEST, NEWEST)] * 7


def test_a_store_of_a_newer_program_is_refused(store_url):
    Store(store_url).close()
    execute(store_url, f"UPDATE dewmark_schema SET version = {NEWEST + 1}")
    with pytest.raises(StorageError, match="update dewmark"):
        Store(store_url)


def test_an_empty_database_has_version_0(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.connect() as connection:
        assert stored_version(connection) == 0
