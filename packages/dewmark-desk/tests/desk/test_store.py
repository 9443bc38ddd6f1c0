"""The database: SQLite's mode, bad URLs, the version of its tables."""

from __future__ import annotations

import sqlite3
import threading

import pytest
import sqlalchemy as sa
from tests.desk.live import make_service

from dewmark.errors import ConfigError, StorageError
from dewmark_desk.api_tokens import Tokens
from dewmark_desk.store import VERSION, Store


def test_sqlite_runs_in_wal_mode(tmp_path):
    Store(f"sqlite:///{tmp_path}/a/service.db").close()
    with sqlite3.connect(tmp_path / "a" / "service.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "a file that all workers share"),
        ("sqlite:///:memory:", "a file that all workers share"),
        ("not a url", "must be a URL"),
        ("oracle://x", "no driver for a oracle store"),
    ],
)
def test_invalid_urls_are_rejected(url, message):
    with pytest.raises(ConfigError, match=message):
        Store(url)


def test_errors_do_not_contain_the_password(tmp_path):
    with pytest.raises((ConfigError, StorageError)) as caught:
        Store("postgresql+psycopg://desk:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(caught.value)


def test_unwritable_folder_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write the store"):
        Store(f"sqlite:///{tmp_path}/file/service.db")


def test_store_that_was_moved_away_is_not_created_again(tmp_path):
    url = f"sqlite:///{tmp_path}/service.db"
    first = Store(url)
    Tokens(first).new("desk", ["detect"])
    assert Store(url, identity=first.identity).identity == first.identity
    first.close()
    for file in tmp_path.glob("service.db*"):
        file.rename(tmp_path / file.name.replace("service", "moved"))
    with pytest.raises(StorageError, match="gone"):
        make_service(tmp_path, store_id=first.identity)  # the next worker opened a service without tokens
    assert not (tmp_path / "service.db").exists()
    Store(url).close()
    with pytest.raises(StorageError, match="not the one"):
        make_service(tmp_path, store_id=first.identity)


def test_connections_do_not_create_a_store(tmp_path):
    store = Store(f"sqlite:///{tmp_path}/service.db")
    store._engine.dispose()
    for file in tmp_path.glob("service.db*"):
        file.unlink()
    with pytest.raises(sa.exc.OperationalError, match="unable to open"), store.read():
        pass
    assert not (tmp_path / "service.db").exists()


def test_damaged_pages_are_reported_in_one_line(tmp_path):
    file = tmp_path / "service.db"
    store = Store(f"sqlite:///{file}")
    for i in range(200):
        Tokens(store).new(f"token {i}", ["detect"])
    store.forget_deleted()
    store.close()
    data = bytearray(file.read_bytes())
    for page in range(2, len(data) // 4096):
        data[4096 * page : 4096 * page + 64] = b"\xff" * 64
    file.write_bytes(bytes(data))
    with pytest.raises(StorageError, match="damaged.*backup") as caught:
        Tokens(Store(f"sqlite:///{file}")).all()
    assert "\n" not in str(caught.value)
    file.write_bytes(b"not a database" * 1000)
    with pytest.raises(StorageError, match="damaged"):
        Store(f"sqlite:///{file}")


def test_many_processes_may_open_an_empty_store_at_once(store_url):
    found: list[str] = []

    def open_it() -> None:
        store = Store(store_url)
        found.append(store.identity)
        store.close()

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    "change", ["DROP TABLE dewmark_schema", f"UPDATE dewmark_schema SET version = {VERSION + 1}"]
)
def test_a_store_of_another_version_is_refused(store_url, change):
    Store(store_url).close()
    engine = sa.create_engine(store_url)
    with engine.begin() as connection:
        connection.execute(sa.text(change))
    engine.dispose()
    with pytest.raises(StorageError, match=f"this program {VERSION}: name a new store"):
        Store(store_url)
