"""Structured logs: one JSON object a line on stderr, with request ids, and never a text or a key.

An exception is logged by its kind and the places in the code that it went through, without its message: a
message may quote what somebody sent.

What Prometheus may know: counts and times, no texts, no tokens.

With several worker processes the numbers lie in files that all of them share (the supervisor names their
folder in ``PROMETHEUS_MULTIPROC_DIR``), so any worker answers for all.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["CONTENT_TYPE", "JsonLines", "Metrics", "log_request", "set_up"]

_log = logging.getLogger("dewmark.serve")


class JsonLines(logging.Formatter):
    """Log records as JSON; only the fields below and a record's ``fields`` are written."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        own = record.name.startswith("dewmark")
        row: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": os.getpid(),
            # a library's message is kept as its template: the values in it may be anybody's
            "event": record.getMessage() if own else f"{record.name}: {record.msg}"[:200],
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            row["error"] = type(error).__name__
            row["places"] = [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)[-8:]
            ]
        return json.dumps(row, ensure_ascii=True)


def set_up(*, level: str = "info") -> None:
    """Send the logs of the service and of uvicorn to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("dewmark.serve", "uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").disabled = True  # it writes whole addresses; see `log_request`


def log_request(
    *, request_id: str, method: str, route: str, status: int, seconds: float, received: int, token: str
) -> None:
    """One line for one answered request."""
    fields = {
        "request_id": request_id,
        "method": method,
        "route": route,
        "status": status,
        "ms": round(1000.0 * seconds, 1),
        "bytes_in": received,
        "token": token,
    }
    _log.info("request", extra={"fields": fields})


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The numbers of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own = self._registry
        self.requests = Counter(
            "dewmark_requests", "Answered requests.", ["method", "route", "status"], registry=own
        )
        self.seconds = Histogram(
            "dewmark_request_seconds",
            "Time to the end of the answer.",
            ["route"],
            buckets=_SECONDS,
            registry=own,
        )
        self.texts = Counter("dewmark_texts", "Texts judged.", ["endpoint", "verdict"], registry=own)
        self.written = Counter("dewmark_written_tokens", "Tokens written.", registry=own)
        self.waiting = Gauge(
            "dewmark_waiting", "Texts that wait for a thread.", multiprocess_mode="livesum", registry=own
        )

    def render(self) -> bytes:
        """All numbers as Prometheus reads them."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        shared = CollectorRegistry()
        MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
        return generate_latest(shared)
