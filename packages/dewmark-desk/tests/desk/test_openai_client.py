"""OpenAI's official client against a real server on loopback."""

from __future__ import annotations

import pytest
from tests.desk.live import live_service

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.serve

MESSAGES = [{"role": "user", "content": "tell of the old bridge over the river"}]
WANTED = {"model": "tiny", "max_tokens": 250, "seed": 3, "temperature": 1.0}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with live_service(tmp_path_factory.mktemp("openai"), generates=True) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def verdict(client, text: str) -> str:
    import httpx

    url = str(client.base_url).rstrip("/")
    return httpx.post(f"{url}/detect", json={"text": text}).json()["results"][0]["verdict"]


def test_chat_with_and_without_streaming(client):
    whole = client.chat.completions.create(messages=MESSAGES, **WANTED)
    text = whole.choices[0].message.content
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.completion_tokens > 100
    pieces = list(
        client.chat.completions.create(
            messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **WANTED
        )
    )
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == text
    assert pieces[-1].usage == whole.usage
    assert verdict(client, text) == "marked"


def test_completions_with_and_without_streaming(client):
    whole = client.completions.create(prompt="the old bridge", **WANTED).choices[0].text
    pieces = client.completions.create(prompt="the old bridge", stream=True, **WANTED)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == whole
    assert verdict(client, whole) == "marked"


def test_models_and_errors(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
        client.completions.create(model="tiny", prompt="a", temperature=-1.0)


def test_a_greedy_request_is_answered_without_a_mark(client):
    wanted = {**WANTED, "temperature": 0.0}
    text = client.completions.create(prompt="the old bridge", **wanted).choices[0].text
    assert text
    assert verdict(client, text) != "marked"


def test_disconnecting_frees_the_generator(client):
    stream = client.completions.create(prompt="the old bridge", stream=True, **{**WANTED, "max_tokens": 1000})
    next(iter(stream))
    stream.close()
    assert client.completions.create(prompt="the", model="tiny", max_tokens=2).choices[0].text
