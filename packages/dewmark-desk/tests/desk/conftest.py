from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import sqlalchemy as sa
from fastapi.testclient import TestClient
from tests.desk.live import make_service

from dewmark_desk.app import create_app
from dewmark_desk.service import Service

Open = Callable[..., TestClient]


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store; also PostgreSQL if ``DEWMARK_TEST_POSTGRESQL`` names a database, which is emptied."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/a/service.db"
    url = os.environ.get("DEWMARK_TEST_POSTGRESQL")
    if not url:
        pytest.skip("no DEWMARK_TEST_POSTGRESQL")
    return empty_postgresql(url)


def empty_postgresql(url: str) -> str:
    """Delete everything in a database."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA public CASCADE")
        connection.exec_driver_sql("CREATE SCHEMA public")
    engine.dispose()
    return url


@pytest.fixture
def open_service(tmp_path: Path) -> Iterator[Open]:
    """Start services in this process; each is available as its client's ``client.service``."""
    with ExitStack() as stack:

        def start(service: Service | None = None, **options: Any) -> TestClient:
            service = service or make_service(tmp_path, **options)
            client = TestClient(create_app(service), base_url="http://127.0.0.1:8080")
            client.service = service
            return stack.enter_context(client)

        yield start


@pytest.fixture
def client(open_service: Open) -> TestClient:
    """A service without tokens and with one tenant."""
    return open_service()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that also generates, for tests that leave it as it is."""
    service = make_service(tmp_path_factory.mktemp("shared"), generates=True)
    with TestClient(create_app(service), base_url="http://127.0.0.1:8080") as client:
        client.service = service
        yield client


def bearer(client: TestClient, *scopes: str, **options: Any) -> dict[str, str]:
    """Headers with a new token of these scopes."""
    _, text = client.service.tokens.new("test", scopes, **options)
    return {"Authorization": f"Bearer {text}"}


class Clock:
    """A time of day; tests also use it as the clock that cannot be set."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()
