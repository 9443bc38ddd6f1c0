"""The service under load: many concurrent clients send texts of about 200 tokens (docs/service.md).

    python benchmarks/service_load.py --detector DIR --clients 200 --seconds 60 --workers 2
    python benchmarks/service_load.py --detector DIR --clients 200 --seconds 60 --workers 2 --kill 10

Starts ``dewmark serve`` on loopback with the detector and prints as JSON: throughput, latency (p50, p99),
counts of HTTP statuses, the memory of its processes before, during and after the load, and the machine's
load average. The clients run in this process and share the machine's cores with the service, which alone
would be faster. Without --texts, texts are random orders of the package's ordinary English sentences.

With --kill a worker is killed (SIGKILL) every so many seconds, while batches of 100 texts are submitted
beside the load. ``batches`` then says what became of them: a batch that was accepted (202) must end with one
result for each of its texts, in order, and with the p-values that ``/v1/detect`` gives; ``lost`` counts
texts without one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from script_inputs import script_parser

MAIN = "import sys; from dewmark.cli.app import main; sys.exit(main())"
WORDS = 150  # about 200 tokens of a sub-word vocabulary
BATCH = 100


class Client:
    """One connection that sends request after request, with a minimal HTTP/1.1 that costs little CPU."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> int:
        """The status of the response; 0 if the connection broke."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(*self._address)
            reader, writer = self._streams
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {self._address[0]}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
            await reader.readexactly(length)
            if b"connection: close" in lines:
                self.close()
            return int(lines[0].split()[1])
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def load(url: str, bodies: list[bytes], *, clients: int, seconds: float) -> list[tuple[int, float]]:
    """(status, seconds) of every response; a client that is turned away waits a second."""
    parts = urlsplit(url)
    found: list[tuple[int, float]] = []
    deadline = time.monotonic() + seconds

    async def run(number: int) -> None:
        client, random_ = Client(str(parts.hostname), int(parts.port or 80)), random.Random(number)
        while time.monotonic() < deadline:
            started = time.monotonic()
            status = await client.post("/v1/detect", random_.choice(bodies))
            found.append((status, time.monotonic() - started))
            if status in (429, 503):
                await asyncio.sleep(1.0)
        client.close()

    await asyncio.gather(*map(run, range(clients)))
    return found


def ordinary_texts(count: int) -> list[str]:
    """Texts of ordinary sentences in random order."""
    lines = (files("dewmark") / "data" / "ordinary" / "en.txt").read_text(encoding="utf-8").splitlines()
    random_ = random.Random(0)
    return [" ".join(" ".join(random_.sample(lines, len(lines))).split()[:WORDS]) for _ in range(count)]


def memory(pid: int) -> dict[str, float]:
    """MiB of a process and its children: resident (rss) and proportional (pss)."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    total: Counter[str] = Counter()
    for each in (str(pid), *children):
        lines: list[str] = []
        with contextlib.suppress(OSError):  # a worker that has just died
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        for line in lines:
            name, _, value = line.partition(":")
            if name in ("Rss", "Pss"):
                total[name.lower()] += int(value.split()[0])
    return {name: round(value / 1024, 1) for name, value in total.items()}


def workers_of(pid: int) -> list[int]:
    """The worker processes of a service."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ask(url: str, body: object = None) -> dict[str, object]:
    """The JSON answer of a service, asked again while it is busy or its worker dies."""
    data = None if body is None else json.dumps(body).encode()
    for _ in range(120):
        try:
            request = urllib.request.Request(url, data, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as error:
            if error.code not in (429, 503):
                raise
        except OSError:
            pass  # the connection broke: a worker was killed
        time.sleep(0.5)
    raise TimeoutError(f"{url} did not answer for two minutes")


class Batches:
    """Submits batches of detections and kills workers, until it is told to end."""

    def __init__(self, url: str, pid: int, texts: Sequence[str], *, every: float) -> None:
        self._url, self._pid, self._texts, self._every = url, pid, texts, every
        self._stop = threading.Event()
        self.killed, self.accepted = 0, list[str]()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._submit, self._kill)]
        for thread in self._threads:
            thread.start()

    def _submit(self) -> None:
        body = {"texts": [{"text": text, "id": str(i)} for i, text in enumerate(self._texts)]}
        while not self._stop.is_set():
            job = ask(f"{self._url}/v1/batches", body)["job"]
            assert isinstance(job, dict)
            self.accepted.append(job["id"])
            self._stop.wait(self._every)

    def _kill(self) -> None:
        while not self._stop.wait(self._every):
            with contextlib.suppress(IndexError, OSError):
                os.kill(random.choice(workers_of(self._pid)), signal.SIGKILL)
                self.killed += 1

    def end(self) -> dict[str, object]:
        """Wait for every accepted batch, and count its texts without the right result."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        wanted = [ask(f"{self._url}/v1/detect", {"text": text})["results"][0] for text in self._texts]  # type: ignore[index]
        lost = wrong = 0
        for id_ in self.accepted:
            where = f"{self._url}/v1/jobs/{id_}"
            while ask(where)["state"] not in ("done", "failed"):
                time.sleep(0.5)
            rows = ask(f"{where}/results?limit=500")["results"]
            assert isinstance(rows, list)
            found = {row["id"]: row for row in rows}
            lost += len(self._texts) - len(found)
            wrong += [row["id"] for row in rows] != sorted(found, key=int)
            wrong += sum(
                not math.isclose(row["p_value"], wanted[int(name)]["p_value"], rel_tol=1e-4)
                for name, row in found.items()
            )
        texts = len(self.accepted) * len(self._texts)
        counted = {"killed": self.killed, "accepted": len(self.accepted), "texts": texts}
        return {**counted, "lost": lost, "wrong": wrong}


def quantile(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


@contextlib.contextmanager
def serving(*arguments: str, store: str | None = None) -> Iterator[tuple[str, int]]:
    """Run ``dewmark serve`` on loopback, by default with a store of its own: its address and process id."""
    with tempfile.TemporaryDirectory() as folder:
        where = ["--port", "0", "--store", store or f"sqlite:///{folder}/service.db", "--json", "--quiet"]
        with Path(folder, "log").open("wb") as log:
            service = subprocess.Popen(
                [sys.executable, "-c", MAIN, "serve", *arguments, *where],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        try:
            assert service.stdout is not None
            line = service.stdout.readline()
            if not line:
                sys.exit(Path(folder, "log").read_text())
            yield json.loads(line)["url"], service.pid
        finally:
            service.terminate()
            try:
                service.wait(15)
            except subprocess.TimeoutExpired:  # it finishes what an attacker asked for
                for each in (*workers_of(service.pid), service.pid):
                    os.kill(each, signal.SIGKILL)
                service.wait(60)


def measure(url: str, pid: int, options: argparse.Namespace) -> dict[str, object]:
    if options.texts:
        rows = [json.loads(line) for line in options.texts.read_text(encoding="utf-8").splitlines()]
        texts = [" ".join(row["text"].split()[:WORDS]) for row in rows]
    else:
        texts = ordinary_texts(200)
    bodies = [json.dumps({"text": text}).encode() for text in texts]
    asyncio.run(load(url, bodies, clients=4, seconds=5.0))  # warm-up
    before, started = memory(pid), time.monotonic()
    half = options.seconds / 2
    beside = Batches(url, pid, texts[:BATCH], every=options.kill) if options.kill else None
    found = asyncio.run(load(url, bodies, clients=options.clients, seconds=half))
    middle = memory(pid)
    found += asyncio.run(load(url, bodies, clients=options.clients, seconds=half))
    batches = beside.end() if beside else None
    spent = time.monotonic() - started  # longer than asked: pending requests were awaited
    answered = [seconds for status, seconds in found if status == 200]
    refused = [seconds for status, seconds in found if status in (429, 503)]
    return {
        "clients": options.clients,
        "seconds": round(spent, 1),
        "workers": options.workers,
        "statuses": dict(Counter(str(status) for status, _ in found)),
        "texts_per_second": round(len(answered) / spent, 1),
        "p50_s": quantile(answered, 0.5),
        "p99_s": quantile(answered, 0.99),
        "refusal_p99_s": quantile(refused, 0.99),
        "batches": batches,
        "memory_mib": {"before": before, "middle": middle, "after": memory(pid)},
        "load_average": os.getloadavg(),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--detector", required=True, help="folder of a saved detector")
    parser.add_argument("--texts", type=Path, help="JSONL file with a text per line")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=float, metavar="SECONDS", help="kill a worker every so often")
    options = parser.parse_args()
    with serving("--detector", options.detector, "--workers", str(options.workers)) as (url, pid):
        time.sleep(5.0)  # for the other workers to start
        print(json.dumps(measure(url, pid, options), indent=1))


if __name__ == "__main__":
    main()
