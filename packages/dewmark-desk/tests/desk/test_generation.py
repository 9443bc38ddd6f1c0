from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from tests.desk.live import bound, host

from dewmark.decoding import CHAT_DECODING, Decoding
from dewmark.hosts.base import ChatFormat
from dewmark.policy import Policy
from dewmark_desk.fair_pool import Overloaded
from dewmark_desk.generation import GenerationRequest, TextGenerator, TextStream, transcript

REQUEST = GenerationRequest("the old bridge", "acme", seed=7, decoding=Decoding(max_new_tokens=20))


class HeldHost:
    """A host that notes its batches; each waits until it is let go, and then writes one token a text."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda batch: ["word"] * len(batch)))
        self.batches: list[list[str]] = []
        self.entered, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def stream(self, prompts: list[str], *, on_step: Any, **_: Any) -> None:
        self.batches.append(prompts)
        self.entered.release()
        assert self.go_on.acquire(timeout=60)
        on_step([1] * len(prompts), [None] * len(prompts))


@contextmanager
def held(*, max_waiting: int = 8, batch_size: int = 8) -> Iterator[tuple[HeldHost, TextGenerator]]:
    """A generator that is busy with one request of ``owner``; at the end it may finish all the others."""
    held_host = HeldHost()
    generator = opened(held_host, max_waiting=max_waiting, batch_size=batch_size)
    try:
        yield held_host, generator
    finally:
        for _ in range(100):
            held_host.go_on.release()
        generator.close()


def opened(writer: Any, **options: Any) -> TextGenerator:
    settings = {"max_waiting": 8, "batch_size": 8, **options}
    return TextGenerator(
        writer,
        {name: bound(name) for name in ("acme", "beta")},
        name="tiny",
        chat=ChatFormat(transcript, CHAT_DECODING),
        **settings,
    )


def asked(owner: str, prompt: str = "the") -> GenerationRequest:
    return dataclasses.replace(REQUEST, owner=owner, prompt=prompt)


async def collect(stream: TextStream) -> str:
    return "".join([piece async for piece in stream])


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({"tenant": "beta"}, False),
        ({"payload": 2}, False),
        ({"marked": False}, False),
        ({"grammar": "a"}, False),
        ({"decoding": Decoding(max_new_tokens=20, temperature=0.5)}, False),
        ({"decoding": Decoding(max_new_tokens=99)}, True),
        ({"prompt": "a", "seed": 8, "owner": "b", "stop": ("c",), "exempt": "short"}, True),
    ],
)
def test_only_requests_with_the_same_mark_and_decoding_share_a_batch(change, alike):
    other = dataclasses.replace(REQUEST, **change)
    assert REQUEST.samples_like(other) is alike
    assert other.samples_like(REQUEST) is alike


@pytest.mark.parametrize("stops", [("late", "early"), ("early", "late")])
def test_text_ends_before_the_earliest_of_the_stops_that_one_token_completes(stops):
    async def main() -> str:
        request = dataclasses.replace(REQUEST, stop=stops)
        stream = TextStream(request, lambda ids: "one early two late")
        stream.take(1)
        return await collect(stream)

    assert asyncio.run(main()) == "one "


def test_a_stop_may_begin_before_a_character_that_is_not_complete_yet():
    """What may be the beginning of a stop is held back, since sent text cannot be taken back."""
    texts = ["one a\ufffd", "one aé two"]

    async def written(stop: str) -> str:
        stream = TextStream(dataclasses.replace(REQUEST, stop=(stop,)), lambda ids: texts[len(ids) - 1])
        stream.take(1)
        stream.take(2)
        stream.end()
        return await collect(stream)

    assert asyncio.run(written("aé")) == "one "
    assert asyncio.run(written("ab")) == "one aé two"


def test_the_texts_of_a_request_are_not_shown():
    request = dataclasses.replace(REQUEST, prompt="a secret prompt", grammar="a secret grammar")
    assert "secret" not in repr(request)
    assert "acme" in repr(request)


def test_what_the_policy_leaves_out_is_written_without_the_key():
    class Spares(Policy):
        def reason(self, text: str, prompt: str = "") -> str | None:
            return "code"

    async def written(generator: TextGenerator, tenant: str) -> str:
        (stream,) = generator.submit([dataclasses.replace(REQUEST, tenant=tenant)])
        return await asyncio.wait_for(collect(stream), 60)

    def texts(policy: Policy | None) -> tuple[str, str]:
        generator = opened(host(), policy=policy)
        try:
            mine, theirs = (asyncio.run(written(generator, tenant)) for tenant in ("acme", "beta"))
            return mine, theirs
        finally:
            generator.close()

    spared, marked = texts(Spares()), texts(None)
    assert spared[0] == spared[1]  # the key has no say
    assert marked[0] != marked[1]


def test_owner_beyond_its_share_of_a_full_queue_is_refused_and_a_new_owner_is_not():
    async def main() -> None:
        with held(max_waiting=8) as (held_host, generator):
            generator.submit([asked("busy")])
            assert held_host.entered.acquire(timeout=60)
            for owner in "abcd":
                generator.submit([asked(owner)] * 2)
            with pytest.raises(Overloaded, match="too many requests"):
                generator.submit([asked("a")])
            generator.submit([asked("new")])

    asyncio.run(main())


def test_owner_beyond_its_share_is_served_while_the_queue_has_room():
    async def main() -> None:
        with held(max_waiting=8) as (held_host, generator):
            generator.submit([asked("busy")])
            assert held_host.entered.acquire(timeout=60)
            generator.submit([asked("a")] * 4)
            generator.submit([asked("b")])
            generator.submit([asked("a")] * 3)  # the queue is full now, and seven eighths are of one owner
            with pytest.raises(Overloaded, match="too many requests"):
                generator.submit([asked("a")])

    asyncio.run(main())


def test_batch_begins_with_the_owner_whose_turn_is_longest_ago():
    async def main() -> list[list[str]]:
        with held(batch_size=1) as (held_host, generator):
            generator.submit([asked("a", "a1")])
            assert held_host.entered.acquire(timeout=60)
            streams = [*generator.submit([asked("a", "a2")]), *generator.submit([asked("b", "b1")])]
            for _ in range(3):
                held_host.go_on.release()
            for stream in streams:
                await asyncio.wait_for(collect(stream), 60)
            return held_host.batches

    assert asyncio.run(main()) == [["a1"], ["b1"], ["a2"]]


def test_generator_writes_on_after_all_waiting_clients_have_gone():
    async def main() -> str:
        with held() as (held_host, generator):
            generator.submit([asked("a")])
            assert held_host.entered.acquire(timeout=60)
            (gone,) = generator.submit([asked("b")])
            gone.cancel()
            held_host.go_on.release()
            while generator._streams:  # until the thread has found that nobody waits
                time.sleep(0.001)
            (stream,) = generator.submit([asked("c")])
            held_host.go_on.release()
            return await asyncio.wait_for(collect(stream), 60)

    assert asyncio.run(main()) == "word"
