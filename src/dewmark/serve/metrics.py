"""What Prometheus may know: counts and times, no texts, no tokens.

With several worker processes the numbers lie in files that all of them share (the supervisor names their
folder in ``PROMETHEUS_MULTIPROC_DIR``), so any worker answers for all.
"""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

__all__ = ["CONTENT_TYPE", "Metrics"]

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
