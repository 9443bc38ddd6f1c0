from __future__ import annotations

import json
import logging
import threading
import time

import pytest
import sqlalchemy as sa
from tests.serve.conftest import bearer
from tests.serve.live import plain_text

from dewmark.serve import verdicts
from dewmark.serve.monitoring import JsonLines

SECRET = "a sentence that nobody but its writer may ever see again"
ROUTES = [
    ("POST", "/v1/detect"),
    ("POST", "/v1/locate"),
    ("POST", "/v1/audit"),
    ("POST", "/v1/extract"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/j_0123456789abcdef"),
    ("DELETE", "/v1/jobs/j_0123456789abcdef"),
    ("GET", "/v1/nothing"),
]


class TestTokens:
    @pytest.mark.parametrize(("method", "path"), ROUTES)
    def test_once_there_is_a_token_nobody_is_served_without(self, client, method, path):
        bearer(client, "detect")
        for header in ({}, {"Authorization": "Bearer dwm_0123456789ab_x"}, {"Authorization": "Basic YTpi"}):
            response = client.request(method, path, headers=header)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "unauthorized"

    def test_a_revoked_token_does_not_open_the_service_again(self, client):
        head = bearer(client, "detect")
        assert client.get("/v1/jobs", headers=head).status_code == 200
        client.service.tokens.revoke(head["Authorization"].split("_")[1])
        assert client.get("/v1/jobs", headers=head).status_code == 401
        assert client.get("/v1/jobs").status_code == 401

    def test_scopes(self, client):
        head = bearer(client, "generate")
        assert client.post("/v1/detect", json={"text": "a"}, headers=head).status_code == 403
        admin = bearer(client, "admin")
        assert client.post("/v1/detect", json={"text": "a", "tokens": True}, headers=admin).status_code == 200

    def test_whoami_refuses_nobody(self, client):
        assert client.get("/v1/whoami").json()["open"]
        head = bearer(client, "detect", budget=5)
        nobody = client.get("/v1/whoami").json()
        assert (nobody["authenticated"], nobody["scopes"], nobody["tenants"]) == (False, [], [])
        client.post("/v1/detect", json={"texts": ["a", "b"]}, headers=head)
        known = client.get("/v1/whoami", headers=head).json()
        assert (known["scopes"], known["budget_left"], known["open"]) == (["detect"], 3, False)

    def test_a_spent_budget_is_final(self, client):
        head = bearer(client, "detect", budget=3)
        ask = [
            client.post("/v1/detect", json={"texts": ["a"] * n}, headers=head).status_code
            for n in (2, 2, 1, 1)
        ]
        assert ask == [200, 403, 200, 403]

    def test_too_many_requests_are_told_when_to_come_back(self, client):
        head = bearer(client, "detect", per_minute=3)
        answers = [client.post("/v1/detect", json={"text": "a"}, headers=head) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 21

    def test_a_service_beyond_loopback_is_never_open(self, open_service):
        client = open_service(host="0.0.0.0")
        assert client.get("/v1/jobs").status_code == 401
        assert client.get("/metrics").status_code == 401
        assert client.get("/healthz").status_code == 200
        head = bearer(client, "admin")
        assert client.get("/metrics", headers=head).status_code == 200
        assert client.get("/metrics", headers=bearer(client, "detect")).status_code == 403


class TestBodies:
    def test_a_large_body_is_refused_unread(self, client):
        response = client.post("/v1/detect", content=b"{}", headers={"content-length": str(9 << 20)})
        assert response.status_code == 413

    def test_also_when_it_does_not_say_how_large_it_is(self, open_service):
        client = open_service(body_bytes=10_000)
        pieces = (b"x" * 1000 for _ in range(20))
        response = client.post("/v1/detect", content=pieces, headers={"content-type": "application/json"})
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"\xff\xfe", b'{"text": NaN}', b"[" * 100_000, b"null", b"5"]
    )
    def test_what_is_no_json_object_is_refused(self, client, body):
        response = client.post("/v1/detect", content=body, headers={"content-type": "application/json"})
        assert response.status_code in (400, 422)

    def test_a_page_elsewhere_cannot_post_without_being_asked_first(self, client):
        # a form or a plain fetch of another origin may only send these kinds
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            response = client.post("/v1/detect", content=b'{"text": "a"}', headers={"content-type": kind})
            assert response.status_code == 422, kind
        assert "access-control-allow-origin" not in client.options("/v1/detect").headers


class TestOverload:
    def test_too_much_is_refused_at_once_and_the_rest_is_answered(self, open_service, monkeypatch):
        client = open_service(max_waiting=2)
        gate = threading.Event()
        real = verdicts.detect
        monkeypatch.setattr(verdicts, "detect", lambda *a, **k: gate.wait(10) and real(*a, **k))
        answers: list[int] = []

        def ask() -> None:
            answers.append(client.post("/v1/detect", json={"text": "the old bridge"}).status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        threads[0].start()
        until(lambda: client.service.pool.waiting == 0 and client.service.pool.busy == 1)
        for thread in threads[1:]:
            thread.start()
        until(lambda: client.service.pool.waiting == 2)
        started = time.monotonic()
        refused = client.post("/v1/detect", json={"text": "the old bridge"})
        assert time.monotonic() - started < 1.0
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        gate.set()
        for thread in threads:
            thread.join()
        assert answers == [200] * 3

    def test_a_stopping_service_takes_nothing_new(self, client):
        client.service.draining = True
        refused = client.post("/v1/detect", json={"text": "the old bridge"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.get("/healthz").json()["status"] == "draining"
        assert client.get("/v1/jobs").status_code == 200

    def test_a_store_that_does_not_answer_is_no_failure(self, client, monkeypatch):
        def away(*_: object) -> None:
            raise sa.exc.OperationalError("SELECT", {}, RuntimeError(SECRET))

        monkeypatch.setattr(client.service.jobs, "of", away)
        refused = client.get("/v1/jobs")
        assert refused.status_code == 503
        assert SECRET not in refused.text


def until(condition) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestExtract:
    def test_the_text_of_a_file(self, client):
        data = "Die Brücke über den Fluss.".encode()
        found = client.post("/v1/extract", files={"file": ("..\\a/b.txt", data)}).json()
        assert (found["name"], found["text"], found["characters"]) == ("b.txt", data.decode(), 26)

    def test_what_cannot_be_read_is_refused(self, open_service):
        client = open_service(extract_bytes=1000)
        for name, data, status in (
            ("a.exe", b"MZ", 415),
            ("a.pdf", b"no pdf", 422),
            ("a.docx", b"PK", 422),
            ("a.txt", b"", 422),
            ("a.txt", b"x" * 1001, 413),
        ):
            assert client.post("/v1/extract", files={"file": (name, data)}).status_code == status, name
        assert client.post("/v1/extract", data={"file": "text"}).status_code == 422


class TestAnswers:
    def test_every_answer_has_the_headers(self, client):
        for path in ("/healthz", "/v1/whoami", "/docs", "/nothing", "/openapi.json"):
            headers = client.get(path).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-request-id"]

    def test_a_request_id_is_kept_if_it_is_harmless(self, client):
        assert client.get("/healthz", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
        bad = client.get("/healthz", headers={"X-Request-Id": 'a" b'}).headers["x-request-id"]
        assert len(bad) == 16

    def test_an_open_service_answers_to_its_names_only(self, open_service):
        client = open_service(host_names=("desk.example",))
        for host, status in (
            ("evil.example", 400),
            ("localhost:8080", 200),
            ("[::1]:8080", 200),
            ("Desk.example", 200),
            ("127.0.0.1.evil.example", 400),
        ):
            assert client.get("/v1/whoami", headers={"Host": host}).status_code == status, host

    def test_docs_load_nothing_from_elsewhere(self, client):
        for path in ("/docs", "/static/docs.js", "/static/docs.css"):
            response = client.get(path)
            assert response.status_code == 200
            assert "http://" not in response.text
            assert "https://" not in response.text
        assert "<script>" not in client.get("/docs").text

    @pytest.mark.parametrize("name", ["..%2fapp.py", "app.py", "%2e%2e", "nothing.js", "a%00.js", ""])
    def test_only_the_page_s_files_are_served(self, client, name):
        assert client.get(f"/static/{name}").status_code == 404

    def test_a_bug_tells_nothing(self, client, monkeypatch, caplog):
        def explode(*_: object, **__: object) -> None:
            raise RuntimeError(SECRET)

        monkeypatch.setattr("dewmark.serve.verdicts.detect", explode)
        with caplog.at_level(logging.INFO, "dewmark.serve"):
            response = client.post("/v1/detect", json={"text": SECRET})
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal"
        written = "\n".join(JsonLines().format(record) for record in caplog.records)
        assert "RuntimeError" in written
        assert SECRET not in written + response.text


def test_logs_are_json_and_never_hold_the_text(client, caplog):
    head = {**bearer(client, "detect"), "X-Request-Id": "find-me"}
    with caplog.at_level(logging.INFO, "dewmark.serve"):
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


def test_metrics_count(client):
    client.post("/v1/detect", json={"text": plain_text()})
    client.get("/nowhere/at/all")
    text = client.get("/metrics").text
    assert 'dewmark_texts_total{endpoint="detect",verdict="not marked"} 1.0' in text
    assert 'dewmark_requests_total{method="POST",route="/v1/detect",status="200"} 1.0' in text
    assert "/nowhere" not in text
