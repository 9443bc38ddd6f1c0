"""Changes that mark a text are proposed to those who may write with the tenant's key."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.desk.live import SECRETS

from dewmark.errors import InputError
from dewmark_desk.routes import rewrite

TEXT = "The committee decided to purchase a large building near the river."


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
    made = Proposing()
    monkeypatch.setattr(rewrite, "rewriters", {"rewrite": made})
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
    monkeypatch.setattr(rewrite, "rewriters", {})
    client = open_service()
    assert client.post("/v1/rewrite", json={"text": TEXT}).status_code in (404, 405)
    assert client.get("/v1/whoami").json()["rewrites"] is False
