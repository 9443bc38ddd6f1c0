"""The service under load: many concurrent clients send texts of about 200 tokens (docs/service.md).

    python benchmarks/service_load.py --detector DIR --clients 200 --seconds 60 --workers 2

Starts ``dewmark serve`` on loopback with the detector and prints as JSON: throughput, latency (p50, p99),
counts of HTTP statuses, the memory of its processes before, during and after the load, and the machine's load
average. The clients run in this process and share the machine's cores with the service, which alone would be
faster. Without --texts, texts are random orders of the package's ordinary English sentences.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

from script_inputs import script_parser

MAIN = "import sys; from dewmark.cli.app import main; sys.exit(main())"
WORDS = 150  # about 200 tokens of a sub-word vocabulary


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
        for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("Rss", "Pss"):
                total[name.lower()] += int(value.split()[0])
    return {name: round(value / 1024, 1) for name, value in total.items()}


def quantile(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


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
    found = asyncio.run(load(url, bodies, clients=options.clients, seconds=half))
    middle = memory(pid)
    found += asyncio.run(load(url, bodies, clients=options.clients, seconds=half))
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = ["serve", "--detector", options.detector, "--workers", str(options.workers), "--port", "0"]
        store = ["--store", f"sqlite:///{folder}/service.db", "--json", "--quiet"]
        with Path(folder, "log").open("wb") as log:
            service = subprocess.Popen(
                [sys.executable, "-c", MAIN, *command, *store], stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            assert service.stdout is not None
            line = service.stdout.readline()
            if not line:
                sys.exit(Path(folder, "log").read_text())
            time.sleep(5.0)  # for the other workers to start
            print(json.dumps(measure(json.loads(line)["url"], service.pid, options), indent=1))
        finally:
            service.terminate()
            service.wait(60)


if __name__ == "__main__":
    main()
