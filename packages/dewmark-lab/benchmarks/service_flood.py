"""The service under attack, beside an ordinary client of another tenant (docs/service.md).

    python benchmarks/service_flood.py
    python benchmarks/service_flood.py --only prompts idle --proxy nginx

Starts ``dewmark serve`` on loopback with one worker and 50 keys, and runs one attack after another with a
token of one tenant, each in a fresh service. Meanwhile a client of another tenant has a text of 150 words
checked every tenth of a second, which no language model reads. For each attack it prints as JSON the
seconds until the attacker has its answers (or gives up after ``--seconds``), the statuses it got, the largest
memory of the worker in MB, and the ordinary client's median, 95th percentile and largest time in seconds; a
request that failed counts as ``failed``. With ``--proxy nginx`` both go through nginx with the limits of
docs/service.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import io
import json
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import httpx
from script_inputs import script_parser
from service_load import ordinary_texts, quantile, serving, workers_of

from dewmark.core.keys import Key
from dewmark_desk.api_tokens import Tokens
from dewmark_desk.store import Store

KEYS = 50
LONG = {"content-type": "application/json"}
Attack = Callable[["Target"], Awaitable[dict[str, object]]]

NGINX = """
pid {folder}/nginx.pid; error_log {folder}/error.log; daemon off; worker_processes 1;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  client_header_timeout 10s; client_body_timeout 15s; client_max_body_size 16m;
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass {url}; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; }} }}
}}
"""


class Target:
    """A service, and the attacker's tokens."""

    def __init__(self, url: str, heads: dict[str, dict[str, str]], store: Path, seconds: float) -> None:
        self.url, self.heads, self.store, self.seconds = url, heads, store, seconds
        self.statuses: Counter[str] = Counter()

    async def send(
        self, method: str, path: str, *, scope: str = "detect", **options: object
    ) -> httpx.Response | None:
        """One request of the attacker; None if it was not answered in time."""
        headers = {**LONG, **self.heads[scope], **options.pop("headers", {})}  # type: ignore[dict-item]
        if "files" in options:
            del headers["content-type"]
        try:
            async with (
                asyncio.timeout(self.seconds),
                httpx.AsyncClient(base_url=self.url, timeout=self.seconds) as client,
            ):
                found = await client.request(method, path, headers=headers, **options)  # type: ignore[arg-type]
        except (httpx.TransportError, TimeoutError) as error:
            self.statuses[type(error).__name__] += 1
            return None
        self.statuses[str(found.status_code)] += 1
        return found

    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)


def text(size: int, seed: int = 0) -> str:
    """Ordinary words, about ``size`` characters."""
    return " ".join(random.Random(seed).choices(_words(), k=size // 5))[:size]


@functools.cache
def _words() -> list[str]:
    return " ".join(ordinary_texts(20)).split()


async def prompts(target: Target) -> dict[str, object]:
    """Two prompts of half a megabyte, for all keys."""
    body = {"texts": [text(800), text(900, 1)], "prompts": [text(500_000), text(500_000, 2)]}
    await target.send("POST", "/v1/detect", json=body)
    return {}


async def utf16(target: Target) -> dict[str, object]:
    """Millions of values that a count of the bytes' quotes does not see."""
    head, tail = '{"\u0122": 1, "texts": [', "{}]}"
    body = head + "{}," * ((15 * (1 << 20) // 2 - 100) // 3) + tail
    await target.send("POST", "/v1/batches", content=body.encode("utf-16-le"))
    return {}


async def lists(target: Target) -> dict[str, object]:
    """A long list of wrong values."""
    await target.send("POST", "/v1/batches", content=b'{"texts": [' + b"1," * 119_000 + b"1]}")
    return {}


async def keys(target: Target) -> dict[str, object]:
    """32 KiB under all keys, searched for passages, four at a time."""
    body = {"text": text(32_000)}
    await asyncio.gather(*(target.send("POST", "/v1/detect", json=body) for _ in range(4)))
    return {}


async def below(target: Target) -> dict[str, object]:
    """Requests just below the limit of work, eight at a time."""
    body = {"text": text(4_500)}
    await asyncio.gather(*(target.send("POST", "/v1/detect", json=body) for _ in range(8)))
    return {}


async def reading(target: Target) -> dict[str, object]:
    """Texts that a language model (``--reader``) reads for seconds, eight at a time."""
    bodies_ = [{"text": text(1_200, i), "tenants": ["k00"]} for i in range(8)]
    await asyncio.gather(*(target.send("POST", "/v1/detect", json=body) for body in bodies_))
    return {}


async def texts(target: Target) -> dict[str, object]:
    """64 texts of 8 KiB under all keys."""
    await target.send("POST", "/v1/detect", json={"texts": [text(8_000, i) for i in range(64)]})
    return {}


async def example(target: Target) -> dict[str, object]:
    """45 requests for the example at once, with a public token."""
    await asyncio.gather(*(target.send("GET", "/v1/example", scope="detect-public") for _ in range(45)))
    return {}


async def idle(target: Target) -> dict[str, object]:
    """4,000 connections that send nothing."""
    return await _hold(target, 4000, b"")


async def bodies(target: Target) -> dict[str, object]:
    """600 bodies that arrive byte by byte."""
    token = target.heads["detect"]["Authorization"]
    lines = ("POST /v1/detect HTTP/1.1", "Host: 127.0.0.1", f"Authorization: {token}", "Content-Length: 999")
    return await _hold(target, 600, "\r\n".join((*lines, "", "{")).encode())


async def _hold(target: Target, count: int, sent: bytes) -> dict[str, object]:
    open_, refused = [], 0
    deadline = time.monotonic() + min(target.seconds, 25.0)
    for _ in range(count):
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(*target.address()), 5.0)
            writer.write(sent)
            open_.append(writer)
        except (OSError, TimeoutError):
            refused += 1
    while time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        for writer in open_:
            if sent and not writer.is_closing():
                writer.write(b" ")
    for writer in open_:
        writer.close()
    return {"refused": refused}


async def methods(target: Target) -> dict[str, object]:
    """2,000 requests with invented methods."""
    async with httpx.AsyncClient(base_url=target.url, timeout=30) as client:
        for i in range(2000):
            await client.request(f"M{'X' * 3000}{i}", "/healthz")
        size = len((await client.get("/metrics", headers=target.heads["metrics"])).content)
    return {"metrics_bytes": size}


async def jobs(target: Target) -> dict[str, object]:
    """Four jobs of one token; how long another token's job of one text takes."""
    body = {"texts": [{"text": text(2_000, i)} for i in range(400)]}
    for _ in range(4):
        await target.send("POST", "/v1/batches", json=body)
    await asyncio.sleep(1.0)
    started = time.monotonic()
    made = await target.send("POST", "/v1/batches", scope="other", json={"texts": [{"text": text(800)}]})
    assert made is not None
    where = made.headers["location"]
    while time.monotonic() - started < target.seconds:
        found = await target.send("GET", where, scope="other")
        if found is not None and found.json()["state"] == "done":
            return {"other_job_s": round(time.monotonic() - started, 1)}
        await asyncio.sleep(0.2)
    return {"other_job_s": f"more than {target.seconds:g}"}


async def rows(target: Target) -> dict[str, object]:
    """A batch of 4,000 texts of one letter: what it leaves in the store."""
    body = {"texts": [{"text": "a"}] * 4000, "tenants": ["k00"]}
    made = await target.send("POST", "/v1/batches", json=body)
    sent = len(json.dumps(body))
    deadline = time.monotonic() + target.seconds
    while made is not None and time.monotonic() < deadline:
        found = await target.send("GET", made.headers["location"])
        if found is not None and found.json()["state"] == "done":
            break
        await asyncio.sleep(0.5)
    files = sum(each.stat().st_size for each in target.store.parent.glob("service.db*"))
    return {"sent_bytes": sent, "store_bytes": files}


async def uploads(target: Target) -> dict[str, object]:
    """Documents that take long to read, four at a time; whether another token's upload is read."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("content.xml", b"<a>" + b"<b/>" * 5_000_000)
    slow = stream.getvalue()
    own = [
        asyncio.create_task(target.send("POST", "/v1/extract", files={"file": ("a.odt", slow)}))
        for _ in range(4)
    ]
    await asyncio.sleep(1.0)
    started = time.monotonic()
    found = await target.send(
        "POST", "/v1/extract", scope="other", files={"file": ("b.txt", b"the old bridge")}
    )
    seconds = time.monotonic() - started
    await asyncio.gather(*own)
    return {"other_upload": None if found is None else found.status_code, "other_upload_s": round(seconds, 2)}


ATTACKS: dict[str, Attack] = {
    each.__name__: each
    for each in (
        prompts,
        utf16,
        lists,
        keys,
        below,
        reading,
        texts,
        example,
        idle,
        bodies,
        methods,
        jobs,
        rows,
        uploads,
    )
}


class Ordinary(threading.Thread):
    """The other tenant's client, and the largest memory of the worker."""

    def __init__(self, url: str, head: dict[str, str], pid: int) -> None:
        super().__init__(daemon=True)
        self._url, self._head, self._pid = url, head, pid
        self.over = threading.Event()
        self.seconds: list[float] = []
        self.failed: Counter[str] = Counter()
        self.megabytes = 0.0

    def run(self) -> None:
        """Ask until it is over."""
        body = {"text": text(900), "read": False}
        memory = threading.Thread(target=self._watch, daemon=True)
        memory.start()
        with httpx.Client(base_url=self._url, timeout=60, headers=self._head) as client:
            while not self.over.is_set():
                started = time.monotonic()
                try:
                    found = client.post("/v1/detect", json=body)
                    if found.status_code == 200:
                        self.seconds.append(time.monotonic() - started)
                    else:
                        self.failed[str(found.status_code)] += 1
                except httpx.TransportError as error:
                    self.failed[type(error).__name__] += 1
                self.over.wait(0.1)

    def _watch(self) -> None:
        while not self.over.wait(0.05):
            for pid in workers_of(self._pid):
                with contextlib.suppress(OSError, StopIteration):
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    used = next(line for line in lines if line.startswith("VmRSS"))
                    self.megabytes = max(self.megabytes, int(used.split()[1]) / 1000.0)


@contextlib.contextmanager
def behind(proxy: str | None, url: str, folder: Path) -> Iterator[str]:
    """The service's address, or that of a proxy in front of it."""
    if proxy is None:
        yield url
        return
    port = random.randrange(20_000, 30_000)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, url=url))
    process = subprocess.Popen([shutil.which(proxy) or proxy, "-c", str(folder / "nginx.conf")])
    time.sleep(1.0)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def run(name: str, options: argparse.Namespace) -> dict[str, object]:
    """One attack on a fresh service."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        for i in range(options.keys):
            Key.generate().save(where / f"k{i:02d}.key")
        store = where / "service.db"
        tokens = Tokens(Store(f"sqlite:///{store}"))
        heads = {
            scope: {"Authorization": f"Bearer {tokens.new(scope, [scope], per_minute=1e6)[1]}"}
            for scope in ("detect", "detect-public", "metrics")
        }
        other = tokens.new("other", ["detect"], tenants=["k49"], per_minute=1e6)[1]
        heads["other"] = {"Authorization": f"Bearer {other}"}
        with (
            serving(
                "--keys", folder, "--require-tokens", "--reader", options.reader, store=f"sqlite:///{store}"
            ) as (direct, pid),
            behind(options.proxy, direct, where) as url,
        ):
            head = heads["other"]
            httpx.post(f"{url}/v1/detect", json={"text": text(900)}, headers=heads["detect"], timeout=120)
            client = Ordinary(url, head, pid)
            client.start()
            time.sleep(2.0)
            before = len(client.seconds)
            target = Target(url, heads, store, options.seconds)
            started = time.monotonic()
            found = asyncio.run(ATTACKS[name](target))
            spent = time.monotonic() - started
            time.sleep(1.0)
            client.over.set()
            client.join(90)
    during: Sequence[float] = client.seconds[before:]
    return {
        "attack": name,
        "seconds": round(spent, 2),
        "statuses": dict(target.statuses),
        "worker_mb": round(client.megabytes),
        "other_p50_s": _rounded(quantile(list(during), 0.5)),
        "other_p95_s": _rounded(quantile(list(during), 0.95)),
        "other_max_s": _rounded(max(during, default=None)),
        "other_asked": len(during),
        "other_failed": dict(client.failed),
        **found,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--only", nargs="*", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--reader", default="none", help="language model that reads the texts")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long the attacker waits for an answer"
    )
    parser.add_argument("--proxy", choices=["nginx"], help="put a reverse proxy in front")
    options = parser.parse_args()
    for name in options.only:
        print(json.dumps({**run(name, options), "load_average": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main()
