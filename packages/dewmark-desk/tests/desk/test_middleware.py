from __future__ import annotations

import importlib
import itertools
import json
import logging
import pkgutil
import socket
from collections import Counter

import pytest
import sqlalchemy as sa
from tests.desk.conftest import bearer
from tests.desk.live import plain_text

from dewmark.errors import ConfigError
from dewmark_desk import routes as serve_routes
from dewmark_desk.fair_pool import Overloaded
from dewmark_desk.monitoring import JsonLines
from dewmark_desk.routes.dependencies import GuardedRoute
from dewmark_desk.settings import Settings
from dewmark_desk.supervisor import Supervisor

SECRET = "a sentence that nobody but its writer may ever see again"
ROUTES = [
    ("POST", "/v1/detect"),
    ("POST", "/v1/audit"),
    ("POST", "/v1/extract"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/j_0123456789abcdef"),
    ("DELETE", "/v1/jobs/j_0123456789abcdef"),
    ("GET", "/v1/nothing"),
]


class TestTokens:
    def test_first_token_makes_tokens_mandatory(self, client):
        bearer(client, "detect")
        wrong = ({}, {"Authorization": "Bearer dwm_0123456789ab_x"}, {"Authorization": "Basic YTpi"})
        for (method, path), header in itertools.product(ROUTES, wrong):
            response = client.request(method, path, headers=header)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "unauthorized"

    def test_revoking_the_last_token_does_not_open_the_service(self, client):
        head = bearer(client, "detect")
        assert client.get("/v1/jobs", headers=head).status_code == 200
        client.service.tokens.revoke(head["Authorization"].split("_")[1])
        assert client.get("/v1/jobs", headers=head).status_code == 401
        assert client.get("/v1/jobs").status_code == 401

    def test_whoami_needs_no_token(self, client):
        assert client.get("/v1/whoami").json()["open"]
        head = bearer(client, "detect", budget=5)
        nobody = client.get("/v1/whoami").json()
        assert (nobody["authenticated"], nobody["scopes"], nobody["tenants"]) == (False, [], [])
        client.post("/v1/detect", json={"texts": ["a", "b"]}, headers=head)
        known = client.get("/v1/whoami", headers=head).json()
        assert (known["scopes"], known["budget_left"], known["open"]) == (["detect"], 3, False)

    def test_rate_limit_says_when_to_retry(self, client):
        head = bearer(client, "detect", per_minute=3)
        answers = [client.post("/v1/detect", json={"text": "a"}, headers=head) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 21

    def test_responses_tell_what_the_token_has_left(self, client, monkeypatch, clock):
        monkeypatch.setattr(client.service.tokens, "_clock", clock)
        desk = bearer(client, "detect", per_minute=60.0, budget=100)
        names = [f"ratelimit-{name}" for name in ("limit", "remaining", "reset")] + ["budget-remaining"]
        short = " ".join(plain_text(3).split()[:80])
        for texts, status, left in (
            (20, 200, "60 40 20 80"),
            (40, 200, "60 0 60 40"),
            (30, 429, "60 0 60 40"),
        ):
            answer = client.post("/v1/detect", json={"texts": [short] * texts}, headers=desk)
            assert answer.status_code == status
            assert [answer.headers[name] for name in names] == left.split()
        assert "ratelimit-limit" not in client.get("/v1/whoami", headers=desk).headers

    def test_refusals_cost_no_budget(self, client, monkeypatch):
        head = bearer(client, "detect", budget=9)

        def left() -> int:
            return client.get("/v1/whoami", headers=head).json()["budget_left"]

        def busy(*_: object, **__: object) -> None:
            raise Overloaded(1.0)

        blank = " "
        assert client.post("/v1/detect", json={"text": blank}, headers=head).status_code == 422
        assert client.post("/v1/extract", files={"file": ("a.pdf", b"?")}, headers=head).status_code == 422
        assert left() == 9
        monkeypatch.setattr(client.service.fast, "run", busy)
        assert client.post("/v1/detect", json={"texts": ["a", "b"]}, headers=head).status_code == 503
        assert left() == 9

    def test_metrics_need_a_token_behind_a_proxy(self, client):
        assert client.get("/metrics").status_code == 200
        head = bearer(client, "metrics")
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers=head).status_code == 200

    def test_tokens_may_be_required_from_the_start(self, open_service):
        client = open_service(require_tokens=True)
        assert client.get("/v1/jobs").status_code == 401
        assert not client.get("/v1/whoami").json()["open"]

    def test_service_beyond_loopback_needs_tokens(self, open_service):
        client = open_service(host="0.0.0.0")
        assert client.get("/v1/jobs").status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/healthz").status_code == 200
        head = bearer(client, "admin")
        assert client.get("/metrics", headers=head).status_code == 200
        assert client.get("/metrics", headers=bearer(client, "detect")).status_code == 403


class TestBodies:
    def test_large_body_is_rejected_unread(self, shared):
        response = shared.post("/v1/detect", content=b"{}", headers={"content-length": str(9 << 20)})
        assert response.status_code == 413

    def test_large_body_without_length_is_rejected(self, open_service):
        client = open_service(body_bytes=10_000)
        pieces = (b"x" * 1000 for _ in range(20))
        response = client.post("/v1/detect", content=pieces, headers={"content-type": "application/json"})
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"\xff\xfe", b'{"text": NaN}', b"[" * 100_000, b"null", b"5"]
    )
    def test_invalid_json_is_rejected(self, shared, body):
        response = shared.post("/v1/detect", content=body, headers={"content-type": "application/json"})
        assert response.status_code in (400, 413, 422)

    def test_other_origins_cannot_post_without_preflight(self, shared):
        # without a preflight request, another origin may send only these types
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            response = shared.post("/v1/detect", content=b'{"text": "a"}', headers={"content-type": kind})
            assert response.status_code == 422, kind

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_forms_of_other_sites_are_rejected(self, shared, site):
        form = {"files": {"file": ("a.txt", b"the old bridge")}}
        own = {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:8080"}
        assert shared.post("/v1/extract", **form, headers=own).status_code == 200
        foreign = {"Sec-Fetch-Site": site, "Origin": "http://evil.example"}
        refused = shared.post("/v1/extract", **form, headers=foreign)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "cross_site")
        for origin in ("http://evil.example", "null", "http://127.0.0.1:8081"):  # browsers of before 2023
            assert shared.post("/v1/extract", **form, headers={"Origin": origin}).status_code == 403, origin
        assert shared.post("/v1/extract", **form).status_code == 200  # not a browser

    def test_proxied_page_with_a_token_is_its_own_site(self, client):
        head = {**bearer(client, "detect"), "Origin": "https://desk.example"}
        for site, status in (("same-origin", 200), ("cross-site", 403)):
            asked = client.post("/v1/detect", json={"text": "a"}, headers={**head, "Sec-Fetch-Site": site})
            assert asked.status_code == status
        assert "access-control-allow-origin" not in client.options("/v1/detect").headers


MANY = b'{"texts":[' + b"0," * 500_000 + b"0]}"  # a megabyte; its validation took 600 MB and 10 s


class TestExpensiveBodies:
    def test_many_values_are_not_validated(self, shared):
        head = {"content-type": "application/json"}
        for path, body in (
            ("/v1/detect", MANY),
            ("/v1/audit", b'{"texts":[' + b"{}," * 300_000 + b"{}]}"),
            ("/v1/detect", b'{"text":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
        ):
            refused = shared.post(path, content=body, headers=head)
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_many_values"), path

    @pytest.mark.parametrize(
        ("scopes", "options", "path", "status"),
        [
            (["detect-public"], {}, "/v1/audit", 403),
            (["generate"], {}, "/v1/detect", 403),
            (["detect"], {"per_minute": 1}, "/v1/detect", 429),
            (["detect"], {"budget": 1}, "/v1/detect", 403),
        ],
    )
    def test_scope_rate_and_budget_precede_the_body(self, client, monkeypatch, scopes, options, path, status):
        head = {**bearer(client, *scopes, **options), "content-type": "application/json"}
        if options:
            assert client.post("/v1/detect", json={"text": "a"}, headers=head).status_code == 200

        async def read(*_: object) -> bytes:
            raise AssertionError("the body was read")

        monkeypatch.setattr("starlette.requests.Request.body", read)
        assert client.post(path, content=MANY, headers=head).status_code == status

    def test_no_route_reads_a_body_unguarded(self):
        names = [module.name for module in pkgutil.iter_modules(serve_routes.__path__)]
        modules = [importlib.import_module(f"dewmark_desk.routes.{name}") for name in names]
        found = [route for each in modules if hasattr(each, "router") for route in each.router.routes]
        routes = [route for route in found if getattr(route, "body_field", None) is not None]
        assert len(routes) >= 8
        for route in routes:
            assert isinstance(route, GuardedRoute), route.path
            if route.path != "/v1/reports/verify":  # open to all, and its bodies are small
                assert route.openapi_extra["x-scopes"], route.path

    def test_bodies_held_at_a_time_are_limited(self, open_service):
        client = open_service(held_bytes=20_000, request_seconds=1e6)
        client.service.held = 19_000
        assert client.post("/v1/detect", json={"text": "a" * 5_000}).status_code == 503
        assert client.service.held == 19_000
        client.service.held = 0
        assert client.post("/v1/detect", json={"text": "a" * 50_000}).status_code == 200
        assert client.service.held == 0


class TestOverload:
    def test_work_of_one_request_is_limited(self, shared):
        refused = shared.post("/v1/detect", json={"texts": ["a long text " * 5_000] * 12})
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "texts_too_large")

    def test_stopping_service_answers_requests_on_open_connections_and_closes_them(self, client):
        client.service.draining = True
        answer = client.post("/v1/detect", json={"text": "the old bridge"})
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert client.get("/healthz").json()["status"] == "draining"

    def test_unavailable_store_is_a_503(self, client, monkeypatch):
        def away(*_: object, **__: object) -> None:
            raise sa.exc.OperationalError("SELECT", {}, RuntimeError(SECRET))

        monkeypatch.setattr(client.service.tokens, "exist", away)
        assert client.get("/v1/jobs").status_code == 503  # and not 500, as before
        monkeypatch.undo()
        monkeypatch.setattr(client.service.jobs, "of", away)
        refused = client.get("/v1/jobs")
        assert refused.status_code == 503
        assert SECRET not in refused.text


class TestResponses:
    def test_every_response_has_the_security_headers(self, shared):
        for path in ("/healthz", "/v1/whoami", "/docs", "/nothing", "/openapi.json"):
            headers = shared.get(path).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-request-id"]

    def test_harmless_request_ids_are_kept(self, shared):
        assert shared.get("/healthz", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
        bad = shared.get("/healthz", headers={"X-Request-Id": 'a" b'}).headers["x-request-id"]
        assert len(bad) == 16

    def test_service_without_tokens_answers_to_known_names_only(self, open_service):
        client = open_service(host_names=("desk.example",))
        for host, status in (
            ("evil.example", 400),
            ("localhost:8080", 200),
            ("[::1]:8080", 200),
            ("Desk.example", 200),
            ("127.0.0.1.evil.example", 400),
        ):
            assert client.get("/v1/whoami", headers={"Host": host}).status_code == status, host

    def test_docs_load_nothing_from_third_parties(self, shared):
        for path in ("/docs", "/static/docs.js", "/static/docs.css"):
            response = shared.get(path)
            assert response.status_code == 200
            assert "http://" not in response.text
            assert "https://" not in response.text
        assert "<script>" not in shared.get("/docs").text

    @pytest.mark.parametrize("name", ["..%2fapp.py", "app.py", "%2e%2e", "nothing.js", "a%00.js", ""])
    def test_only_static_files_are_served(self, shared, name):
        assert shared.get(f"/static/{name}").status_code == 404

    def test_internal_errors_reveal_nothing(self, client, monkeypatch, caplog):
        def explode(*_: object, **__: object) -> None:
            raise RuntimeError(SECRET)

        monkeypatch.setattr("dewmark_desk.verdicts.detect", explode)
        with caplog.at_level(logging.INFO, "dewmark_desk"):
            response = client.post("/v1/detect", json={"text": SECRET})
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal"
        written = "\n".join(JsonLines().format(record) for record in caplog.records)
        assert "RuntimeError" in written
        assert SECRET not in written + response.text


def test_logs_are_json_and_never_contain_the_text(client, caplog):
    head = {**bearer(client, "detect"), "X-Request-Id": "find-me"}
    with caplog.at_level(logging.INFO, "dewmark_desk"):
        client.post(f"/v1/detect?q={SECRET[:9]}", json={"text": f"{SECRET} {plain_text()}"}, headers=head)
        client.post("/v1/detect", json={"text": SECRET, SECRET: 1}, headers=head)
        client.get(f"/v1/jobs/{SECRET}", headers=head)
    lines = [JsonLines().format(record) for record in caplog.records]
    rows = [json.loads(line) for line in lines]
    assert {row["request_id"] for row in rows if row["event"] == "request"} == {"find-me"}
    assert [row["status"] for row in rows if row["event"] == "request"] == [200, 422, 422]
    assert rows[0]["route"] == "/v1/detect"
    assert SECRET[:9] not in "".join(lines)
    assert head["Authorization"].split("_", 2)[2] not in "".join(lines)


def test_metrics_count_requests_and_texts(client):
    client.post("/v1/detect", json={"text": plain_text()})
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    assert 'dewmark_texts_total{endpoint="detect",verdict="not_marked"} 1.0' in text
    assert 'dewmark_requests_total{method="POST",route="/v1/detect",status="200"} 1.0' in text
    assert "/nowhere" not in text


def test_metrics_count_kernels_that_torch_replaced(client, monkeypatch):
    monkeypatch.setattr("dewmark_desk.middleware.fallbacks", Counter({"one reason": 2, "another": 1}))
    client.get("/healthz")
    assert "\ndewmark_kernel_fallbacks 3.0\n" in client.get("/metrics").text


@pytest.mark.parametrize("error", [PermissionError("a key"), ConfigError("a key")])
def test_a_reload_that_fails_changes_nothing(caplog, error):
    def reread() -> Settings:
        raise error

    caplog.set_level("ERROR", logger="dewmark_desk")
    supervisor = Supervisor(Settings(keys=(("a", "b"),)), socket.socket(), reread=reread)
    supervisor._reload({})
    assert "nothing has changed" in caplog.text
    assert supervisor.pids == []
