"""Bodies are bounded before they become objects, and work is estimated before it is queued."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.desk.conftest import bearer
from tests.desk.live import bound, plain_text

from dewmark.verdict import MIN_SEARCHED
from dewmark_desk import schemas
from dewmark_desk.admission import MAX_DEPTH, SLICE, admitted, context_of, parsed, seconds_of, slices
from dewmark_desk.http_errors import ApiError
from dewmark_desk.routes import openai
from dewmark_desk.settings import Settings
from dewmark_desk.tenants import Tenant, open_demonstration
from dewmark_desk.verdicts import Examination, Query

ONE = Examination([Tenant("acme", bound("acme"))], keys=1)
MANY = Examination([Tenant(f"k{i}", bound("acme")) for i in range(50)], keys=50)
SETTINGS = Settings(detectors=(("acme", "in memory"),), store="sqlite:///none")

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def count(value: object) -> int:
    """The values of a JSON document."""
    if isinstance(value, dict):
        return 1 + sum(map(count, value.values()))
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


@settings(max_examples=25)
@given(value=values, escape=st.booleans())
def test_values_are_counted_exactly_before_parsing(value, escape):
    body = json.dumps(value, ensure_ascii=escape).encode()
    empty = body.count(b"[]") + body.count(b"{}")  # a bracket without a value counts as one
    assert parsed(body, count(value) + empty) == value
    if count(value) > 1:
        with pytest.raises(ApiError) as refused:
            parsed(body, count(value) - 1)
        assert refused.value.status_code == 413


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_only_utf_8_is_read(client, encoding):
    body = '{"text": "é the old bridge"}'.encode(encoding)
    answer = client.post("/v1/detect", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        b'{"texts": [' + b"{}," * 700_000 + b"{}]}",
        b'{"texts": [' + b"0," * 4_000_000 + b"0]}",
        b'["' + b'","' * 700_000 + b'"]',
        b'"' + b'\\"' * 4_000_000,  # a string without an end: quadratic for a careless scanner
        b"[" * 8_000_000,
        b'{"a":' * 100_000,
        b" " * 8_000_000,
    ],
)
def test_hostile_bodies_cost_no_memory(body):
    tracemalloc.start()
    with pytest.raises(ApiError):
        parsed(body, 120_100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(body) + 64e6


def test_depth_is_limited():
    assert parsed(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, 100)
    with pytest.raises(ApiError):
        parsed(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), 100)


def models() -> list[type[BaseModel]]:
    found, made = list(schemas._Request.__subclasses__()), []
    found += [openai.CompletionRequest, openai.ChatRequest, openai.ChatMessage]
    while found:
        made.append(found.pop())
        found += made[-1].__subclasses__()
    return made


def test_every_list_of_a_request_is_bounded_and_stops_at_the_first_error():
    def lists(schema: dict) -> list[dict]:
        inner = schema.get("schema")
        own = [schema] if schema.get("type") == "list" else []
        children = [inner] if isinstance(inner, dict) else []
        children += [each[0] if isinstance(each, tuple) else each for each in schema.get("choices", ())]
        return own + [found for child in children for found in lists(child)]

    checked = 0
    for model in models():
        core = model.__pydantic_core_schema__
        core = core["schema"] if core["type"] == "definitions" else core
        for name, entry in core["schema"]["fields"].items():
            for found in lists(entry["schema"]):
                assert found.get("max_length") is not None, (model, name)
                assert found.get("fail_fast"), (model, name)
                checked += 1
    assert checked >= 10


def test_prompt_is_cut_to_the_words_that_can_be_context():
    prompt = "the quick brown fox " * 5_000
    default = Examination([open_demonstration()], keys=1)
    assert len(context_of(prompt, default)) <= 2_048
    short = context_of(prompt, ONE)  # a scheme of the host's tokens
    assert len(short) <= 8_192
    assert prompt.endswith(short)
    text = plain_text()
    scores = [bound("acme").detect(text, prompt=each).z for each in (prompt[-10_000:], short)]
    assert scores[0] == pytest.approx(scores[1])
    assert context_of(None, ONE) is None
    assert context_of("the old bridge", ONE) == "the old bridge"


def test_prompts_count_like_text():
    queries = [Query("the old bridge", "a prompt " * 200)] * 64
    (first, *_) = admitted(queries, ONE, SETTINGS)
    assert first.prompt == queries[0].prompt
    small = Settings(detectors=(("acme", "in memory"),), store="sqlite:///none", request_bytes=50_000)
    with pytest.raises(ApiError, match="more than 50,000 bytes"):
        admitted(queries, ONE, small)


def test_estimate_grows_with_all_that_costs():
    text = Query("x" * 30_000)
    two = Examination(MANY.tenants[:2], keys=2)
    assert seconds_of(text, MANY) - seconds_of(text, ONE) == pytest.approx(
        49 * (seconds_of(text, two) - seconds_of(text, ONE))
    )
    short = Query("x" * (MIN_SEARCHED - 1))  # the passages of a long one may be searched
    assert seconds_of(Query("x" * MIN_SEARCHED), ONE) > 2 * seconds_of(short, ONE)
    assert seconds_of(Query("x", "x" * 2000), ONE) > seconds_of(Query("x"), ONE)


def test_work_is_cut_into_slices():
    parts = list(slices([Query("x" * 3_000)] * 40, MANY))
    assert [query for part, _ in parts for query in part] == [Query("x" * 3_000)] * 40
    assert all(seconds <= SLICE or len(part) == 1 for part, seconds in parts)


def test_work_of_a_request_is_limited_before_it_starts(open_service, monkeypatch):
    client = open_service(request_seconds=0.05)
    monkeypatch.setattr(client.service.fast, "run", None)  # it is never called
    head = bearer(client, "detect", budget=9)
    refused = client.post("/v1/detect", json={"text": plain_text() * 60}, headers=head)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_much_work")
    assert client.get("/v1/whoami", headers=head).json()["budget_left"] == 9
