from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading

import httpx
import pytest
from tests.desk.conftest import bearer
from tests.desk.live import PATIENCE, bound, host, live_service, until

from dewmark.decoding import CHAT_DECODING, Decoding
from dewmark.watermark import DEFAULT_DECODING
from dewmark_desk.generation import GenerationRequest, TextStream, transcript

COMMON = {"model": "tiny", "max_tokens": 40, "seed": 7}


@pytest.fixture
def given_seeds(monkeypatch):
    """The service writes with the seeds that it is given, so that its texts are the library's."""
    monkeypatch.setattr(
        "dewmark_desk.routes.openai.seeds_of",
        lambda _, said, count: [int(str(said["seed"]), 16) + i for i in range(count)],
    )


@pytest.fixture
def client(shared, given_seeds):
    return shared


def events(response) -> list[dict]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def library_text(prompt: str, *, seed: int, tokens: int, default: Decoding = DEFAULT_DECODING) -> str:
    (made,) = host().generate(
        [prompt],
        scheme=bound("acme"),
        seeds=[seed],
        decoding=dataclasses.replace(default, max_new_tokens=tokens),
    )
    return made.text


class TestCompletions:
    def test_text_equals_the_library_s(self, client):
        body = client.post("/v1/completions", json={**COMMON, "prompt": "the old bridge"}).json()
        (choice,) = body["choices"]
        assert choice["text"] == library_text("the old bridge", seed=7, tokens=40)
        assert body["usage"]["completion_tokens"] <= 40
        assert body["usage"]["prompt_tokens"] == 3
        assert (body["object"], body["model"]) == ("text_completion", "tiny")

    def test_prompts_and_choices_have_their_own_seeds(self, client):
        wanted = {**COMMON, "prompt": ["the old bridge", "a house"], "n": 2}
        texts = [one["text"] for one in client.post("/v1/completions", json=wanted).json()["choices"]]
        assert texts == [
            library_text(prompt, seed=seed, tokens=40)
            for prompt, seeds in (("the old bridge", (7, 8)), ("a house", (9, 10)))
            for seed in seeds
        ]

    def test_requests_that_share_a_batch_get_their_own_texts(self, client):
        found = {}

        def ask(seed: int) -> None:
            wanted = {
                **COMMON,
                "prompt": f"the old {'bridge ' * seed}",
                "seed": seed,
                "max_tokens": 20 + seed,
            }
            found[seed] = client.post("/v1/completions", json=wanted).json()["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seed, text in found.items():
            assert text == library_text(f"the old {'bridge ' * seed}", seed=seed, tokens=20 + seed)

    def test_stop_sequences(self, client):
        whole = library_text("the old bridge", seed=7, tokens=40)
        stop = whole.split()[10]
        wanted = {**COMMON, "prompt": "the old bridge", "stop": [f" {stop}", "never"]}
        for stream in (False, True):
            response = client.post("/v1/completions", json={**wanted, "stream": stream})
            if stream:
                text = "".join(piece["choices"][0]["text"] for piece in events(response))
            else:
                (choice,) = response.json()["choices"]
                text = choice["text"]
                assert choice["finish_reason"] == "stop"
            assert text == whole[: whole.index(f" {stop}")]


class TestChat:
    def test_answer_and_its_stream(self, client):
        messages = [{"role": "user", "content": [{"type": "text", "text": "tell of the river"}]}]
        wanted = {**COMMON, "messages": messages}
        body = client.post("/v1/chat/completions", json=wanted).json()
        prompt = "User: tell of the river\n\nAssistant:"
        expected = library_text(prompt, seed=7, tokens=40, default=CHAT_DECODING)  # as the host decodes
        assert body["choices"][0]["message"] == {"role": "assistant", "content": expected, "refusal": None}
        assert body["object"] == "chat.completion"
        streamed = {**wanted, "stream": True, "stream_options": {"include_usage": True}}
        pieces = events(client.post("/v1/chat/completions", json=streamed))
        assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
        text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces[:-1])
        assert text == expected
        assert pieces[-1]["choices"] == []
        assert pieces[-1]["usage"] == body["usage"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"payload": 5}, 422),  # nobody would find it: the key carries no payloads
        ({"member": 1}, 422),
        ({"temperature": 0}, 200),  # and says that it is not marked: test_doors
        ({"temperature": 3}, 422),
        ({"temperature": 1e-300}, 422),
        ({"temperature": 0.01, "top_p": 1e-6}, 200),
        ({"top_p": 0}, 422),
        ({"max_tokens": 5000}, 422),
        ({"max_tokens": 0}, 422),
        ({"n": 100}, 422),
        ({"logprobs": 5}, 422),
        ({"echo": True}, 422),
        ({"stop": ["a"] * 5}, 422),
        ({"prompt": "the " * 3000}, 422),
        ({"prompt": "a\ud800"}, 422),
        ({"prompt": []}, 422),
        ({"model": "anything"}, 404),
        ({"user": "x", "presence_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"}}, 200),
        ({"presence_penalty": 0.5}, 422),
        ({"frequency_penalty": -1}, 422),
        ({"logit_bias": {"50256": -100}}, 422),
        ({"response_format": {"type": "json_object"}}, 422),
        ({"repetition_penalty": 1.2}, 422),
        ({"watermark": False}, 422),
        ({"tenant": "nobody"}, 404),
        ({"prompt": ""}, 200),
        ({"prompt": "the old bridge " * 500_000}, 413),  # before it is tokenized
        ({"prompt": ["the old bridge " * 2_500] * 2}, 413),
        ({"temperature": 0.7, "top_p": 0.9, "seed": None}, 200),
    ],
)
def test_supported_and_unsupported_options(client, change, status):
    data = json.dumps({**COMMON, "prompt": "the", "max_tokens": 3, **change}).encode()
    response = client.post("/v1/completions", content=data, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text


def test_generation_has_its_own_scope(open_service):
    client = open_service(generates=True)
    wanted = {**COMMON, "prompt": "the", "max_tokens": 2}
    for scope, status in (("detect", 403), ("generate", 200), ("admin", 200)):
        head = bearer(client, scope)
        assert client.post("/v1/completions", json=wanted, headers=head).status_code == status
        assert client.get("/v1/models", headers=head).status_code == status


class TestTenants:
    @pytest.fixture
    def client(self, open_service, given_seeds):
        return open_service(generates=True, tenants=("acme@2025", "acme", "beta"))

    def test_token_writes_with_its_own_tenant_s_key(self, client):
        wanted = {**COMMON, "max_tokens": 150, "prompt": "the old bridge"}
        admin = bearer(client, "admin")
        for name in ("acme", "beta"):
            head = bearer(client, "generate", tenants=[name])
            text = client.post("/v1/completions", json=wanted, headers=head).json()["choices"][0]["text"]
            (found,) = client.post("/v1/detect", json={"text": text}, headers=admin).json()["results"]
            assert (found["verdict"], found["tenant"]) == ("marked", name)
            other = {"acme": "beta", "beta": "acme"}[name]
            for choice in (other, "acme@2025", "nobody"):
                refused = client.post("/v1/completions", json={**wanted, "tenant": choice}, headers=head)
                assert refused.status_code == 404

    def test_token_of_several_tenants_names_one(self, client):
        wanted = {**COMMON, "max_tokens": 2, "prompt": "the"}
        head = bearer(client, "generate")
        assert client.post("/v1/completions", json=wanted, headers=head).status_code == 422
        named = {**wanted, "tenant": "beta"}
        assert client.post("/v1/completions", json=named, headers=head).status_code == 200

    def test_tenant_without_a_current_key_does_not_write(self, open_service):
        client = open_service(generates=True, tenants=("acme", "beta"))
        del client.service.generator.writers["beta"]
        head = bearer(client, "generate", tenants=["beta"])
        wanted = {**COMMON, "prompt": "the"}
        assert client.post("/v1/completions", json=wanted, headers=head).status_code == 403


def test_generation_ends_when_the_client_goes(tmp_path, monkeypatch):
    long, real = [], TextStream.take

    def held(self, token, room):
        if self.request.decoding.max_new_tokens == 1000 and self.tokens == 3:
            long.append(self)
            until(lambda: not self.open)  # it would go on, if nobody noticed that the client has gone
        real(self, token, room)

    monkeypatch.setattr(TextStream, "take", held)
    wanted = {**COMMON, "max_tokens": 1000, "prompt": "the old bridge"}
    with live_service(tmp_path, generates=True) as url, httpx.Client(base_url=url) as client:
        for stream in (False, True):
            asked = client.stream("POST", "/v1/completions", json={**wanted, "stream": stream}, timeout=0.3)
            with contextlib.suppress(httpx.ReadTimeout), asked:
                assert stream  # there is no response to the other kind yet
            short = client.post("/v1/completions", json={**wanted, "max_tokens": 2}, timeout=PATIENCE)
            assert short.status_code == 200
    assert all(each.tokens < 10 for each in long)


def test_detection_service_does_not_generate(open_service):
    client = open_service()
    assert client.post("/v1/completions", json={**COMMON, "prompt": "the"}).status_code == 404
    assert "/v1/completions" not in client.get("/openapi.json").json()["paths"]


class TestTextStream:
    def test_split_character_is_sent_whole(self):
        data = "a né 👩 z".encode()

        async def main() -> list[str]:
            request = GenerationRequest("", "acme", seed=0, decoding=Decoding(max_new_tokens=100))
            stream = TextStream(request, lambda ids: bytes(ids).decode(errors="replace"))
            for byte in data:
                stream.take(byte)
            stream.take(None)
            return [piece async for piece in stream]

        pieces = asyncio.run(main())
        assert "".join(pieces).encode() == data
        assert not any("\ufffd" in piece for piece in pieces)


def test_transcript_names_the_speakers():
    messages = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Hello"}]
    assert transcript(messages) == "System: Be brief.\n\nUser: Hello\n\nAssistant:"
