"""What one service is told: addresses, folders, limits.

Plain values, so that worker processes get them as JSON.

Boundary: names of files only. Keys and detectors are opened from them by `tenants`, in each process.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark.errors import ConfigError

__all__ = ["Settings", "default_store", "is_loopback"]

_KIB, _MIB = 1 << 10, 1 << 20


def default_store() -> str:
    """The store that commands use unless told otherwise: ``$DEWMARK_STORE``, else a file of the user."""
    explicit = os.environ.get("DEWMARK_STORE")
    if explicit:
        return explicit
    base = os.environ.get("XDG_STATE_HOME")
    folder = Path(base).expanduser() if base else Path.home() / ".local" / "state"
    return f"sqlite:///{folder / 'dewmark' / 'service.db'}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Settings:
    """One service's settings. ``detectors`` and ``keys`` are (tenant id, path) pairs."""

    detectors: tuple[tuple[str, str], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    scheme: str | None = None
    scheme_settings: tuple[str, ...] = ()
    vocabulary: str | None = None
    """The host whose vocabulary the keys are used with; its weights are not loaded."""
    host_model: str | None = None
    """The host that writes; without it the service only detects."""
    device: str = "auto"
    dtype: str = "auto"

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    store: str = dataclasses.field(default="", repr=False)  # the URL may hold a password
    without_tokens: bool = False
    """Serve beyond loopback although nobody needs a token."""
    names: tuple[str, ...] = ()
    """Host names under which an open service may be asked, beside those of loopback."""
    log_queries: bool = False

    fpr: float = 0.01
    text_bytes: int = 1_000_000
    texts: int = 64
    body_bytes: int = 8 * _MIB
    extract_bytes: int = 8 * _MIB
    audit_bytes: int = 64 * _MIB
    audit_texts: int = 20_000
    open_jobs: int = 4
    """Audits that one token may have waiting or running."""
    all_jobs: int = 64
    scored_bytes: int = 64 * _KIB
    """Bytes of a text, from its beginning, that are scored: what the longest request may cost."""
    located_bytes: int = 32 * _KIB
    """The same where passages are searched, which takes longer."""
    waiting: int = 256
    """Texts that may wait in one process before it answers 503."""
    batch: int = 32
    threads: int = 1
    """Detections that run at the same time in one process."""
    new_tokens: int = 1024
    writing: int = 32
    """Completions that may wait in one process before it answers 503."""
    writing_batch: int = 8
    grace: int = 30
    """Seconds that requests in work have to finish when the service stops."""
    lease: float = 10.0
    """Seconds without a sign of life after which another worker takes up a job."""

    def __post_init__(self) -> None:
        if not self.detectors and not self.keys:
            raise ConfigError("nothing to detect with: give --detector DIR, --key FILE or --keys DIR")
        if not 0.0 < self.fpr < 1.0:
            raise ConfigError(f"--fpr must lie in (0, 1), got {self.fpr:g}")
        for name in ("workers", "threads", "batch", "waiting", "scored_bytes", "writing", "writing_batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)

    def to_json(self) -> str:
        """For a worker process. It holds the store's URL: never print it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What `to_json` wrote."""
        return cls(**{name: _tuples(value) for name, value in json.loads(text).items()})


def _tuples(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
