"""A service with two workers under attack for minutes (``make fuzz-serve``, ``MINUTES=2`` for less).

Beside a flood of hostile uploads, expensive bodies, half-sent requests and requests that schemathesis makes
from the OpenAPI document, an ordinary client keeps asking. Nothing answers 5xx except 503 (busy), no worker
grows over 600 MB, and no ordinary request takes more than 5 seconds. The figures are printed as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import socket
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.desk.live import export, marked_text, plain_text
from tests.desk.test_documents import docx, pdf
from tests.desk.test_processes import children, served, until

from dewmark_desk.api_tokens import Tokens
from dewmark_desk.store import Store

pytestmark = pytest.mark.fuzz

SECONDS = 60.0 * float(os.environ.get("DEWMARK_FUZZ_MINUTES") or 10.0)
SLOWEST, LARGEST = 5.0, 600.0  # seconds, MB


class Outcome:
    """What the clients saw."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.slowest: dict[str, float] = {}
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def note(self, kind: str, status: int, seconds: float, what: str = "") -> None:
        with self._lock:
            self.statuses[f"{kind} {status}"] += 1
            self.slowest[kind] = max(seconds, self.slowest.get(kind, 0.0))
            if status >= 500 and status != 503:
                self.failures.append(f"{kind} {status} {what[:200]}")


def uploads(random_: random.Random) -> Iterator[tuple[str, bytes]]:
    """Files: valid ones, mutations of them, and bombs, which are made before the first is asked for."""
    good = [
        ("a.txt", plain_text().encode()),
        ("a.docx", docx(f"<w:p><w:r><w:t>{plain_text()}</w:t></w:r></w:p>")),
        ("a.pdf", pdf([["the old bridge"] * 30] * 3)),
        ("a.odt", zipped("content.xml", b"<office:text>the old bridge</office:text>")),
    ]
    bombs = [
        ("slow.docx", docx("<w:p><w:r>" + "<w:sym/>" * 3_000_000 + "</w:r></w:p>")),
        ("deep.docx", docx("<w:p>" * 200_000)),
        ("zeros.odt", zipped("content.xml", b"<a>" + b" " * 20_000_000)),
        ("wide.pdf", pdf([["A" * 5_000_000]])),
        ("letters.txt", b"a" * 8_000_000),
    ]
    yield good[0]
    while True:
        name, data = random_.choice(good)
        changed = bytearray(data)
        for _ in range(random_.choice([0, 1, 10, 100])):
            place = random_.randrange(len(changed))
            changed[place : place + random_.randrange(3)] = random_.randbytes(random_.randrange(4))
        yield name, bytes(changed)
        if random_.random() < 0.1:
            yield random_.choice(bombs)


def zipped(part: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(part, content)
    return stream.getvalue()


def bodies(random_: random.Random) -> Iterator[tuple[str, bytes]]:
    """JSON that is cheap to send and expensive to parse, validate or score."""
    many = b'{"texts":[' + b"0," * 1_500_000 + b"0]}"
    objects = b'{"texts":[' + b"{}," * 4_000_000 + b"{}]}"
    wide = json.dumps({"texts": [{"text": "\N{GRINNING FACE}" + "a" * 900_000}] * 14}, ensure_ascii=False)
    texts = json.dumps({"texts": [marked_text() * 30] * 40}).encode()
    some = json.dumps({"texts": [plain_text() * 4] * 30}).encode()
    long = json.dumps({"text": plain_text() * 40}).encode()
    wide_bytes = wide.encode()
    yield "/v1/detect", some
    while True:
        yield random_.choice(
            [
                ("/v1/detect", many),
                ("/v1/audit", many),
                ("/v1/audit", objects),
                ("/v1/audit", wide_bytes),
                ("/v1/detect", b'{"text":' + b"[" * 100_000),
                ("/v1/detect", texts),
                ("/v1/detect", some),
                ("/v1/detect", long),
                ("/v1/reports/verify", b'{"document": "' + b"a." * 400_000 + b'"}'),
            ]
        )


def test_service_under_attack(tmp_path):
    schemathesis = pytest.importorskip("schemathesis")
    store = f"sqlite:///{tmp_path}/service.db"
    tokens = Tokens(Store(store))
    heads = [
        {"Authorization": f"Bearer {tokens.new('fuzz', [scope], per_minute=1e6, **more)[1]}"}
        for scope, more in (("detect", {}), ("detect-public", {"unlimited": True}), ("admin", {}))
    ]
    outcome, stop, largest = Outcome(), threading.Event(), [0.0]
    with served(export(tmp_path / "detectors"), tmp_path, "--workers", "2") as (url, process, log):
        until(lambda: len(children(process)) == 2)
        httpx.post(f"{url}/v1/detect", json={"text": "warm"}, headers=heads[0], timeout=60)

        def repeat(kind: str, request: Callable[[httpx.Client], httpx.Response], pause: float = 0.0) -> None:
            with httpx.Client(base_url=url, timeout=60) as client:
                while not stop.is_set():
                    started = time.monotonic()
                    try:
                        found = request(client)
                        outcome.note(kind, found.status_code, time.monotonic() - started, found.text)
                    except httpx.TransportError:  # a refused body is not read to its end
                        outcome.note(kind, 0, time.monotonic() - started)
                    time.sleep(pause)

        def ordinary(client: httpx.Client) -> httpx.Response:
            return client.post("/v1/detect", json={"text": plain_text()}, headers=heads[0])

        def upload(client: httpx.Client) -> httpx.Response:
            name, data = next(files)
            return client.post("/v1/extract", files={"file": (name, data)}, headers=heads[0])

        def expensive(client: httpx.Client) -> httpx.Response:
            path, data = next(costly)
            head = heads[1] if path == "/v1/detect" else heads[0]
            return client.post(path, content=data, headers={**head, "content-type": "application/json"})

        def generated() -> None:
            from hypothesis import HealthCheck, Phase, given, settings

            schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
            described = schema.raw_schema["paths"]
            operations = [schema[path][method.upper()] for path in described for method in described[path]]
            quiet = settings(
                max_examples=10,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            )
            while not stop.is_set():
                operation = random.choice(operations)
                mode = random.choice(list(schemathesis.GenerationMode))

                @quiet
                @given(case=operation.as_strategy(generation_mode=mode))
                def ask(case):
                    started = time.monotonic()
                    found = case.call(headers=heads[2], timeout=60)
                    outcome.note("generated", found.status_code, time.monotonic() - started, found.text)

                with contextlib.suppress(Exception):  # an operation without invalid requests; statuses count
                    ask()

        def half_sent() -> None:
            parts = urlsplit(url)
            while not stop.is_set():
                with contextlib.ExitStack() as stack:
                    for _ in range(300):
                        with contextlib.suppress(OSError):
                            open_ = stack.enter_context(
                                socket.create_connection((parts.hostname, parts.port), timeout=5)
                            )
                            open_.sendall(b"POST /v1/detect HTTP/1.1\r\nX: ")
                    stop.wait(5.0)

        def watch() -> None:
            while not stop.wait(0.2):
                for pid in children(process):
                    with contextlib.suppress(OSError):
                        status = Path(f"/proc/{pid}/status").read_text()
                        used = next(line for line in status.splitlines() if line.startswith("VmRSS"))
                        largest[0] = max(largest[0], int(used.split()[1]) / 1000.0)

        files, costly = uploads(random.Random(0)), bodies(random.Random(1))
        lock = threading.Lock()
        next(files), next(costly)  # everything is made now
        files, costly = (locked(each, lock) for each in (files, costly))
        threads = [
            threading.Thread(target=repeat, args=("ordinary", ordinary, 0.2)),
            *(threading.Thread(target=repeat, args=("upload", upload)) for _ in range(2)),
            *(threading.Thread(target=repeat, args=("expensive", expensive)) for _ in range(2)),
            threading.Thread(target=generated),
            threading.Thread(target=half_sent),
            threading.Thread(target=watch),
        ]
        for thread in threads:
            thread.start()
        time.sleep(SECONDS)
        stop.set()
        for thread in threads:
            thread.join(120)
        alive = httpx.get(f"{url}/healthz", timeout=10).status_code
        lines = log.stat().st_size
    figures = {
        "seconds": SECONDS,
        "statuses": dict(sorted(outcome.statuses.items())),
        "slowest_s": {kind: round(seconds, 2) for kind, seconds in outcome.slowest.items()},
        "largest_worker_mb": round(largest[0]),
        "log_mb": round(lines / 1e6, 1),
        "load_average": os.getloadavg(),
    }
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    assert not outcome.failures, outcome.failures[:5]
    assert alive == 200
    assert largest[0] < LARGEST
    assert outcome.slowest["ordinary"] < SLOWEST
    assert set(outcome.statuses) & {"ordinary 200"}


def locked(values: Iterator[tuple[str, bytes]], lock: threading.Lock) -> Iterator[tuple[str, bytes]]:
    """An iterator that threads may share."""

    class Shared:
        def __iter__(self):
            return self

        def __next__(self):
            with lock:
                return next(values)

    return Shared()
