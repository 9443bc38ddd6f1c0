"""Any input gets an answer or an error response, never a failure."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.desk.live import make_service

from dewmark_desk.app import create_app


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    service = make_service(tmp_path_factory.mktemp("inputs"))
    with TestClient(create_app(service), base_url="http://127.0.0.1") as opened:
        yield opened


HARD = {
    "lone surrogate": "the old \ud800 bridge",
    "surrogates the wrong way round": "\udc00\ud800",
    "NUL": "the old \x00 bridge",
    "a megabyte of one letter": "a" * 1_000_000,
    "a megabyte of blanks and a letter": " " * 999_999 + "a",
    "right to left": "הגשר הישן מעל הנהר " * 50 + "\u202e reversed \u202c",
    "combining marks": "a" + "\u0301" * 100_000,
    "joined emoji": "👩‍👩‍👧‍👦" * 2_000,
    "every control character": "".join(map(chr, range(1, 32))) * 20,
    "astral letters": "𝔗𝔥𝔢 𝔬𝔩𝔡 𝔟𝔯𝔦𝔡𝔤𝔢 " * 300,
    "line ends of all kinds": "a\r\nb\u2028c\u2029d\x85e\x0bf\x0c" * 200,
    "a special token spelled out": "<eos> the <pad> bridge <bos>" * 30,
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>" * 20,
    "noncharacters": "\ufffe\uffff\U0010ffff" * 200,
}


def ask(client: TestClient, path: str, body: dict) -> dict | None:
    """The answer to a fully escaped body; None if it is rejected."""
    data = json.dumps(body, ensure_ascii=True).encode()
    response = client.post(path, content=data, headers={"content-type": "application/json"})
    assert response.status_code in (200, 413, 422), (response.status_code, response.text[:200])
    return response.json() if response.status_code == 200 else None


@pytest.mark.parametrize("name", HARD)
def test_difficult_texts(client, name):
    text = HARD[name]
    for body in ({"text": text, "tokens": True}, {"text": "a plain text", "prompt": text}):
        answer = ask(client, "/v1/detect", body)
        if answer is not None:
            check_offsets(body["text"], answer["results"][0])
    ask(client, "/v1/detect", {"texts": ["a plain text", text]})


@pytest.mark.parametrize("name", ["lone surrogate", "surrogates the wrong way round"])
def test_invalid_unicode_is_rejected_in_every_field(client, name):
    bad = HARD[name]
    for path, body in (
        ("/v1/detect", {"text": bad}),
        ("/v1/detect", {"text": "a", "prompt": bad}),
        ("/v1/detect", {"text": "a", "test": bad}),
        ("/v1/audit", {"texts": [{"text": "a"}, {"text": bad}]}),
        ("/v1/audit", {"texts": [{"text": "a", "language": bad}]}),
        ("/v1/audit", {"texts": [{"text": "a", "prompt": bad}]}),
    ):
        assert ask(client, path, body) is None


anything = st.text(st.characters(codec=None, categories=None), max_size=300)
no_limit = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@no_limit
@given(text=anything, prompt=st.none() | anything)
def test_any_text(client, text, prompt):
    answer = ask(client, "/v1/detect", {"text": text, "prompt": prompt, "tokens": True})
    if answer is not None:
        check_offsets(text, answer["results"][0])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | anything,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(anything, inner, max_size=4),
    max_leaves=8,
)
fields = st.sampled_from(["text", "texts", "prompt", "prompts", "tenants", "tenant", "fpr", "test", "tokens"])


@no_limit
@given(path=st.sampled_from(["/v1/detect", "/v1/batches", "/v1/audit"]), body=st.dictionaries(fields, values))
def test_any_json(client, path, body):
    data = json.dumps(body).encode()
    response = client.post(path, content=data, headers={"content-type": "application/json"})
    assert response.status_code < 500, response.text[:300]


@no_limit
@given(data=st.binary(max_size=200), path=st.sampled_from(["/v1/detect", "/v1/audit", "/v1/extract"]))
def test_any_bytes(client, data, path):
    kind = "multipart/form-data; boundary=x" if path == "/v1/extract" else "application/json"
    response = client.post(path, content=data, headers={"content-type": kind})
    assert 400 <= response.status_code < 500


def check_offsets(text: str, found: dict) -> None:
    """Every token lies in the text, and its text matches its offsets."""
    assert found["characters"] == len(text)
    for token in found["tokens"] or ():
        assert 0 <= token["start"] <= token["end"] <= len(text)
        assert text[token["start"] : token["end"]] == token["text"]
