"""A text that is watched while its body arrives."""

from __future__ import annotations

import json
import math
import socket

import httpx
import pytest
from tests.desk.conftest import bearer
from tests.desk.live import live_service, make_service

from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.dew.scheme import DEW
from dewmark.hosts.fake import FakeHost
from dewmark.workspace import Workspace
from dewmark_desk.tenants import Tenant

LENGTH = 150


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """DEW over words with a ring of four, two tenants, and a marked and an unmarked text."""
    host = FakeHost(400)
    workspace = Workspace(cache=tmp_path_factory.mktemp("words"))
    scheme = DEW(alpha=1.0)
    tenants = {
        name: scheme.bind(Key(bytes([i] * 32), members=members), host.info, workspace)
        for i, (name, members) in enumerate((("acme", 4), ("beta", 1)))
    }
    long = Decoding(max_new_tokens=LENGTH, min_new_tokens=LENGTH)
    marked, plain = (
        host.generate(["the old bridge"], scheme=mark, seeds=[3], decoding=long)[0].text
        for mark in (tenants["acme"].for_member(member=2), None)
    )
    return tenants, marked, plain


@pytest.fixture
def words(open_service, tmp_path, written):
    """Start a service with some of the tenants."""

    def start(*names: str, **options):
        service = make_service(tmp_path, **options)
        service.tenants.clear()
        service.tenants |= {name: Tenant(name, written[0][name]) for name in names}
        return open_service(service)

    return start


def pieces(text: str, size: int = 40):
    data = text.encode()
    return (data[i : i + size] for i in range(0, len(data), size))


def lines(response) -> list[dict]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_marked_text_is_found_before_it_ends(words, written):
    tenants, marked, _ = written
    text = "é " + marked
    watched = tenants["acme"].follow()
    early, later = (watched.update(text[i : i + 240]) for i in (0, 240))
    level = math.sqrt(early * later)
    found = lines(words("acme").post(f"/v1/follow?fpr={level}", content=pieces(text, 7)))
    last = found[-1]
    assert [line["end"] for line in found] == [False] * (len(found) - 1) + [True]
    assert (last["verdict"], last["tenant"]) == ("marked", "acme")
    assert last["member"] in (2, None)
    assert last["p_value"] <= last["fpr"] < found[-2]["p_value"]
    assert last["p_value"] == pytest.approx(later)
    assert last["characters"] == 480 < len(text)


def test_an_answer_comes_while_the_body_is_still_open(tmp_path, written):
    """A real connection, whose client never says that the text has ended."""
    tenants, marked, _ = written
    service = make_service(tmp_path)
    service.tenants["acme"] = Tenant("acme", tenants["acme"])
    with live_service(tmp_path, service=service) as url:
        where = httpx.URL(url)
        with socket.create_connection((where.host, where.port), timeout=30) as connection:
            head = f"POST /v1/follow HTTP/1.1\r\nHost: {where.host}\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head.encode())
            for piece in pieces(marked):
                connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            answer = b""
            while b'"end": true' not in answer:
                more = connection.recv(65536)
                assert more, answer
                answer += more
    assert b'"verdict": "marked"' in answer


def test_an_unmarked_text_is_not(words, written):
    plain = written[2]
    found = lines(words("acme").post("/v1/follow", content=pieces(plain)))[-1]
    assert (found["verdict"], found["tenant"], found["end"]) == ("not_marked", None, True)
    assert found["characters"] == len(plain)


def test_all_keys_that_a_caller_may_use_are_paid_for(words, written):
    ask = {"params": {"tenant": "acme", "fpr": 1e-30}, "content": written[1]}
    one = lines(words("acme").post("/v1/follow", **ask))[-1]["p_value"]
    two = lines(words("acme", "beta").post("/v1/follow", **ask))[-1]["p_value"]
    assert two == pytest.approx(2 * one, rel=1e-3)


def test_what_cannot_be_followed_is_said_in_one_line(words, written, client):
    acme = words("acme", text_bytes=100)
    assert acme.post("/v1/follow?tenant=nobody", content="a").status_code == 404
    assert acme.post("/v1/follow?fpr=2", content="a").status_code == 422
    (bad,) = lines(acme.post("/v1/follow", content=b"\xff\xfe and more"))
    assert bad["error"]["message"] == "the body is not UTF-8"
    assert lines(acme.post("/v1/follow", content=written[2]))[-1]["error"]["code"] == "text_too_large"
    tokens = client.post("/v1/follow", content="a b c")
    assert tokens.status_code == 422
    assert "does not follow streams" in tokens.json()["error"]["message"]


def test_public_tokens_may_not_follow(words):
    client = words("acme")
    public, own = bearer(client, "detect-public"), bearer(client, "detect")
    assert client.post("/v1/follow", content="a b", headers=public).status_code == 403
    assert lines(client.post("/v1/follow", content="a b", headers=own))[-1]["verdict"] == "too_short"
