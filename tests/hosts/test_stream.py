"""Texts told token by token are the texts that `generate` writes."""

from __future__ import annotations

import pytest

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, InputError
from dewmark.hosts.base import Host
from dewmark.hosts.fake import FakeHost

PROMPTS = ["the old bridge", "rain", "a house by the sea and the river"]
DECODING = Decoding(max_new_tokens=40, no_repeat_ngram=4)


@pytest.fixture(scope="module")
def host() -> FakeHost:
    return FakeHost()


def streamed(host: Host, *, steps: int | None = None) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in PROMPTS]
    count = 0

    def take(step: list[int | None]) -> bool:
        nonlocal count
        for row, token in zip(rows, step, strict=True):
            if token is not None:
                row.append(token)
        count += 1
        return count != steps

    host.stream(PROMPTS, scheme=None, seeds=[1, 2, 3], decoding=DECODING, on_step=take)
    return rows


def test_the_ids_are_those_of_generate(host):
    made = host.generate(
        PROMPTS, scheme=None, seeds=[1, 2, 3], decoding=Decoding(max_new_tokens=40, no_repeat_ngram=4)
    )
    assert [tuple(row) for row in streamed(host)] == [one.token_ids for one in made]


def test_a_host_that_cannot_stream_tells_all_at_the_end(host, monkeypatch):
    expected = streamed(host)
    monkeypatch.setattr(FakeHost, "complete_steps", Host.complete_steps, raising=False)
    assert streamed(host) == expected


def test_whoever_listens_may_stop_it(host, monkeypatch):
    whole = streamed(host)
    calls = []
    real = host.model.forward
    monkeypatch.setattr(host.model, "forward", lambda *a, **k: calls.append(1) or real(*a, **k))
    monkeypatch.setattr(
        "dewmark.hosts.transformers.decoding_loop.forward_parameters", lambda model: frozenset()
    )
    assert streamed(host, steps=5) == [row[:5] for row in whole]
    assert len(calls) == 5


def test_what_cannot_be_written_is_refused_first(host):
    def never(step: list[int | None]) -> bool:
        raise AssertionError

    with pytest.raises(InputError):
        host.stream(PROMPTS, scheme=None, seeds=[1], decoding=DECODING, on_step=never)
    with pytest.raises(ConfigError):
        host.stream(["a"], scheme=None, seeds=[-1], decoding=DECODING, on_step=never)
