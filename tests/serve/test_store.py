"""The database: SQLite's mode, bad URLs, and the query log."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa
from tests.serve.live import plain_text

from dewmark.errors import ConfigError, StorageError
from dewmark.serve.store import Store, queries


def test_sqlite_runs_in_wal_mode(tmp_path):
    Store(f"sqlite:///{tmp_path}/a/service.db").close()
    with sqlite3.connect(tmp_path / "a" / "service.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "not a url", "oracle://x"])
def test_invalid_urls_are_rejected(url):
    with pytest.raises(ConfigError):
        Store(url)


def test_errors_do_not_contain_the_password(tmp_path):
    with pytest.raises((ConfigError, StorageError)) as caught:
        Store("postgresql+psycopg://desk:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(caught.value)


def test_unwritable_folder_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write the store"):
        Store(f"sqlite:///{tmp_path}/file/service.db")


def test_query_log_contains_hashes_only(open_service, tmp_path):
    client = open_service(log_queries=True)
    text = plain_text()
    for _ in range(2):
        client.post("/v1/detect", json={"texts": [text, "short"]}, headers={"X-Request-Id": "q1"})
    with client.service.store.read() as connection:
        rows = connection.execute(sa.select(queries)).all()
    assert [row.verdict for row in rows] == ["not marked", "too short"] * 2
    assert rows[0].digest == rows[2].digest == client.service.query_log.digest(text)
    assert rows[0].digest != rows[1].digest
    assert {row.request for row in rows} == {"q1"}
    for file in tmp_path.glob("service.db*"):
        assert text[:40].encode() not in file.read_bytes()
