"""A small real service for tests: DEW on the tiny host, in this process and offline.

``make_service(folder)`` returns a `Service` with one tenant "acme" (and "beta" on request); ``live_service``
runs it behind a real uvicorn on a free loopback port, in a thread:

    with live_service(tmp_path) as url:
        httpx.get(f"{url}/healthz")

``marked_text(seed)`` and ``plain_text(seed)`` are texts of about 300 words of the tiny host; the first kind
carries acme's mark, which its detector finds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import uvicorn
from tests.fakes import COMPOSED, BagEncoder

from dewmark.core.keys import Key
from dewmark.decoding import CHAT_DECODING, Decoding
from dewmark.hosts.base import ChatFormat
from dewmark.policy import load_policy
from dewmark.scheme import BoundScheme, for_languages
from dewmark.watermark import Watermark
from dewmark_desk.app import create_app
from dewmark_desk.connections import server_config
from dewmark_desk.generation import TextGenerator, transcript
from dewmark_desk.service import Service
from dewmark_desk.settings import Settings
from dewmark_desk.tenants import Tenant
from dewmark_lab.testing.fake_host import FakeHost

SECRETS = {
    "acme": bytes(range(32)),
    "beta": bytes(range(32, 64)),
    "acme@2025": bytes(range(64, 96)),  # a retired key of acme
}


@functools.cache
def host() -> FakeHost:
    return FakeHost(context=2048)


@functools.cache
def watermark(tenant: str) -> Watermark:
    """DEW under a tenant's key, with an encoder that needs no model."""
    settings = {"lambda": 6.0, **COMPOSED}
    with (
        mock.patch.dict("dewmark.encoders.loaded", clear=True),
        mock.patch("dewmark.encoders.create", return_value=BagEncoder()),
    ):
        made = Watermark(Key(SECRETS[tenant]), host=host(), scheme="dew-paper", settings=settings)
    languages = dataclasses.replace(made.scheme.languages, every=True)  # the tiny host's words are in none
    made.scheme = for_languages(made.scheme, languages)
    return made


def bound(tenant: str) -> BoundScheme:
    return watermark(tenant).scheme


@functools.cache
def marked_texts(count: int, words: int) -> tuple[str, ...]:
    """Texts with seeds 0, 1, …, generated in one batch, which is much faster."""
    return _written(bound("acme"), count, words)


@functools.cache
def plain_texts(count: int, words: int) -> tuple[str, ...]:
    return _written(None, count, words)


def marked_text(seed: int = 1) -> str:
    return marked_texts(5, 300)[seed]


@functools.cache
def old_text() -> str:
    """A text with the mark of acme's retired key."""
    return _written(bound("acme@2025"), 1, 300)[0]


def plain_text(seed: int = 1) -> str:
    return plain_texts(5, 300)[seed]


def _written(scheme: BoundScheme | None, count: int, words: int) -> tuple[str, ...]:
    starts = ["the old bridge", "a house by the sea", "rain over the city"]
    made = host().generate(
        [starts[seed % 3] for seed in range(count)],
        scheme=scheme,
        seeds=range(count),
        decoding=Decoding(max_new_tokens=words, min_new_tokens=words, no_repeat_ngram=4),
        batch_size=count,
    )
    return tuple(one.text for one in made)


PATIENCE = 300.0  # seconds: a test that hangs ends, and a slow machine has time for everything


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread or process will do."""
    last = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < last
        time.sleep(0.01)


def make_service(
    folder: Path, *, tenants: tuple[str, ...] = ("acme",), generates: bool = False, **settings: Any
) -> Service:
    """A service that is not started; ``settings`` are fields of `Settings`."""
    values = {"store": f"sqlite:///{folder / 'service.db'}", "detectors": (("acme", "memory"),), **settings}
    known = {name: Tenant(name, bound(name)) for name in tenants}
    generator = None
    if generates:
        writers = {name: bound(name) for name in tenants if "@" not in name}
        generator = TextGenerator(
            host(),
            writers,
            name="tiny",
            chat=ChatFormat(transcript, CHAT_DECODING),
            max_waiting=32,
            batch_size=8,
            policy=None if "policy" not in settings else load_policy(settings["policy"]),
            fpr=Settings(**values).fpr,
        )
    return Service(Settings(**values), known, generator=generator)


@contextlib.contextmanager
def live_service(folder: Path, *, service: Service | None = None, **options: Any) -> Iterator[str]:
    """Serve on loopback and yield the URL; ``options`` are those of `make_service`."""
    listening = socket.create_server(("127.0.0.1", 0))
    service = service or make_service(folder, **{"grace_seconds": 5, **options})
    server = uvicorn.Server(server_config(create_app(service), service.settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


def export(folder: Path, tenant: str = "acme") -> Path:
    """Export a detector of the tiny host, for services that run in their own processes."""
    from dewmark.detector import Detector

    Detector(bound(tenant)).save(folder / tenant)
    return folder / tenant
