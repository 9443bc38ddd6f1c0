"""When to ask a server again: a steady rate, pauses it asks for, and growing ones of our own.

Boundary: seconds only; what is sent is `dewmark.hosts.endpoint`'s business.
"""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["Pace", "backoff", "retry_after"]

_LONGEST_BACKOFF = 60.0


class Pace:
    """Lets at most ``per_minute`` requests of all threads start, evenly spread; 0 is no limit."""

    def __init__(self, per_minute: float) -> None:
        self._gap = 60.0 / per_minute if per_minute > 0 else 0.0
        self._next = 0.0  # monotonic seconds before which nothing may start
        self._lock = threading.Lock()

    def wait(self, stop: threading.Event) -> bool:
        """Wait for this thread's turn; False if ``stop`` was set meanwhile."""
        while not stop.is_set():
            with self._lock:
                now = time.monotonic()
                left = self._next - now
                if left <= 0:
                    self._next = now + self._gap
                    return True
            stop.wait(left)  # then look again: the server may have asked for a longer pause
        return False

    def hold(self, seconds: float) -> None:
        """Let nobody start for so long."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


def backoff(attempt: int, *, first: float) -> float:
    """first · 2^attempt seconds, at most a minute, times a random number in [0.5, 1.5).

    Clients that failed together must not come back together.
    """
    return float(min(_LONGEST_BACKOFF, first * 2.0**attempt) * random.uniform(0.5, 1.5))


def retry_after(header: str | None) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or as a date; None if it says nothing."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
