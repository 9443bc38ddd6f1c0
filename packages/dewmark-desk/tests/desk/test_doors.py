"""No field of any door switches the mark off, chooses a member, or loosens a level."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tests.desk.conftest import bearer
from tests.desk.live import bound, make_service, marked_text, plain_text, until
from tests.desk.live import host as tiny_host

from dewmark.core.keys import Key
from dewmark.detect import score_text
from dewmark.registry import SCHEMES
from dewmark.workspace import Workspace
from dewmark_desk import examining
from dewmark_desk.examining import seeds_of
from dewmark_desk.routes.openai import ChatRequest, CompletionRequest
from dewmark_desk.settings import Settings

WORDS = 80
TRIES = {  # values for every field that could change a text
    "tenant": ["acme", "beta"],
    "payload": [0, 1, 5, 65_535],
    "user": ["u"],
    "presence_penalty": [2.0],
    "frequency_penalty": [-2.0],
    "logit_bias": [{"1": 100}],
    "mark": [False],
    "response_format": [{"type": "json_object"}],
    "max_tokens": [WORDS],
    "max_completion_tokens": [WORDS],
    "temperature": [0.0, 0.01, 0.7],
    "top_p": [0.5],
    "n": [2],
    "seed": [0, 1, 1 << 61],
    "stop": ["\x01", ["\x01"]],
    "stream": [False],
    "stream_options": [{"include_usage": True}],
    "best_of": [2],
    "echo": [True],
    "logprobs": [5],
    "suffix": ["x"],
    "tools": [[{"type": "function"}], [{"type": "function", "function": {"name": "weather"}}]],
    "tool_choice": ["none", "auto", "required"],
    "parallel_tool_calls": [True],
    "member": [0, 1],  # not a field: it must be refused
    "opt_out": [True],
    "watermark": [False],
}
GIVEN = {"model", "prompt", "messages"}


@pytest.fixture
def writing(open_service):
    return open_service(tenants=("acme", "beta"), generates=True)


def test_every_field_is_tried():
    fields = set(CompletionRequest.model_fields) | set(ChatRequest.model_fields)
    assert fields - GIVEN <= set(TRIES)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_whatever_a_request_asks_for_its_text_is_marked_or_says_that_it_is_not(writing, path):
    head = bearer(writing, "generate", tenants=["acme"])
    start = (
        {"prompt": "the old bridge"}
        if path == "/v1/completions"
        else {"messages": [{"role": "user", "content": "the old bridge"}]}
    )
    shared = set(CompletionRequest.model_fields) & set(ChatRequest.model_fields) - {"payload", "temperature"}
    tried = [name for name in TRIES if path == "/v1/completions" or name not in shared]
    for field, value in ((name, value) for name in tried for value in TRIES[name]):
        body = {"model": "tiny", "max_tokens": WORDS, "temperature": 1.0, "seed": 3, **start, field: value}
        answer = writing.post(path, json=body, headers=head)
        if answer.status_code != 200:
            assert answer.status_code in (404, 422), (field, answer.text)
            continue
        found = answer.json()
        texts = [each.get("text") or each["message"]["content"] for each in found["choices"]]
        certain = [text for text in texts if len(text.split()) >= 60 and body["temperature"] >= 0.7]
        if found["marked"] is False:
            assert body["temperature"] == 0.0, field
            continue
        assert body["temperature"] > 0.0
        if body.get("top_p", 1.0) == 1.0:
            assert all(score_text(bound("acme"), text).is_marked for text in certain), (field, value)


FOUND = [{}, {"temperature": 2.0}, {"top_p": 1.0}, {"temperature": 1.5, "top_p": 0.95}]
NOT_FOUND = [{"temperature": 0.01}, {"top_p": 1e-5}, {"top_p": 0.01}, {"temperature": 0.01, "top_p": 0.5}]


@pytest.fixture
def dew(monkeypatch, bag_encoder, tmp_path):
    """The default scheme on the tiny host."""
    made = SCHEMES["dew"]().bind(Key(bytes(range(32))), tiny_host().info, Workspace(cache=tmp_path))
    monkeypatch.setattr("tests.desk.live.bound", lambda name: made)
    return made


def test_the_default_scheme_says_of_every_text_whether_its_mark_can_be_found(dew, open_service, tmp_path):
    """Texts of 100 words, with extremes that leave much room or next to none: at 1% neither is luck."""
    log = tmp_path / "marked.jsonl"
    client = open_service(generates=True, policy_log=str(log))
    body = {
        "model": "tiny",
        "tenant": "acme",
        "prompt": "the old bridge",
        "max_tokens": 100,
        "n": 2,
        "seed": 3,
    }
    said = Counter()
    for change in (*FOUND, *NOT_FOUND):
        answer = client.post("/v1/completions", json={**body, **change}).json()
        rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()][-2:]
        for choice, row in zip(answer["choices"], rows, strict=True):
            found = bool(choice["text"].strip()) and score_text(dew, choice["text"]).is_marked
            assert choice["marked"] is row["marked"] is found, (change, choice, row)
            assert choice["unmarked"] == row["unmarked"] == (None if found else "no_room")
            assert row["room"] < 1.2 or change in FOUND
            said[change in FOUND, found] += 1
        assert answer["marked"] is all(choice["marked"] for choice in answer["choices"])
    assert said[True, True] >= 5  # a text may end early
    assert said[False, True] == 0
    streamed = client.post("/v1/completions", json={**body, "temperature": 0.01, "stream": True}).text
    events = [json.loads(line[6:]) for line in streamed.split("\n") if line.startswith("data: {")]
    ends = [each for event in events for each in event["choices"] if each["finish_reason"]]
    assert [(end["marked"], end["unmarked"]) for end in ends] == [(False, "no_room")] * 2
    metrics = client.get("/metrics").text
    assert f'dewmark_generated_texts_total{{mark="marked"}} {said[True, True]}.0' in metrics
    assert f'dewmark_generated_texts_total{{mark="no_room"}} {18 - said[True, True]}.0' in metrics


def test_options_that_never_leave_a_choice_are_refused_or_unmarked(dew, open_service, tmp_path):
    body = {"model": "tiny", "tenant": "acme", "prompt": "the old bridge", "max_tokens": 5}
    (tmp_path / "strict").mkdir()
    strict = open_service(make_service(tmp_path / "strict", generates=True, greedy="refuse"))
    for change, option in (({"temperature": 0}, "temperature 0"), ({"top_p": 1e-6}, "top_p 1e-06")):
        refused = strict.post("/v1/completions", json={**body, **change})
        assert refused.status_code == 422
        assert f"{option} always takes the likeliest token" in refused.json()["error"]["message"]


def test_greedy_texts_say_that_they_are_unmarked_or_are_refused(writing, open_service, tmp_path, caplog):
    caplog.set_level("INFO", logger="dewmark_desk")
    body = {"model": "tiny", "tenant": "acme", "prompt": "the old bridge", "temperature": 0, "max_tokens": 20}
    found = writing.post("/v1/completions", json=body).json()
    assert (found["marked"], found["system_fingerprint"]) == (False, None)
    logged = [record.fields for record in caplog.records if hasattr(record, "fields")]
    assert [row["marked"] for row in logged if "marked" in row] == [False]
    streamed = writing.post("/v1/completions", json={**body, "stream": True})
    first = json.loads(streamed.text.split("\n")[0].removeprefix("data: "))
    assert first["marked"] is False
    (tmp_path / "strict").mkdir()
    strict = open_service(make_service(tmp_path / "strict", generates=True, greedy="refuse"))
    refused = strict.post("/v1/completions", json=body)
    assert refused.status_code == 422
    assert "temperature above 0" in refused.json()["error"]["message"]


def test_seeds_repeat_a_request_and_nothing_else(writing):
    body = {"model": "tiny", "tenant": "acme", "prompt": "the old bridge", "max_tokens": 30, "seed": 7}

    def written(**changes: object) -> str:
        return writing.post("/v1/completions", json={**body, **changes}).json()["choices"][0]["text"]

    assert written() == written()
    assert written(seed=8) != written()
    seeds = {
        seed
        for prompt in ("a", "b")
        for heat in (0.7, 1.0)
        for seed in seeds_of(b"secret", {"prompt": prompt, "seed": 7, "temperature": heat}, 2)
    }
    assert len(seeds) == 8  # the same seed of another request is another seed, and so another member
    assert seeds_of(b"other", {"prompt": "a", "seed": 7}, 1) != seeds_of(
        b"secret", {"prompt": "a", "seed": 7}, 1
    )


def test_levels_are_capped_at_every_door(open_service):
    client = open_service()
    for path, body in (
        ("/v1/detect", {"text": plain_text()}),
        ("/v1/batches", {"texts": [{"text": plain_text()}]}),
    ):
        refused = client.post(path, json={**body, "fpr": 0.99})
        assert (refused.status_code, "up to 0.05" in refused.text) == (422, True), path
        assert client.post(path, json={**body, "fpr": 0.05}).status_code in (200, 202)
    assert client.get("/v1/whoami").json()["defaults"] == {"fpr": 0.01, "max_fpr": 0.05}
    assert Settings(detectors=(("a", "b"),), fpr=0.2).max_fpr == 0.05  # the service's own may be looser


def test_report_is_refused_above_the_cap_and_its_headline_has_the_level(open_service, tmp_path):
    from dewmark_desk.signing import SigningKey

    file = tmp_path / "signer.pem"
    SigningKey.generate().save(file)
    client = open_service(signers=(str(file),))
    body = {"text": marked_text(), "page": True, "name": "a\u202etxt.exe"}
    assert client.post("/v1/reports", json={**body, "fpr": 0.99}).status_code == 422
    found = client.post("/v1/reports", json={**body, "fpr": 0.001}).json()
    assert found["claims"]["level"] == 0.001
    headline = found["page"].split("<p class='verdict'>")[1].split("</p>")[0]
    assert "at a false-positive rate of 0.001" in headline
    assert "\u202e" not in found["page"]


def test_batches_look_for_retired_keys(open_service):
    from tests.desk.live import old_text

    client = open_service(tenants=("acme", "acme@2025"))
    body = {"texts": [{"text": old_text()}], "tenants": ["acme"]}
    job = client.post("/v1/batches", json=body).json()["job"]["id"]
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "done")
    (row,) = client.get(f"/v1/jobs/{job}/results").json()["results"]
    assert (row["verdict"], row["tenant"]) == ("marked", "acme@2025")


def test_a_request_is_hashed_once(monkeypatch):
    """For all its texts: its schema may be long."""
    seen = []
    monkeypatch.setattr(examining.json, "dumps", lambda value, **_: seen.append(value) or "said")
    assert len(set(seeds_of(b"secret", {"prompt": "a"}, 64))) == 64
    assert seen == [{"prompt": "a"}]
