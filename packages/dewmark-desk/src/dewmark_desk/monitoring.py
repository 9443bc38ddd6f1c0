"""Logs and metrics, which never contain a text, a key or a token's secret.

Logs are JSON lines on stderr with request ids. An exception is logged as its type and the code locations it
passed through, without its message, which may quote a request. Lines of one kind are limited in number, so
that an attack does not fill the disk. Metrics are counts and times for Prometheus;
worker processes keep them in shared files (the supervisor sets ``PROMETHEUS_MULTIPROC_DIR``), so that any
worker can report for all.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_BURST, _LINES_PER_SECOND = 1000.0, 100.0  # of one kind; more requests than that are counted in metrics
_KINDS = 1000


class JsonLines(logging.Formatter):
    """Formats a log record as JSON, with only the fields below and the record's ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        own = record.name.startswith("dewmark")
        row: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": os.getpid(),
            # a library's message is logged as its template, because its values may come from a request
            "event": record.getMessage() if own else f"{record.name}: {record.msg}"[:200],
            **getattr(record, "fields", {}),
        }
        if suppressed := getattr(record, "suppressed", 0):
            row["suppressed"] = suppressed
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            row["error"] = type(error).__name__
            row["places"] = [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)[-8:]
            ]
        return json.dumps(row, ensure_ascii=True)


class LimitedRepeats(logging.Filter):
    """Lets ``burst`` records of one kind through, and then ``per_second``; the next one counts the missing.

    Records are of one kind if they have the same logger and message template.
    """

    def __init__(
        self, *, burst: float, per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._kinds: dict[tuple[str, str], tuple[float, float, int]] = {}  # when, records left, suppressed
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
        kind = (record.name, str(record.msg)[:80])
        with self._lock:
            now = self._clock()
            before, left, suppressed = self._kinds.get(kind, (now, self._burst, 0))
            left = min(self._burst, left + (now - before) * self._per_second)
            if len(self._kinds) >= _KINDS and kind not in self._kinds:
                self._kinds.clear()
            if left < 1.0:
                self._kinds[kind] = (now, left, suppressed + 1)
                return False
            self._kinds[kind] = (now, left - 1.0, 0)
        record.suppressed = suppressed
        return True


def set_up_logging() -> None:
    """Log the service and uvicorn to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    handler.addFilter(LimitedRepeats(burst=_BURST, per_second=_LINES_PER_SECOND))
    for name in ("dewmark_desk", "uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").disabled = True  # it logs whole URLs; see `middleware`


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        self.requests = Counter(
            "dewmark_requests", "Answered requests.", ["method", "route", "status"], registry=own
        )
        name, about = "dewmark_request_seconds", "Seconds until the end of the response."
        self.seconds = Histogram(name, about, ["route"], buckets=_SECONDS, registry=own)
        self.texts = Counter("dewmark_texts", "Scored texts.", ["endpoint", "verdict"], registry=own)
        about = "Generated texts: marked, or why they are not (greedy, no_room, opted_out, short)."
        self.generated = Counter("dewmark_generated_texts", about, ["mark"], registry=own)
        self.written = Counter("dewmark_written_tokens", "Generated tokens.", registry=own)
        self.waiting = Gauge(
            "dewmark_waiting", "Texts waiting for a thread.", multiprocess_mode="livesum", registry=own
        )
        name, about = "dewmark_kernel_fallbacks", "Times that torch replaced kernels that do not work."
        self.fallbacks = Gauge(name, about, multiprocess_mode="livesum", registry=own)

    def render(self) -> bytes:
        """All metrics in Prometheus's text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        shared = CollectorRegistry()
        MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
        return generate_latest(shared)
