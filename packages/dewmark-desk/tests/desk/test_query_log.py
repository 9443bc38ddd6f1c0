"""The query log: who asked about texts like this one, when; export, expiry, zero retention."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sqlalchemy as sa
from tests.desk.conftest import bearer
from tests.desk.live import marked_text, plain_text

from dewmark.errors import ConfigError
from dewmark_desk import query_log
from dewmark_desk.query_log import PLACES, QueryLog, Sketcher, shingles, similarities
from dewmark_desk.settings import Settings
from dewmark_desk.store import Store, jobs, queries


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


def test_searches_and_exports_cover_every_page(log, clock, monkeypatch):
    monkeypatch.setattr(query_log, "_PAGE", 3)
    for i in range(7):
        ask(log, f"t{i}", f"the very same text, number {i // 6}")
        clock.now += 86_400
    assert [row.token for row in log.export()] == [f"t{i}" for i in range(7)]
    same = "the very same text, number 0"
    assert [row.token for row in log.like(same, least=1.0)] == [f"t{i}" for i in range(6)][::-1]
    assert [row.token for row in log.like(same, least=1.0, limit=2)] == ["t5", "t4"]
    assert log.expire(days=3.5) == 4
    assert [row.token for row in log.export()] == ["t4", "t5", "t6"]


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


def test_zero_retention_stores_nothing_about_requests(open_service, tmp_path, caplog):
    client = open_service(zero_retention=True)
    desk = bearer(client, "detect")
    text = plain_text()
    with caplog.at_level("INFO", logger="dewmark_desk"):
        assert client.post("/v1/detect", json={"text": text}, headers=desk).status_code == 200
        for path in ("/v1/batches", "/v1/audit"):
            refused = client.post(path, json={"texts": [{"text": text}]}, headers=desk)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    (token,) = client.service.tokens.all()
    assert all(token.id not in json.dumps(vars(record), default=str) for record in caplog.records)
    with client.service.store.read() as connection:
        for table in (queries, jobs):
            assert connection.execute(sa.select(table)).all() == []
    with pytest.raises(ConfigError, match="--zero-retention"):
        Settings(keys=(("a", "b"),), zero_retention=True, log_queries=True)


# Sketches

KEY = bytes(range(32))
WORDS = [f"w{i}" for i in range(3000)]


def texts(similarity: float, rng: np.random.Generator, *, size: int = 400) -> tuple[str, str]:
    """Two texts without repeated phrases whose shingles have about this Jaccard similarity."""
    words = list(rng.choice(WORDS, size=size, replace=False))
    shared = round(2 * size * similarity / (1 + similarity))
    other = words[:shared] + [f"x{i}" for i in range(size - shared)]
    return " ".join(words), " ".join(other)


def alike(key: bytes, a: str, b: str) -> float:
    sketch = Sketcher(key)
    return float(similarities(sketch(a), [sketch(b)])[0])


def jaccard(a: str, b: str) -> float:
    one, two = set(shingles(a)), set(shingles(b))
    return len(one & two) / len(one | two)


@pytest.mark.parametrize("target", [0.1, 0.3, 0.5, 0.8])
def test_equal_places_estimate_the_similarity(target):
    rng = np.random.default_rng(0)
    errors = []
    for i in range(40):
        a, b = texts(target, rng)
        errors.append(alike(bytes([i]) * 32, a, b) - jaccard(a, b))
    # a place agrees with probability J: the mean of 40 estimates has the error √(J(1−J)/60/40) ≤ 0.0102
    assert abs(np.mean(errors)) < 4 * 0.0102
    assert np.std(errors) < 0.065 * 1.5


def test_a_key_changes_every_hash():
    text = "the old bridge over the river was built of stone"
    assert similarities(Sketcher(KEY)(text), [Sketcher(KEY[::-1])(text)]) == 0.0


def test_case_spacing_and_punctuation_do_not_matter():
    assert alike(KEY, "The old bridge, over the river!", "the  OLD bridge over\nthe river") == 1.0


@pytest.mark.parametrize("text", ["", "one", "two words", "…", "橋", "สะพาน", "\ud800", "a " * 100_000])
def test_every_text_has_a_sketch(text):
    assert len(Sketcher(KEY)(text)) == 4 * PLACES
    assert alike(KEY, text, text) == 1.0


def test_scripts_without_spaces_are_compared_by_character():
    a, b = "古い橋が川に架かっている。石で造られた。" * 2, "古い橋が川に架かっている。木で造られた。" * 2
    assert alike(KEY, a, b) > 0.4
