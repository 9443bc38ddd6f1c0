"""The database: SQLite's mode and bad URLs."""

from __future__ import annotations

import sqlite3

import pytest

from dewmark.errors import ConfigError, StorageError
from dewmark.serve.store import Store


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
