"""``dewmark serve`` with real worker processes, some of which are killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.desk.live import export, marked_text, plain_texts

from dewmark_desk.api_tokens import Tokens
from dewmark_desk.store import Store

pytestmark = pytest.mark.serve

MAIN = "import sys; from dewmark.cli.app import main; sys.exit(main())"


@pytest.fixture(scope="module")
def detector(tmp_path_factory) -> Path:
    return export(tmp_path_factory.mktemp("detectors"))


@contextlib.contextmanager
def served(
    detector: Path, folder: Path, *options: str, name: str = "acme="
) -> Iterator[tuple[str, subprocess.Popen, Path]]:
    """A running service: its URL, its process and its log."""
    log = folder / "log.jsonl"
    command = ["serve", "--detector", f"{name}{detector}", "--port", "0", "--json", "--quiet"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *command, "--store", f"sqlite:///{folder}/service.db", *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        line = process.stdout.readline()
        assert line, log.read_text()
        yield json.loads(line)["url"], process, log
    finally:
        process.terminate()
        process.wait(60)


def children(process: subprocess.Popen) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def until(condition, seconds: float = 60.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_killed_workers_lose_no_accepted_job(detector, tmp_path):
    texts = plain_texts(64, 120)
    with served(detector, tmp_path, "--workers", "2") as (url, process, log):
        until(lambda: len(children(process)) == 2)
        stop = threading.Event()
        statuses: list[int] = []

        def ask() -> None:
            while not stop.is_set():
                # a killed worker loses the request that it was serving
                with contextlib.suppress(httpx.HTTPError):
                    statuses.append(httpx.post(f"{url}/v1/detect", json={"text": texts[0]}).status_code)

        clients = [threading.Thread(target=ask) for _ in range(4)]
        for client in clients:
            client.start()
        accepted = []
        for part in range(4):
            body = {"texts": [{"text": text} for text in texts[16 * part : 16 * part + 16]]}
            made = httpx.post(f"{url}/v1/audit", json=body, timeout=30)
            accepted.append(made.json()["job"]["id"])
            for pid in children(process):  # all at once, so that only the store knows the job
                os.kill(pid, signal.SIGKILL)
            until(lambda: healthy(url))

        def ended() -> list[dict] | None:
            jobs = [job(url, id_) for id_ in accepted]
            return jobs if all(each and each["state"] in ("done", "failed") for each in jobs) else None

        found = until(ended, 120)
        stop.set()
        for client in clients:
            client.join()
    assert [(each["state"], each["done"]) for each in found] == [("done", 16)] * 4
    assert all(each["result"]["texts"] == 16 for each in found)
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    assert sum(row["event"] == "a worker died" for row in rows(log)) >= 4


def healthy(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    return False


def job(url: str, id_: str) -> dict | None:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/v1/jobs/{id_}", timeout=5).json()
    return None


def rows(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_stop_finishes_accepted_requests(detector, tmp_path):
    body = {"text": marked_text() * 12}  # a search that takes seconds
    with served(detector, tmp_path) as (url, process, _):
        answers: list[httpx.Response] = []
        client = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/v1/detect", json=body, timeout=60))
        )
        client.start()
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        client.join()
    assert answers[0].json()["results"][0]["verdict"] == "marked"


def test_workers_share_metrics_and_tables(detector, tmp_path):
    with served(detector, tmp_path, "--workers", "2") as (url, process, _):
        workers = until(lambda: children(process) if len(children(process)) == 2 else None)
        until(lambda: all(mapped(pid, detector) for pid in workers))
        for _ in range(20):
            assert httpx.post(f"{url}/v1/detect", json={"text": "the old bridge"}).status_code == 200
        text = httpx.get(f"{url}/metrics").text
    assert 'dewmark_texts_total{endpoint="detect",verdict="too_short"} 20.0' in text


def mapped(pid: int, detector: Path) -> bool:
    """Whether a process has mapped the detector's tables, which shares their pages."""
    return f"{detector}/state/" in Path(f"/proc/{pid}/maps").read_text()


def test_workers_stop_when_their_supervisor_is_killed(detector, tmp_path):
    with served(detector, tmp_path) as (_, process, _log):
        (worker,) = until(lambda: children(process))
        process.kill()
        process.wait(10)
        until(lambda: not Path(f"/proc/{worker}").exists())


def test_first_token_closes_a_running_service(detector, tmp_path):
    with served(detector, tmp_path) as (url, _, log):
        assert httpx.get(f"{url}/v1/jobs").status_code == 200
        _, text = Tokens(Store(f"sqlite:///{tmp_path}/service.db")).new("desk", ["detect"])
        time.sleep(1.2)
        assert httpx.get(f"{url}/v1/jobs").status_code == 401
        head = {"Authorization": f"Bearer {text}"}
        assert httpx.get(f"{url}/v1/jobs", headers=head).status_code == 200
    assert text.split("_", 2)[2] not in log.read_text()


def test_reload_brings_new_keys_without_an_interruption(detector, tmp_path):
    folder = tmp_path / "detectors"
    shutil.copytree(detector, folder / "acme")
    store = f"sqlite:///{tmp_path}/service.db"
    _, text = Tokens(Store(store)).new("desk", ["admin"])
    head = {"Authorization": f"Bearer {text}"}

    def tenants(url: str) -> list[str]:
        return [each["id"] for each in httpx.get(f"{url}/v1/whoami", headers=head).json()["tenants"]]

    with served(folder, tmp_path, name="") as (url, process, log):
        (old,) = until(lambda: children(process))
        assert tenants(url) == ["acme"]
        stop, statuses = threading.Event(), []

        def ask() -> None:
            while not stop.is_set():
                found = httpx.post(
                    f"{url}/v1/detect", json={"text": "the old bridge"}, headers=head, timeout=60
                )
                statuses.append(found.status_code)

        client = threading.Thread(target=ask)
        client.start()
        (folder / "acme").rename(folder / "acme@2025")  # retired, and replaced by a new key
        export(folder, "beta").rename(folder / "acme")
        process.send_signal(signal.SIGHUP)
        until(lambda: "reloaded" in log.read_text())
        until(lambda: not Path(f"/proc/{old}").exists())
        stop.set()
        client.join()
        assert tenants(url) == ["acme", "acme@2025"]
        assert set(statuses) == {200}
        # a mistake changes nothing
        (folder / "acme" / "detector.json").write_text("{}")
        process.send_signal(signal.SIGHUP)
        until(lambda: "nothing has changed" in log.read_text())
        assert tenants(url) == ["acme", "acme@2025"]


def test_service_without_its_store_stays_closed(detector, tmp_path):
    store = f"sqlite:///{tmp_path}/service.db"
    Tokens(Store(store)).new("desk", ["detect"])
    with served(detector, tmp_path) as (url, process, log):
        assert httpx.get(f"{url}/v1/jobs").status_code == 401
        for file in tmp_path.glob("service.db*"):
            file.rename(tmp_path / file.name.replace("service", "moved"))
        (worker,) = until(lambda: children(process))
        os.kill(worker, signal.SIGKILL)
        assert process.wait(120) == 1  # no worker starts, so nobody is let in
    assert any(row["event"] == "a worker cannot start" and "gone" in row["why"] for row in rows(log))


def test_detection_runs_without_torch(detector, tmp_path, monkeypatch):
    """As in the container, whose image has none."""
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "torch.py").write_text("raise ModuleNotFoundError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'missing'}:{os.environ.get('PYTHONPATH', '')}")
    with served(detector, tmp_path) as (url, _, _):
        found = httpx.post(f"{url}/v1/detect", json={"text": marked_text()}, timeout=60).json()
        assert found["results"][0]["verdict"] == "marked"
        assert httpx.get(f"{url}/v1/whoami").json()["generate"] is None
