"""Attacks on a running service, beside an ordinary client of another token.

No request takes five seconds or 600 MB, and the ordinary client is served. ``benchmarks/service_flood.py``
prints the figures of all attacks under 50 keys.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.desk.live import export, plain_text, plain_texts
from tests.desk.test_processes import children, served

from dewmark_desk.api_tokens import Tokens
from dewmark_desk.store import Store

pytestmark = pytest.mark.serve

SLOWEST, LARGEST, OTHERS = 5.0, 600.0, 0.5  # seconds, MB, seconds
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory) -> Iterator[tuple]:
    folder = tmp_path_factory.mktemp("attacked")
    tokens = Tokens(Store(f"sqlite:///{folder}/service.db"))
    heads = {
        name: {"Authorization": f"Bearer {tokens.new(name, [scope], per_minute=1e6)[1]}"}
        for name, scope in (
            ("attacker", "detect"),
            ("other", "detect"),
            ("public", "detect-public"),
            ("meter", "metrics"),
        )
    }
    with served(export(tmp_path_factory.mktemp("detectors")), folder) as (url, process, log):
        httpx.post(f"{url}/v1/detect", json={"text": plain_text()}, headers=heads["other"], timeout=60)
        yield url, process, heads, log


@contextlib.contextmanager
def beside(url: str, head: dict[str, str], process) -> Iterator[list[float]]:
    """An ordinary client, and a look at the worker's memory."""
    seconds, over, largest = [], threading.Event(), [0.0]

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=30, headers=head) as client:
            while not over.wait(0.05):
                started = time.monotonic()
                assert client.post("/v1/detect", json={"text": plain_text()}).status_code == 200
                seconds.append(time.monotonic() - started)
                for pid in children(process):
                    with contextlib.suppress(OSError, StopIteration):
                        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                        used = next(line for line in lines if line.startswith("VmRSS"))
                        largest[0] = max(largest[0], int(used.split()[1]) / 1000.0)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    time.sleep(0.5)
    yield seconds
    time.sleep(0.5)
    over.set()
    thread.join(60)
    assert sorted(seconds)[int(0.95 * len(seconds))] < OTHERS
    assert largest[0] < LARGEST


BODIES = {
    "a megabyte of prompts": (
        "/v1/detect",
        json.dumps({"texts": ["a b", "c d"], "prompts": ["the sea " * 60_000] * 2}).encode(),
        {200},
    ),
    "utf-16": (
        "/v1/batches",
        ('{"\u0122": 1, "texts": [' + "{}," * 2_500_000 + "{}]}").encode("utf-16-le"),
        {400},
    ),
    "a long list of wrong values": ("/v1/batches", b'{"texts": [' + b"1," * 119_000 + b"1]}", {422}),
    "too many values": ("/v1/detect", b'{"texts": [' + b"1," * 1_500_000 + b"1]}", {413}),
    "deep": ("/v1/detect", b'{"text":' + b"[" * 5_000_000, {413}),
    "an endless string": ("/v1/detect", b'"' + b'\\"' * 4_000_000, {400}),
    "a level of 0.99": ("/v1/detect", b'{"text": "the old bridge", "fpr": 0.99}', {422}),
}


@pytest.mark.parametrize("name", BODIES)
def test_hostile_bodies(attacked, name):
    url, process, heads, _ = attacked
    path, body, statuses = BODIES[name]
    with beside(url, heads["other"], process):
        started = time.monotonic()
        found = httpx.post(f"{url}{path}", content=body, headers={**JSON, **heads["attacker"]}, timeout=60)
        assert time.monotonic() - started < SLOWEST
    assert found.status_code in statuses, found.text


@pytest.mark.parametrize(("count", "sent"), [(2000, b""), (600, b"body")])
def test_connections_without_end(attacked, count, sent):
    url, process, heads, _ = attacked
    parts = urlsplit(url)
    head = f"POST /v1/detect HTTP/1.1\r\nHost: a\r\nAuthorization: {heads['attacker']['Authorization']}\r\n"
    line = (head + "Content-Length: 99\r\n\r\n{").encode() if sent else b""
    with beside(url, heads["other"], process), contextlib.ExitStack() as stack:
        for _ in range(count):
            with contextlib.suppress(OSError):
                open_ = stack.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=5))
                open_.sendall(line)
        for _ in range(12):
            assert httpx.get(f"{url}/healthz", timeout=5).status_code == 200
            time.sleep(1.0)


def test_invented_methods_are_one_kind(attacked):
    url, process, heads, log = attacked
    before = log.stat().st_size
    with beside(url, heads["other"], process), httpx.Client(base_url=url) as client:
        for i in range(300):
            client.request(f"M{'X' * 2000}{i}", "/healthz")
        metrics = client.get("/metrics", headers=heads["meter"]).text
    assert "MXXX" not in metrics
    assert 'method="other"' in metrics
    assert log.stat().st_size - before < 300_000


def test_jobs_of_one_token_do_not_delay_another_s(attacked):
    url, process, heads, _ = attacked
    many = {"texts": [{"text": each} for each in plain_texts(64, 120) * 20]}
    with beside(url, heads["other"], process):
        for _ in range(4):
            found = httpx.post(f"{url}/v1/batches", json=many, headers=heads["attacker"], timeout=60)
            assert found.status_code == 202
        one = {"texts": [{"text": plain_text()}]}
        started = time.monotonic()
        where = httpx.post(f"{url}/v1/batches", json=one, headers=heads["other"]).headers["location"]
        while httpx.get(f"{url}{where}", headers=heads["other"]).json()["state"] != "done":
            assert time.monotonic() - started < 20.0
            time.sleep(0.1)
    open_ = httpx.get(f"{url}/v1/jobs", headers=heads["attacker"]).json()["jobs"]
    assert any(job["state"] != "done" for job in open_)  # it went before them
    for job in open_:
        httpx.delete(f"{url}/v1/jobs/{job['id']}", headers=heads["attacker"], timeout=60)


def test_reloads_break_no_request(attacked):
    url, process, heads, log = attacked
    found: list[int] = []
    over = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=60, headers=heads["other"]) as client:
            while not over.is_set():
                found.append(client.post("/v1/detect", json={"text": "the old bridge"}).status_code)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for times in range(1, 4):
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60.0
        while log.read_text().count('"reloaded"') < times:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    time.sleep(3.0)
    over.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(found) > 50
    assert set(found) == {200}
