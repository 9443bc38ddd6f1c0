"""The service on a real PostgreSQL server (make test-postgresql): several processes, one truth."""

from __future__ import annotations

import os
import time

import pytest
from tests.desk.conftest import bearer, empty_postgresql
from tests.desk.live import make_service, marked_texts, plain_texts
from tests.desk.test_jobs import ended

from dewmark.cli.app import main
from dewmark_desk.jobs import BATCH, Item, ScoredItem

pytestmark = pytest.mark.skipif("DEWMARK_TEST_POSTGRESQL" not in os.environ, reason="no PostgreSQL server")
TEXTS = [*marked_texts(12, 60)[:4], *plain_texts(24, 60)[:16]]


@pytest.fixture
def url() -> str:
    return empty_postgresql(os.environ["DEWMARK_TEST_POSTGRESQL"])


def test_another_machine_finishes_a_batch_and_its_results_are_whole(url, open_service, tmp_path):
    first = make_service(tmp_path, store=url, lease_seconds=0.5)
    job = first.jobs.submit(
        "", kind=BATCH, tenant="acme", test=None, texts=[Item(i, text, name=str(i)) for i, text in
        enumerate(TEXTS)], options={"tenants": ["acme"], "keys": 1, "fpr": 0.01}, owner_limit=9, limit=9,
    )  # fmt: skip
    taken = first.jobs.claim(["acme"])
    answer = {"verdict": "not_marked", "p_value": 0.5}
    assert first.jobs.record(taken, [ScoredItem(i, 50, 0.5, answer) for i in range(5)])
    time.sleep(0.6)  # the first machine dies here: its lease runs out
    client = open_service(make_service(tmp_path, store=url, lease_seconds=0.5))
    done = ended(client, f"/v1/jobs/{job.id}")
    assert (done["state"], done["done"]) == ("done", len(TEXTS))
    rows = client.get(f"/v1/jobs/{job.id}/results?limit=500").json()["results"]
    assert [row["id"] for row in rows] == [str(i) for i in range(len(TEXTS))]
    assert rows[0]["p_value"] == 0.5
    first.store.close()


def test_the_whole_service_runs_on_it(url, open_service):
    client = open_service(store=url, log_queries=True)
    desk = bearer(client, "detect", budget=1000)
    assert client.get("/readyz").status_code == 200
    found = client.post("/v1/detect", json={"texts": TEXTS}, headers=desk)
    assert found.status_code == 200
    assert client.get("/v1/whoami", headers=desk).json()["budget_left"] == 1000 - len(TEXTS)
    made = client.post("/v1/batches", json={"texts": [{"text": TEXTS[0]}]}, headers=desk)
    assert ended(client, made.headers["location"], desk)["result"]["marked"] == 1
    asked = client.service.query_log.like(TEXTS[0], least=1.0)
    assert {row.endpoint for row in asked} == {"detect", "batch"}


def test_the_command_line_reaches_it(url, capsys):
    assert main(["token", "new", "--scope", "detect", "--store", url]) == 0
    assert main(["log", "expire", "--days", "1", "--store", url]) == 0
    assert capsys.readouterr().out.endswith("deleted 0 rows\n")
