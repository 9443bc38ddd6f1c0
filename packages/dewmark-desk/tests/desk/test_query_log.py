"""The query log: who asked about texts like this one, when; export, expiry, zero retention."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sqlalchemy as sa
from tests.desk.conftest import bearer
from tests.desk.live import marked_text, plain_text

from dewmark.errors import ConfigError
from dewmark_desk.query_log import QueryLog
from dewmark_desk.settings import Settings
from dewmark_desk.store import Store, bands, jobs, queries


@pytest.fixture
def log(store_url, clock):
    store = Store(store_url)
    yield QueryLog(store, clock=clock)
    store.close()


def ask(log: QueryLog, token: str, *texts: str) -> None:
    answers = [{"tenant": None, "verdict": "not_marked"} for _ in texts]
    log.write(request="r", token=token, endpoint="detect", texts=texts, answers=answers)


def edited(text: str, share: float, seed: int = 0) -> str:
    """The text with this share of its words replaced."""
    rng = np.random.default_rng(seed)
    words = text.split()
    for place in rng.choice(len(words), size=round(share * len(words)), replace=False):
        words[place] = f"other{place}"
    return " ".join(words)


def test_finds_who_asked_about_edited_copies(log, clock):
    text = marked_text()
    ask(log, "mallory", edited(text, 0.02), edited(text, 0.05, seed=1), plain_text(2))
    clock.now += 60.0
    ask(log, "desk", text, plain_text(3))
    found = log.like(text)
    assert [(row.token, row.time) for row in found] == [
        ("desk", 1_000_060.0),
        ("mallory", 1_000_000.0),
        ("mallory", 1_000_000.0),
    ]
    assert found[0].similarity == 1.0
    assert all(0.5 <= row.similarity < 1.0 for row in found[1:])
    assert [row.token for row in log.like(text, least=1.0)] == ["desk"]
    assert log.like("Nobody has ever asked about this sentence or about one that resembles it.") == []


def test_pages_and_export_cover_every_row_once(log):
    for i in range(7):
        ask(log, f"t{i}", f"text number {i} of seven")
    pages, after = [], 0
    while page := log.page(after=after, limit=3):
        pages.append([row.token for row in page])
        after = page[-1].number
    assert pages == [["t0", "t1", "t2"], ["t3", "t4", "t5"], ["t6"]]
    assert [row.token for row in log.export()] == [f"t{i}" for i in range(7)]
    assert list(log.export(until=1.0)) == []


def test_old_rows_expire_with_their_sketches(log, clock):
    ask(log, "old", "an old text that was asked about")
    clock.now += 40 * 86_400
    ask(log, "new", "a new text that was asked about")
    assert log.expire(days=30) == 1
    assert [row.token for row in log.export()] == ["new"]
    with log._store.read() as connection:
        held = connection.execute(sa.select(bands.c.query).distinct()).scalars().all()
        assert held == connection.execute(sa.select(queries.c.number)).scalars().all()


def test_log_never_holds_a_text(open_service, tmp_path):
    client = open_service(log_queries=True)
    text = plain_text()
    client.post("/v1/detect", json={"texts": [text, "short"]}, headers={"X-Request-Id": "q1"})
    (row, _) = client.service.query_log.export()
    assert (row.verdict, row.request, row.digest) == (
        "not_marked", "q1", client.service.query_log.digest(text),
    )  # fmt: skip
    for file in tmp_path.glob("service.db*"):
        assert text[:40].encode() not in file.read_bytes()


def test_an_administrator_searches_over_http_and_nobody_else(open_service):
    client = open_service(log_queries=True)
    desk, admin = bearer(client, "detect"), bearer(client, "admin")
    text = plain_text()
    client.post("/v1/detect", json={"text": text}, headers=desk)
    client.post("/v1/batches", json={"texts": [{"text": plain_text(4)}]}, headers=desk)
    body = {"text": edited(text, 0.05)}
    assert client.post("/v1/log/search", json=body, headers=desk).status_code == 403
    (found,) = client.post("/v1/log/search", json=body, headers=admin).json()["queries"]
    assert found["endpoint"] == "detect"
    assert found["token"] == client.service.tokens.all()[0].id
    assert client.get("/v1/log", headers=desk).status_code == 403
    first = client.get("/v1/log?limit=1", headers=admin).json()
    assert len(first["queries"]) == 1


def test_without_a_log_there_is_nothing_to_search(client):
    assert client.post("/v1/log/search", json={"text": "a"}).status_code == 404
    assert client.get("/v1/log").status_code == 404


def test_zero_retention_stores_nothing_about_requests(open_service, tmp_path, caplog):
    client = open_service(zero_retention=True)
    desk = bearer(client, "detect", "admin")
    text = plain_text()
    with caplog.at_level("INFO", logger="dewmark_desk"):
        assert client.post("/v1/detect", json={"text": text}, headers=desk).status_code == 200
        for path in ("/v1/batches", "/v1/audit"):
            refused = client.post(path, json={"texts": [{"text": text}]}, headers=desk)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    (token,) = client.service.tokens.all()
    assert all(token.id not in json.dumps(vars(record), default=str) for record in caplog.records)
    with client.service.store.read() as connection:
        for table in (queries, bands, jobs):
            assert connection.execute(sa.select(table)).all() == []
    assert client.get("/v1/log", headers=desk).status_code == 404
    with pytest.raises(ConfigError, match="--zero-retention"):
        Settings(keys=(("a", "b"),), zero_retention=True, log_queries=True)
