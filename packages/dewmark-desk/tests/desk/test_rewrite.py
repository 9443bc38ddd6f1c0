"""Changes that mark a text are proposed to those who may write with the tenant's key."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from tests.desk import live
from tests.desk.live import PATIENCE, SECRETS, export, make_service, until

from dewmark.errors import InputError
from dewmark_desk import limited_child, rewriting
from dewmark_desk.limited_child import OutOfMemory

TEXT = "The committee decided to purchase a large building near the river."


@pytest.fixture(scope="module")
def detectors(tmp_path_factory):
    """Exported detectors: the process that rewrites opens its tenant's own."""
    folder = tmp_path_factory.mktemp("detectors")
    return tuple((each, str(export(folder, each))) for each in SECRETS)


@pytest.fixture
def open_service(open_service, detectors):
    return lambda **options: open_service(detectors=detectors, **options)


class Proposing:
    """Proposes to replace the first word, and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, text, mark, *, budget):
        self.asked.append((text, mark.scheme.fingerprint, budget))
        if "short" in text:
            raise InputError("the text has 1 words: a mark needs at least 20")
        first = text.split()[0]
        change = SimpleNamespace(start=0, end=len(first), old=first, new="A", cost=1.0)
        return SimpleNamespace(steps=[SimpleNamespace(change=change, z=1.0)])


@pytest.fixture
def proposing(monkeypatch):
    """Rewrites in this process."""
    made = Proposing()
    monkeypatch.setattr(rewriting, "rewriters", {"rewrite": made})
    monkeypatch.setattr(rewriting, "run", lambda _, *, data, bounds: rewriting.rewrite(data))
    return made


def test_changes_are_proposed_under_the_tenant_s_key_and_no_p_value_is_told(proposing, open_service):
    client = open_service()
    answer = client.post("/v1/rewrite", json={"text": TEXT, "budget": 0.2})
    assert answer.status_code == 200
    said = answer.json()
    assert said.keys() == {"request_id", "tenant", "changes"}
    assert said["tenant"] == "acme"
    assert said["changes"] == [{"start": 0, "end": 3, "old": "The", "new": "A"}]
    assert proposing.asked == [(TEXT, client.service.tenants["acme"].bound.fingerprint, 0.2)]
    assert client.get("/v1/whoami").json()["rewrites"] is True


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"text": "short"}, 422, "at least 20"),
        ({"text": " "}, 422, "text"),
        ({"text": "word " * 1000}, 413, "4,000 characters"),
        ({"text": TEXT, "budget": 0.9}, 422, "budget"),
        ({"text": TEXT, "tenant": "nobody"}, 404, "no such tenant"),
    ],
)
def test_bad_requests_are_refused_in_one_line(proposing, open_service, body, status, said):
    answer = open_service().post("/v1/rewrite", json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


def test_a_token_needs_the_scope_and_pays(proposing, open_service):
    client = open_service()
    tokens = client.service.tokens
    _, reads = tokens.new("reads", ["detect"], tenants=["acme"])
    _, writes = tokens.new("writes", ["generate"], tenants=["acme"], budget=1)
    ask = lambda token: client.post(  # noqa: E731
        "/v1/rewrite", json={"text": TEXT}, headers={"Authorization": f"Bearer {token}"}
    )
    assert ask(reads).status_code == 403
    assert [ask(writes).status_code for _ in range(2)] == [200, 403]
    assert len(proposing.asked) == 1


def test_among_several_tenants_one_is_named(proposing, open_service):
    client = open_service(tenants=tuple(SECRETS))
    assert "name one" in client.post("/v1/rewrite", json={"text": TEXT}).json()["error"]["message"]
    assert client.post("/v1/rewrite", json={"text": TEXT, "tenant": "beta"}).json()["tenant"] == "beta"
    retired = client.post("/v1/rewrite", json={"text": TEXT, "tenant": "acme@2025"})
    assert retired.status_code == 422


def test_without_the_package_there_is_no_route(monkeypatch, open_service):
    monkeypatch.setattr(rewriting, "rewriters", {})
    client = open_service()
    assert client.post("/v1/rewrite", json={"text": TEXT}).status_code in (404, 405)
    assert client.get("/v1/whoami").json()["rewrites"] is False


REWRITER = """
import os
from types import SimpleNamespace

def rewrite(text, mark, *, budget):
    said = f"{os.getpid()} {mark.scheme.fingerprint} {budget}"
    change = SimpleNamespace(start=0, end=3, old=text[:3], new=said, cost=1.0)
    return SimpleNamespace(steps=[SimpleNamespace(change=change, z=1.0)])
"""


def test_a_text_is_rewritten_in_another_process(tmp_path, monkeypatch, open_service):
    (tmp_path / "rewriter.py").write_text(REWRITER)
    published = tmp_path / "dewmark_rewrite-1.dist-info"  # instead of the real one, which needs a model
    published.mkdir()
    (published / "METADATA").write_text("Metadata-Version: 2.1\nName: dewmark-rewrite\nVersion: 1\n")
    (published / "entry_points.txt").write_text("[dewmark.rewriters]\nrewrite = rewriter:rewrite\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(rewriting, "rewriters", {"rewrite": None})
    said = open_service(tenants=("acme", "beta")).post("/v1/rewrite", json={"text": TEXT, "tenant": "beta"})
    (change,) = said.json()["changes"]
    process, fingerprint, budget = change["new"].split()
    assert (fingerprint, budget) == (live.bound("beta").fingerprint, "0.1")
    assert int(process) != os.getpid()


@pytest.mark.parametrize("error", [TimeoutError, OutOfMemory])
def test_a_text_that_takes_too_much_is_refused_in_one_line(proposing, monkeypatch, open_service, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(rewriting, "run", fails)
    answer = open_service().post("/v1/rewrite", json={"text": TEXT})
    assert answer.status_code == 422
    assert "too long or too much memory" in answer.json()["error"]["message"]


def test_a_service_that_stops_ends_its_children(tmp_path, monkeypatch):
    service = make_service(tmp_path)
    service.start()
    bounds = limited_child.Bounds(60.0, 1 << 30, patience=PATIENCE)
    task = lambda _: [limited_child.run("sleeping:sleep", data=b"", bounds=bounds)]  # noqa: E731
    (tmp_path / "sleeping.py").write_text("import time\n\ndef sleep(data):\n    time.sleep(3600)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(service.rewriting.run_job, task, [""], owner="me", cost=1.0)
        until(lambda: limited_child._running)
        service.close()
        with pytest.raises(ChildProcessError):
            answer.result()


def test_nobody_s_texts_wait_for_a_text_that_is_rewritten(proposing, monkeypatch, open_service):
    begun, ending = threading.Event(), threading.Event()

    def waits(_, *, data, bounds):
        begun.set()
        ending.wait()
        return json.dumps([]).encode()

    monkeypatch.setattr(rewriting, "run", waits)
    client = open_service()
    with ThreadPoolExecutor(1) as other:
        answer = other.submit(client.post, "/v1/rewrite", json={"text": TEXT})
        begun.wait()
        try:
            body = {"text": "the old bridge " * 2_000}  # of the slow pool
            assert client.post("/v1/detect", json=body).status_code == 200
        finally:
            ending.set()
        assert answer.result().json()["changes"] == []


def test_a_key_that_is_gone_is_no_fault_of_the_text(monkeypatch, open_service):
    monkeypatch.setattr(rewriting, "rewriters", {"rewrite": None})
    client = open_service()
    gone = (("acme", "/nowhere/secret"),)
    client.service.settings = dataclasses.replace(client.service.settings, detectors=gone)
    answer = client.post("/v1/rewrite", json={"text": TEXT})
    assert answer.status_code == 500
    assert "nowhere" not in answer.text
