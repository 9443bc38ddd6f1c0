"""Bodies are bounded before they become objects, and work is estimated before it is queued."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.desk.conftest import bearer
from tests.desk.live import bound, plain_text

from dewmark.detect import score_text
from dewmark.verdict import MIN_SEARCHED
from dewmark_desk import admission, schemas
from dewmark_desk.admission import (
    MAX_DEPTH,
    SLICE,
    admitted,
    context_of,
    parsed,
    seconds_of,
    seconds_of_sketch,
    slices,
)
from dewmark_desk.fair_pool import Overloaded
from dewmark_desk.http_errors import ApiError
from dewmark_desk.routes import dependencies, openai
from dewmark_desk.settings import Settings
from dewmark_desk.tenants import Tenant, open_demonstration
from dewmark_desk.verdicts import Examination, Query

ONE = Examination([Tenant("acme", bound("acme"))], keys=1)
MANY = Examination([Tenant(f"k{i}", bound("acme")) for i in range(50)], keys=50)
PLAIN = Examination([open_demonstration()], keys=1)  # no model reads its texts
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
        with pytest.raises(ApiError, match="at most .* values") as refused:
            parsed(body, count(value) - 1)
        assert refused.value.status_code == 413


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_only_utf_8_is_read(client, encoding):
    body = '{"text": "é the old bridge"}'.encode(encoding)
    answer = client.post("/v1/detect", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"texts": [' + b"{}," * 700_000 + b"{}]}", "at most .* values"),
        (b'{"texts": [' + b"0," * 4_000_000 + b"0]}", "at most .* values"),
        (b'["' + b'","' * 700_000 + b'"]', "at most .* values"),
        (b'"' + b'\\"' * 4_000_000, "not valid JSON"),  # no end: quadratic for a careless scanner
        (b"[" * 8_000_000, "at most .* values"),
        (b'{"a":' * 100_000, "nested"),
        (b" " * 8_000_000, "not valid JSON"),
    ],
)
def test_hostile_bodies_cost_no_memory(body, said):
    tracemalloc.start()
    with pytest.raises(ApiError, match=said):
        parsed(body, 120_100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(body) + 64e6


def test_depth_is_limited():
    assert parsed(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, 100)
    with pytest.raises(ApiError, match="nested 16 deep"):
        parsed(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), 100)


def test_large_bodies_are_parsed_one_at_a_time(shared, monkeypatch):
    """Forty threads that parse would keep the interpreter from the event loop."""
    ran = []
    monkeypatch.setattr(dependencies, "parsed", lambda *_: ran.append(threading.current_thread()) or {})
    head = {"content-type": "application/json"}
    for _ in range(3):
        assert shared.post("/v1/detect", content=b" " * 300_000, headers=head).status_code == 422
    assert set(ran) == set(shared.service.fast._threads)


def test_large_requests_of_a_token_wait_and_hold_up_nothing_else(open_service):
    client = open_service()
    owner, text = client.service.tokens.new("test", ["detect"])
    mine, other = {"Authorization": f"Bearer {text}"}, bearer(client, "detect")
    arrived, small = threading.Event(), json.dumps({"text": plain_text()}).encode()

    class Full(asyncio.Semaphore):
        async def acquire(self) -> bool:
            arrived.set()
            return await super().acquire()

    def status(body: bytes, head: dict[str, str]) -> int:
        kind = {"content-type": "application/json"}
        return client.post("/v1/detect", content=body, headers=head | kind).status_code

    client.service.large[owner.id] = gate = Full(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(status, small + b" " * 300_000, mine)
        try:
            assert arrived.wait(60)
            assert (status(small, mine), status(small + b" " * 300_000, other)) == (200, 200)
            assert not waiting.done()
        finally:
            client.portal.call(gate.release)
        assert waiting.result(60) == 200


def test_a_large_body_that_finds_no_room_is_told_to_come_again(shared, monkeypatch):
    async def full(*_, **__):
        raise Overloaded(7.0)

    monkeypatch.setattr(shared.service.fast, "run", full)
    answer = shared.post("/v1/detect", content=b" " * 300_000, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")


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
    assert len(context_of(prompt, PLAIN)) <= 2_048
    short = context_of(prompt, ONE)  # a scheme of the host's tokens
    assert len(short) <= 8_192
    assert prompt.endswith(short)
    text = plain_text()
    scores = [score_text(bound("acme"), text, prompt=each).z for each in (prompt[-10_000:], short)]
    assert scores[0] == pytest.approx(scores[1])
    assert context_of(None, ONE) is None
    assert context_of("the old bridge", ONE) == "the old bridge"


def test_a_cut_prompt_begins_with_a_whole_word():
    prompt = "riverbank " * 1_000  # the last 2,048 characters begin within a word
    assert {*context_of(prompt, PLAIN).split()} == {"riverbank"}
    assert len(context_of(prompt, PLAIN)) > 2_000
    for whole in ("x" * 9_000, " " * 9_000):  # no word begins within them
        assert context_of(whole, PLAIN) == whole[-2_048:]


def test_a_prompt_is_cut_for_the_key_that_reads_most_of_it():
    both = Examination([*PLAIN.tenants, *ONE.tenants], keys=2)
    prompt = "the quick brown fox " * 5_000
    assert context_of(prompt, both) == context_of(prompt, ONE)
    assert len(context_of(prompt, ONE)) > 4_000 > len(context_of(prompt, PLAIN))


def test_only_the_part_of_a_prompt_that_is_read_counts():
    small = dataclasses.replace(SETTINGS, request_bytes=20_000)
    prompt = "the quick brown fox " * 5_000
    (query,) = admitted([Query("the old bridge", prompt)], ONE, small)
    assert query == Query("the old bridge", context_of(prompt, ONE))


def test_prompts_count_like_text():
    queries = [Query("the old bridge", "a prompt " * 200)] * 64
    (first, *_) = admitted(queries, ONE, SETTINGS)
    assert first.prompt == queries[0].prompt
    small = Settings(detectors=(("acme", "in memory"),), store="sqlite:///none", request_bytes=50_000)
    with pytest.raises(ApiError, match="more than 50,000 bytes"):
        admitted(queries, ONE, small)


def test_a_text_is_measured_in_bytes():
    """An emoji has four."""
    small = dataclasses.replace(SETTINGS, text_bytes=400)
    assert admitted([Query("💧" * 100)], ONE, small)
    with pytest.raises(ApiError, match="more than 400 bytes") as refused:
        admitted([Query("💧" * 100 + "a")], ONE, small)
    assert (refused.value.status_code, refused.value.code) == (413, "text_too_large")


def test_a_job_may_hold_more_than_a_request():
    small = dataclasses.replace(SETTINGS, request_bytes=1_000, audit_bytes=3_000, texts=2, audit_texts=4)
    queries = [Query("a " * 450)] * 2
    with pytest.raises(ApiError, match="more than 1,000 bytes together"):
        admitted(queries, ONE, small)
    assert len(admitted(queries, ONE, small, job=True)) == 2
    with pytest.raises(ApiError, match="more than 3,000 bytes together"):
        admitted(queries * 2, ONE, small, job=True)
    with pytest.raises(ApiError, match="at most 4 per request"):
        admitted([Query("a")] * 5, ONE, small, job=True)


def test_estimate_grows_with_all_that_costs():
    text = Query("x " * 15_000)
    two = Examination(MANY.tenants[:2], keys=2)
    assert seconds_of(text, MANY) - seconds_of(text, ONE) == pytest.approx(
        49 * (seconds_of(text, two) - seconds_of(text, ONE))
    )
    short = Query("x " * (MIN_SEARCHED - 1))  # the passages of a long one may be searched
    assert seconds_of(Query("x " * MIN_SEARCHED), ONE) > 2 * seconds_of(short, ONE)
    assert seconds_of(Query("x", "x" * 2000), ONE) > seconds_of(Query("x"), ONE)


def test_a_search_costs_under_each_key():
    def of_a_key(words: int) -> float:
        one, two = (seconds_of(Query("x " * words), Examination(ONE.tenants * n, keys=n)) for n in (1, 2))
        return two - one

    word = (of_a_key(280) - of_a_key(140)) / 140  # of texts that are not searched
    assert of_a_key(1_000) > of_a_key(280) + 720 * word + 0.005


def test_a_search_costs_by_the_words_that_are_new():
    """Each counts four times at most; so do pieces that a hyphen or markup joins into ever new words."""
    how = Examination([open_demonstration()], keys=1)
    draw = random.Random(0)
    many = [f"{a}{b}{c}" for a in "bcdfg" for b in "aeiou" for c in "lmnrst"]
    few = " ".join(many[i % 20] for i in range(2_000))
    assert seconds_of(Query(few), how) < 0.2 * seconds_of(Query(" ".join(f"{i}x" for i in range(2_000))), how)
    for joint in ("-\n", "<b \n>", "\u00ad\n"):
        text = " ".join(f"{draw.choice(many)}{joint}{draw.choice(many)}" for _ in range(2_000))
        (read,) = how.bound(0).tokenize([text])
        assert seconds_of(Query(text), how) > 1.15e-3 * min(len(set(read.forms)), 2_000), joint


SCRIPTS = {
    "Latin": "abcdefghijklmnopqrstuvwxyz",
    "Cyrillic": "абвгдежзийклмнопрстуфхцчшщ",
    "Greek": "αβγδεζηθικλμνξοπρστυφχψω",
    "Arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "Hebrew": "אבגדהוזחטיכלמנסעפצקרשת",
    "Devanagari": "कखगघचछजझटठडढतथदधनपफबभमयरलव",
    "Thai": "กขคงจฉชซญดตถทธนบปผฝพฟภมยรลวสหอ",
    "Han": "的一是不了人我在有他这中大来上国",
    "Hiragana": "あいうえおかきくけこさしすせそたちつてと",
    "Katakana": "アイウエオカキクケコサシスセソタチツテト",
    "Hangul": "가나다라마바사아자차카타파하거너더러머버",
}


@pytest.mark.parametrize("letters", SCRIPTS.values(), ids=list(SCRIPTS))
@pytest.mark.parametrize("length", [1, 2, 6])
def test_estimate_covers_the_words_of_every_script(letters, length):
    """A character of a script without spaces may be a word, and six of Latin are."""
    draw = random.Random(length)
    words = ["".join(draw.choices(letters, k=length)) for _ in range(400)]
    query, how = Query(" ".join(words)), Examination([open_demonstration()], keys=1)
    (read,) = how.bound(0).tokenize([query.text])
    (more,) = how.bound(0).tokenize([f"{query.text} {query.text}"])
    empty = seconds_of(Query("."), how)
    word = 12e-6  # a key's work on one word, of eleven scripts the most in texts of 120,000 characters
    assert seconds_of(query, how) - empty >= word * len(read.forms)
    assert seconds_of(Query(more.text), how) - empty >= word * len(more.forms)
    assert seconds_of_sketch(query) >= word * len(read.forms)
    dense = Query("".join(words))
    assert seconds_of(dense, how) - empty >= word * len(how.bound(0).tokenize([dense.text])[0].forms)


def test_work_is_cut_into_slices():
    parts = list(slices([Query("x" * 3_000)] * 40, MANY))
    assert [query for part, _ in parts for query in part] == [Query("x" * 3_000)] * 40
    assert all(seconds <= SLICE or len(part) == 1 for part, seconds in parts)


def test_a_slice_is_full_at_its_limit(monkeypatch):
    monkeypatch.setattr(admission, "seconds_of", lambda *_: SLICE / 2)
    assert [(len(part), seconds) for part, seconds in slices([Query("x")] * 5, ONE)] == [
        *[(2, SLICE)] * 2,
        (1, SLICE / 2),
    ]


def test_a_text_that_takes_long_is_examined_beside_all_others(open_service, monkeypatch):
    client = open_service(request_seconds=0.05)
    for pool in (client.service.fast, client.service.slow):
        monkeypatch.setattr(pool, "run", None)  # it is never called
    assert client.post("/v1/detect", json={"text": plain_text() * 8}).status_code == 200


def test_work_of_a_request_is_limited_before_it_starts(open_service, monkeypatch):
    client = open_service(text_seconds=0.05)
    monkeypatch.setattr(client.service.fast, "run", None)  # it is never called
    head = bearer(client, "detect", budget=9)
    refused = client.post("/v1/detect", json={"text": plain_text() * 60}, headers=head)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_much_work")
    assert client.get("/v1/whoami", headers=head).json()["budget_left"] == 9


def test_brackets_that_close_nothing_are_not_followed(monkeypatch):
    """The parser stops at the first of them, so a megabyte of them costs no time."""
    followed = []

    def accumulate(steps):
        followed.extend(steps)
        return itertools.accumulate(followed)

    monkeypatch.setattr(admission, "itertools", SimpleNamespace(accumulate=accumulate))
    for body in (b"]" * 1_000_000, b"[]" + b"]}" * 500_000, b"}" * 1_000_000 + b"[["):
        followed.clear()
        with pytest.raises(ApiError, match="not valid JSON"):
            parsed(body, 100)
        assert len(followed) <= 4
