"""Batches of detections: results page by page, expiry."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic_core import to_json
from tests.desk.conftest import bearer
from tests.desk.live import bound, marked_texts, plain_texts, until
from tests.desk.test_jobs import ended

from dewmark.detect import score_text
from dewmark.errors import InputError
from dewmark_desk import job_runner, verdicts
from dewmark_desk.jobs import Item, Jobs, ScoredItem
from dewmark_desk.routes import jobs as routes
from dewmark_desk.store import Store, items, jobs
from dewmark_desk.store import texts as stored_texts

MARKED, PLAIN = marked_texts(12, 60), plain_texts(24, 60)
TEXTS = [*MARKED[:6], *PLAIN[:20]]
BODY = {"texts": [{"text": text, "id": f"t{i}"} for i, text in enumerate(TEXTS)]}


def pages(client, where: str, limit: int = 10) -> Iterator[list[dict]]:
    after = -1
    while after is not None:
        page = client.get(f"{where}/results?limit={limit}&after={after}").json()
        yield page["results"]
        after = page["next"]


class TestResults:
    def test_every_text_gets_the_verdict_of_detect(self, client):
        accepted = client.post("/v1/batches", json=BODY)
        assert accepted.status_code == 202
        where = accepted.headers["location"]
        job = ended(client, where)
        assert (job["kind"], job["state"], job["done"]) == ("detect", "done", len(TEXTS))
        found = [row for page in pages(client, where) for row in page]
        assert [row["id"] for row in found] == [f"t{i}" for i in range(len(TEXTS))]
        assert not any(
            passage["text"] for row in found if row["coverage"] for passage in row["coverage"]["passages"]
        )
        direct = client.post("/v1/detect", json={"texts": TEXTS}).json()["results"]
        for row, alone in zip(found, direct, strict=True):
            assert row["verdict"] == alone["verdict"]
            assert row["p_value"] == pytest.approx(alone["p_value"])
        summary = job["result"]
        assert summary["marked"] == sum(row["verdict"] == "marked" for row in found)
        assert summary["marked"] >= summary["rejected"] >= 1
        assert summary["texts"] == len(TEXTS)

    def test_texts_are_gone_once_they_are_scored(self, client, tmp_path):
        where = client.post("/v1/batches", json=BODY).headers["location"]
        ended(client, where)
        with client.service.store.read() as connection:
            assert connection.execute(sa.select(stored_texts)).all() == []

        def are_gone() -> bool:
            data = b"".join(file.read_bytes() for file in tmp_path.glob("service.db*"))
            return not any(text[:40].encode() in data for text in TEXTS)

        until(are_gone)  # the log is cut just after the job has ended

    def test_signers_are_trusted_as_by_detect(self, open_service, monkeypatch):
        asked = []
        monkeypatch.setattr(verdicts, "layers", lambda *_, roots: asked.append(roots))
        client = open_service(roots="/etc/roots.pem")
        ended(client, client.post("/v1/batches", json=BODY).headers["location"])
        assert asked == [Path("/etc/roots.pem")] * len(TEXTS)

    def test_several_tenants_are_corrected_for(self, open_service):
        client = open_service(tenants=("acme", "beta"))
        where = client.post("/v1/batches", json=BODY).headers["location"]
        job = ended(client, where)
        assert (job["tenant"], job["result"]["keys"]) == (None, 2)
        row = next(pages(client, where))[0]
        assert (row["tenant"], row["keys"]) == ("acme", 2)
        assert row["p_value"] == pytest.approx(score_text(bound("acme"), TEXTS[0]).p_value * 2, rel=0.01)

    def test_a_token_sees_its_own_results_only(self, client):
        mine, other = bearer(client, "detect"), bearer(client, "detect")
        where = client.post("/v1/batches", json=BODY, headers=mine).headers["location"]
        assert client.get(f"{where}/results", headers=mine).status_code == 200
        assert client.get(f"{where}/results", headers=other).status_code == 404
        public = bearer(client, "detect-public")
        assert client.post("/v1/batches", json=BODY, headers=public).status_code == 403

    def test_an_audit_has_no_results(self, shared):
        where = shared.post("/v1/audit", json={"texts": [{"text": PLAIN[0]}]}).headers["location"]
        assert shared.get(f"{where}/results").status_code == 404

    @pytest.mark.parametrize(
        "body",
        [
            {"texts": []},
            {"texts": [{"text": " "}]},
            {"texts": [{"text": "a"}], "tenants": ["nobody"]},
            {"texts": [{"text": "a"}], "test": "no such test"},
        ],
    )
    def test_bad_batches_are_refused(self, shared, body):
        assert shared.post("/v1/batches", json=body).status_code in (404, 422)


@pytest.mark.parametrize("bad", [{0}, {3}, {20}, {0, 3}])
def test_a_job_survives_a_text_that_cannot_be_examined(client, monkeypatch, bad):
    """Wherever it stands: the first result is stored whole, and the others by what differs from it."""
    detect = verdicts.detect

    def fails(queries, how):
        if any(query.text == TEXTS[i] for query in queries for i in bad):
            raise ZeroDivisionError("secret words of the text")
        return detect(queries, how)

    whole = [row for page in pages(client, run(client)) for row in page]
    monkeypatch.setattr(verdicts, "detect", fails)
    where = run(client)
    rows = [row for page in pages(client, where) for row in page]
    error = "internal error, see the service's log"
    assert rows == [
        {"number": i, "id": f"t{i}", "error": error} if i in bad else row for i, row in enumerate(whole)
    ]
    assert client.get(where).json()["result"]["without_verdict"] == len(bad)


def test_a_batch_whose_texts_all_fail_has_failed(client, monkeypatch):
    def fails(queries, how):
        raise InputError("no reader")

    monkeypatch.setattr(verdicts, "detect", fails)
    job = ended(client, client.post("/v1/batches", json=BODY).headers["location"])
    assert (job["state"], job["error"]) == ("failed", "none of the texts could be examined: no reader")


def run(client) -> str:
    where = client.post("/v1/batches", json=BODY).headers["location"]
    assert ended(client, where)["state"] == "done"
    return where


def test_a_store_that_fails_is_no_error_of_a_text():
    def fails(_):
        raise sa.exc.OperationalError("no store", None, None)

    with pytest.raises(sa.exc.OperationalError):
        job_runner._one_by_one_if_need_be(fails)([Item(0, "a"), Item(1, "b")])


class TestLists:
    def test_jobs_are_listed_page_by_page(self, open_service):
        client = open_service(jobs_per_token=20)
        made = [client.post("/v1/batches", json={"texts": [{"text": TEXTS[i]}]}) for i in range(7)]
        ids = [one.json()["job"]["id"] for one in made]
        found, after = [], ""
        for _ in range(4):
            page = client.get(f"/v1/jobs?limit=3{after}").json()
            found += [job["id"] for job in page["jobs"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
        assert found == ids[::-1]
        assert client.get("/v1/jobs?after=j_nothing-here").status_code == 404
        assert client.get("/v1/jobs?limit=0").status_code == 422


def test_ended_jobs_expire_with_their_results(client, monkeypatch):
    where = client.post("/v1/batches", json=BODY).headers["location"]
    ended(client, where)
    assert client.service.sweep() == 0
    assert client.get(where).status_code == 200
    now = client.service.jobs._clock()
    monkeypatch.setattr(client.service.jobs, "_clock", lambda: now + 8 * 86_400)
    assert client.service.sweep() == 1
    assert client.get(where).status_code == 404
    with client.service.store.read() as connection:
        assert connection.execute(sa.select(items)).all() == []


def test_a_slow_chunk_keeps_its_job(tmp_path):
    """A reader may take longer for a chunk than a lease lasts."""
    store = Store(f"sqlite:///{tmp_path}/jobs.db")
    now = [1000.0]
    slow, other = (Jobs(store, lease=0.06, clock=lambda: now[0]) for _ in range(2))
    slow.submit("me", tenant="acme", test=None, texts=[Item(0, "a")], owner_limit=1, limit=1)
    job = slow.claim(["acme"])

    def is_renewed() -> bool:
        with store.read() as connection:
            return connection.execute(sa.select(jobs.c.leased_until)).scalar() == now[0] + 0.06

    with slow.keeping(job):
        for _ in range(3):
            now[0] += 0.05
            until(is_renewed)
            assert other.claim(["acme"]) is None
    assert slow.record(job, [ScoredItem(0, 1, 0.5)])
    now[0] += 0.07  # nobody renews it any more, as if the worker had died
    assert other.claim(["acme"]).id == job.id


class TestIdempotency:
    def test_a_request_that_waits_for_its_twin_is_hashed_once(self, client, monkeypatch):
        headers, submit, hashed = {"Idempotency-Key": "now"}, client.service.jobs.submit, []
        waits, found = threading.Event(), []

        def counted(body):
            hashed.append(body)
            return to_json(body)

        def slow(*arguments, **options):
            with ThreadPoolExecutor(1) as pool:
                first = submit(*arguments, **options)
                state(first.id, "storing")
                twin = pool.submit(client.post, "/v1/batches", json=BODY, headers=headers)
                until(waits.is_set)
                state(first.id, "queued")
                found.append(twin.result().json()["job"]["id"])
            return first

        def state(id_, value):
            with client.service.store.write() as connection:
                row = sa.update(jobs).where(jobs.c.id == id_)
                connection.execute(row.values(state=value, leased_until=client.service.jobs._clock() + 600.0))

        get, seen = client.service.jobs.get, []

        def polled(id_):
            seen.append(id_)
            if len(seen) > 5:
                waits.set()
            return get(id_)

        client.service.runner.close()
        monkeypatch.setattr(client.service.jobs, "submit", slow)
        monkeypatch.setattr(client.service.jobs, "get", polled)
        monkeypatch.setattr(routes, "to_json", counted)
        made = client.post("/v1/batches", json=BODY, headers=headers).json()["job"]["id"]
        assert found == [made]
        assert len(hashed) == 2  # one of each

    def test_a_named_request_is_one_job_of_its_token_and_charged_once(self, client):
        headers = {**bearer(client, "detect", budget=30), "Idempotency-Key": "monday"}
        first, again = (client.post("/v1/batches", json=BODY, headers=headers) for _ in range(2))
        assert (first.status_code, again.status_code) == (202, 202)
        assert first.json()["job"]["id"] == again.json()["job"]["id"]
        assert client.service.tokens.all()[0].used == len(TEXTS)
        other = client.post("/v1/batches", json={"texts": [{"text": PLAIN[0]}]}, headers=headers)
        assert other.status_code == 422
        assert "another request had this key" in other.json()["error"]["message"]
        assert client.post("/v1/audit", json={"texts": BODY["texts"]}, headers=headers).status_code == 422
        stranger = {**bearer(client, "detect"), "Idempotency-Key": "monday"}
        made = client.post("/v1/batches", json=BODY, headers=stranger).json()["job"]["id"]
        assert made != first.json()["job"]["id"]
        bad = {**stranger, "Idempotency-Key": "a b"}
        assert client.post("/v1/batches", json=BODY, headers=bad).status_code == 422

    def test_simultaneous_requests_make_one_job_and_are_charged_once(self, client):
        headers = {**bearer(client, "detect", budget=1_000), "Idempotency-Key": "now"}
        with ThreadPoolExecutor(6) as pool:
            made = list(pool.map(lambda _: client.post("/v1/batches", json=BODY, headers=headers), range(6)))
        assert len({each.json()["job"]["id"] for each in made}) == 1
        assert client.service.tokens.all()[0].used == len(TEXTS)
