from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

import pytest
import sqlalchemy as sa
from tests.desk.conftest import bearer
from tests.desk.live import bound, make_service, marked_texts, plain_texts, until

from dewmark.detect import score_text
from dewmark.errors import InputError
from dewmark_desk import job_runner
from dewmark_desk.jobs import ATTEMPTS, BATCH, Item, Jobs, ScoredItem, TooManyJobs
from dewmark_desk.store import Store, items, texts

TEXTS = plain_texts(24, 60)


@pytest.fixture
def store(store_url) -> Iterator[Store]:
    store = Store(store_url)
    yield store
    store.close()


@pytest.fixture
def workers(store, clock) -> list[Jobs]:
    """The jobs of one store, as two worker processes see them."""
    return [Jobs(store, lease=20.0, clock=clock) for _ in range(2)]


def submit(jobs: Jobs, owner: str = "me", **limits: int):
    return jobs.submit(
        owner,
        tenant="acme",
        test=None,
        texts=[Item(i, f"text {i}", None, "en") for i in range(5)],
        **{"owner_limit": 4, "limit": 8, **limits},
    )


def dies(*_):
    raise KeyboardInterrupt


def ended(client, location: str, headers=None) -> dict:
    job: dict = {}

    def is_over() -> bool:
        job.update(client.get(location, headers=headers).json())
        return job["state"] in ("done", "failed")

    until(is_over)
    return job


class TestLeases:
    def test_job_has_one_worker(self, workers):
        made = submit(workers[0])
        assert workers[0].claim(["acme"]).id == made.id
        assert workers[1].claim(["acme"]) is None

    def test_another_worker_continues_after_a_death(self, workers, clock):
        submit(workers[0])
        job = workers[0].claim(["acme"])
        first = workers[0].open_items(job, count=2)
        assert workers[0].record(job, [ScoredItem(item.number, 10, 0.5) for item in first])
        clock.now += 19.0
        assert workers[1].claim(["acme"]) is None
        clock.now += 2.0
        taken = workers[1].claim(["acme"])
        assert (taken.id, taken.done) == (job.id, 2)
        assert [item.number for item in workers[1].open_items(taken, count=9)] == [2, 3, 4]
        # the first worker was merely slow: its late results do not count
        assert not workers[0].record(job, [ScoredItem(2, 10, 0.5)])
        workers[0].finish(job, error="late")
        assert workers[0].get(job.id).state == "running"

    def test_job_that_kills_its_workers_fails(self, workers, clock):
        made = submit(workers[0])
        for _ in range(ATTEMPTS):
            assert workers[0].claim(["acme"]) is not None
            clock.now += 21.0
        assert workers[0].claim(["acme"]) is None
        assert workers[0].get(made.id).state == "failed"

    def test_stopping_worker_returns_its_job(self, workers):
        submit(workers[0])
        workers[0].release(workers[0].claim(["acme"]))
        assert workers[1].claim(["acme"]) is not None

    def test_worker_takes_only_jobs_of_its_tenants(self, workers):
        submit(workers[0])
        assert workers[0].claim(["beta"]) is None

    def test_texts_are_deleted_when_their_job_ends(self, workers, store):
        submit(workers[0])
        job = workers[0].claim(["acme"])
        workers[0].record(job, [ScoredItem(0, 10, 0.5)])
        with store.read() as connection:
            left = connection.execute(sa.select(texts.c.text).order_by(texts.c.number)).scalars().all()
        assert left == ["text 1", "text 2", "text 3", "text 4"]
        workers[0].finish(job, result={})
        with store.read() as connection:
            assert connection.execute(sa.select(items)).all() == []
            assert connection.execute(sa.select(texts)).all() == []

    def test_a_job_that_failed_stays_so_if_its_worker_dies_then(self, workers, store, clock, monkeypatch):
        submit(workers[0])
        job = workers[0].claim(["acme"])
        monkeypatch.setattr(workers[0], "_empty", dies)
        with pytest.raises(KeyboardInterrupt):
            workers[0].finish(job, error="no such key")
        clock.now += 21.0
        assert workers[1].claim(["acme"]) is None
        assert (workers[1].get(job.id).state, workers[1].get(job.id).error) == ("failed", "no such key")
        assert workers[1].expire(days=1) == 0
        with store.read() as connection:
            assert connection.execute(sa.select(texts)).all() == []

    def test_a_job_that_is_half_deleted_expires(self, workers, clock, monkeypatch):
        made = submit(workers[0])
        monkeypatch.setattr(workers[0], "_empty", dies)
        with pytest.raises(KeyboardInterrupt):
            workers[0].delete(made.id)
        clock.now += 86_401.0
        assert workers[1].expire(days=1) == 1
        assert workers[1].get(made.id) is None

    def test_open_jobs_are_limited(self, workers):
        for _ in range(2):
            submit(workers[0], owner_limit=2)
        with pytest.raises(TooManyJobs) as own:
            submit(workers[0], owner_limit=2)
        with pytest.raises(TooManyJobs) as all_:
            submit(workers[0], "you", limit=2)
        assert (own.value.own, all_.value.own) == (True, False)


class TestManyTexts:
    """SQLite has one lock for all writers, which no job may hold for long."""

    MANY: ClassVar = [Item(i, f"text {i}", None, "en") for i in range(1_200)]

    def test_rows_are_written_and_deleted_in_short_transactions(self, store, workers, monkeypatch):
        changed, write = [], store.write

        @contextlib.contextmanager
        def counted():
            with write() as connection:
                before = connection.exec_driver_sql("SELECT total_changes()").scalar_one()
                yield connection
                after = connection.exec_driver_sql("SELECT total_changes()").scalar_one()
            changed.append(after - before)

        if store._engine.dialect.name != "sqlite":
            pytest.skip("counts SQLite's changes")
        monkeypatch.setattr(store, "write", counted)
        jobs, options = workers[0], {"tenant": "acme", "test": None, "owner_limit": 4, "limit": 8}
        made = jobs.submit("me", texts=self.MANY, **options)
        job = jobs.claim(["acme"])
        assert [item.number for item in jobs.open_items(job, count=2_000)] == list(range(1_200))
        jobs.finish(job, error="x")
        jobs.delete(made.id)
        jobs.delete(jobs.submit("me", kind=BATCH, texts=self.MANY, **options).id)
        assert sum(changed) >= 8 * 1_200
        assert max(changed) <= 2 * 500 + 1  # of two tables, and the job's lease
        with store.read() as connection:
            assert connection.execute(sa.select(items)).all() == []
            assert connection.execute(sa.select(texts)).all() == []

    def test_a_dead_job_takes_no_name_and_no_slot(self, workers, store, clock, monkeypatch):
        mine, other = workers
        options = {"named": "j_mine", "texts": self.MANY, "tenant": "acme", "test": None, "limit": 8}
        with monkeypatch.context() as patched:
            patched.setattr(mine, "_delete", lambda _: None)
            patched.setattr(mine, "_briefly", dies)
            with pytest.raises(KeyboardInterrupt):
                mine.submit("me", owner_limit=1, **options)
        clock.now += 21.0
        assert other.get("j_mine") is None
        assert other.submit("me", owner_limit=1, **options).state == "queued"

    def test_a_job_that_is_deleted_while_it_is_stored_is_told(self, workers, store, monkeypatch):
        mine, other = workers
        briefly, calls = mine._briefly, []

        def once():
            calls.append(1)
            if len(calls) == 2:
                other.delete("j_mine")
            return briefly()

        monkeypatch.setattr(mine, "_briefly", once)
        with pytest.raises(InputError, match="deleted while"):
            mine.submit(
                "me", named="j_mine", texts=self.MANY, tenant="acme", test=None, owner_limit=1, limit=8
            )
        with store.read() as connection:
            assert connection.execute(sa.select(texts)).all() == []

    def test_a_job_that_is_not_stored_yet_is_run_by_nobody(self, workers, store, clock, monkeypatch):
        mine, other = workers
        briefly, found = mine._briefly, []

        def once():
            if found:
                raise KeyboardInterrupt  # the worker dies
            found.append(other.claim(["acme"]))
            return briefly()

        monkeypatch.setattr(mine, "_briefly", once)
        monkeypatch.setattr(mine, "_delete", lambda _: None)
        options = {"tenant": "acme", "test": None, "owner_limit": 1, "limit": 8}
        with pytest.raises(KeyboardInterrupt):
            mine.submit("me", named="j_mine", texts=self.MANY, **options)
        assert found == [None]
        assert other.get("j_mine").to_dict()["state"] == "queued"
        with pytest.raises(TooManyJobs):
            other.submit("me", texts=self.MANY[:1], **options)
        clock.now += 21.0
        assert other.claim(["acme"]) is None
        assert other.get("j_mine") is None
        with store.read() as connection:
            assert connection.execute(sa.select(texts)).all() == []


class TestAudit:
    def test_audit_reports_the_rates(self, client):
        body = {"texts": [{"text": text} for text in (*TEXTS, TEXTS[0], " ", "short")]}
        accepted = client.post("/v1/audit", json=body)
        assert accepted.status_code == 202
        job = ended(client, accepted.headers["location"])
        assert (job["state"], job["done"], job["total"]) == ("done", 25, 25)
        report = job["result"]
        detections = [score_text(bound("acme"), text) for text in TEXTS]
        cell = next(cell for cell in report["cells"] if cell["level"] == 0.05)
        assert cell["alarms"] == sum(detection.p_value < 0.05 for detection in detections)
        assert (report["texts"], report["too_short"], report["left_out"]) == (24, 1, 2)
        assert report["outcome"] == "cannot tell"
        assert report["key_fingerprint"] == bound("acme").fingerprint
        assert {"name", "significant", "rate", "low", "high"} <= cell.keys()
        (listed,) = client.get("/v1/jobs").json()["jobs"]
        assert (listed["id"], listed["result"]) == (job["id"], None)

    def test_marked_texts_make_a_key_fail(self, client):
        body = {"texts": [{"text": text, "language": "en"} for text in marked_texts(12, 60)]}
        job = ended(client, client.post("/v1/audit", json=body).headers["location"])
        assert job["result"]["outcome"] == "fails"

    def test_audit_of_short_texts_fails_with_a_reason(self, client):
        made = client.post("/v1/audit", json={"texts": [{"text": "short"}]})
        job = ended(client, made.headers["location"])
        assert job["state"] == "failed"
        assert "long enough" in job["error"]

    def test_audit_with_a_text_that_cannot_be_examined_fails(self, client, monkeypatch):
        detect = job_runner.detect_texts

        def fails(texts, bound, **options):
            if TEXTS[3] in texts:
                raise InputError("no such word")
            return detect(texts, bound, **options)

        monkeypatch.setattr(job_runner, "detect_texts", fails)
        made = client.post("/v1/audit", json={"texts": [{"text": text} for text in TEXTS]})
        job = ended(client, made.headers["location"])
        assert (job["state"], job["error"]) == ("failed", "no such word")

    def test_job_belongs_to_its_token(self, client):
        mine, other, admin = (bearer(client, scope) for scope in ("detect", "detect", "admin"))
        made = client.post("/v1/audit", json={"texts": [{"text": TEXTS[0]}]}, headers=mine)
        where = made.headers["location"]
        assert ended(client, where, mine)["total"] == 1
        assert client.get(where, headers=other).status_code == 404
        assert client.get("/v1/jobs", headers=other).json() == {"jobs": [], "next": None}
        assert client.delete(where, headers=other).status_code == 404
        assert client.get(where, headers=admin).status_code == 200
        assert client.delete(where, headers=mine).status_code == 204
        assert client.get(where, headers=mine).status_code == 404

    def test_tenant_is_required_if_there_are_several(self, open_service):
        client = open_service(tenants=("acme", "beta"))
        body = {"texts": [{"text": TEXTS[0]}]}
        assert client.post("/v1/audit", json=body).status_code == 422
        assert client.post("/v1/audit", json={**body, "tenant": "beta"}).status_code == 202

    def test_audits_have_limits(self, open_service):
        client = open_service(jobs_per_token=1, audit_texts=30)
        client.service.runner.close()  # no job is run
        assert (
            client.post("/v1/audit", json={"texts": [{"text": f"a {i}"} for i in range(31)]}).status_code
            == 422
        )
        assert client.post("/v1/audit", json={"texts": [{"text": "x" * 1_000_001}]}).status_code == 413
        assert client.post("/v1/audit", json={"texts": [{"text": "a"}]}).status_code == 202
        refused = client.post("/v1/audit", json={"texts": [{"text": "a"}]})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")

    def test_next_service_continues_the_jobs_of_a_stopped_one(self, tmp_path, open_service):
        first = make_service(tmp_path)
        job = first.jobs.submit(
            "", tenant="acme", test=None, texts=[Item(i, each) for i, each in enumerate(TEXTS)],
            owner_limit=9, limit=9,
        )  # fmt: skip
        taken = first.jobs.claim(["acme"])
        first.jobs.record(taken, [ScoredItem(i, 57, 0.5) for i in range(10)])
        first.jobs.release(taken)
        client = open_service(make_service(tmp_path))
        done = ended(client, f"/v1/jobs/{job.id}")
        assert (done["state"], done["done"]) == ("done", 24)


def test_a_chunk_holds_few_large_texts(store):
    """A worker that loaded 16 texts of a megabyte at once would hold them all in memory."""
    jobs = Jobs(store, lease=10.0)
    sizes = {"a": 600, "b": 600, "c": 100, "d": 5000}
    large = [Item(i, letter * size) for i, (letter, size) in enumerate(sizes.items())]
    jobs.submit("me", tenant="acme", test=None, texts=large, owner_limit=1, limit=1)
    job = jobs.claim(["acme"])
    chunks = []
    while chunk := jobs.open_items(job, count=16, characters=1000):
        chunks.append([item.text[0] for item in chunk])
        assert jobs.record(job, [ScoredItem(item.number, 1, 0.5) for item in chunk])
    assert chunks == [["a"], ["b", "c"], ["d"]]
