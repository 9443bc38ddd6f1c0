"""The configuration of a service: addresses, files and limits.

All values are plain, so that worker processes can get them as JSON. Boundary: file names only; each process
opens keys and detectors itself (`tenants`).
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dewmark.errors import ConfigError

ALL_TENANTS = "*"
DEMONSTRATION = "demonstration"
"""The id of the key of the example, which belongs to nobody."""
_TENANT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_KIB, _MIB = 1 << 10, 1 << 20


def default_store() -> str:
    """The default store: ``$DEWMARK_STORE``, else an SQLite file in the user's state folder.

    ``$DEWMARK_STORE_FILE`` names a file with the URL, as containers get secrets.
    """
    explicit = os.environ.get("DEWMARK_STORE")
    if explicit:
        return explicit
    if secret := os.environ.get("DEWMARK_STORE_FILE"):
        try:
            return Path(secret).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"cannot read DEWMARK_STORE_FILE {secret}") from None
    base = os.environ.get("XDG_STATE_HOME")
    folder = Path(base).expanduser() if base else Path.home() / ".local" / "state"
    return f"sqlite:///{folder / 'dewmark' / 'service.db'}"


def check_tenant_id(id_: str) -> None:
    """Raise `ConfigError` unless a tenant may have this id."""
    if not _TENANT_ID.fullmatch(id_):
        raise ConfigError(f"a tenant id may contain letters, digits and ._- only, got {id_!r}")
    if id_ == DEMONSTRATION:
        raise ConfigError(f"{id_!r} is the id of the example's own key: name the tenant otherwise")


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Settings:
    """The settings of one service. ``detectors`` and ``keys`` are (tenant id, path) pairs."""

    detectors: tuple[tuple[str, str], ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    keyring: str | None = None
    """The folder of ``--keys``, whose keyring.toml may say which marks its keys make."""
    scheme: str | None = None
    scheme_settings: tuple[str, ...] = ()
    vocabulary: str | None = None
    """The host whose vocabulary the keys are bound to; its weights are not loaded."""
    host_model: str | None = None
    """The host that generates marked text; without it the service only detects."""
    reader: str | None = None
    """The language model that reads the texts; None for that of each detector, ``none`` for no reader."""
    device: str = "auto"
    dtype: str = "auto"

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    store: str = dataclasses.field(default="", repr=False)  # the URL may contain a password
    without_tokens: bool = False
    """Serve without API tokens even beyond loopback."""
    require_tokens: bool = False
    """Never serve without API tokens, even on loopback and before the first one is created."""
    store_id: str = ""
    """The identity of the store at the start; a worker that finds another store does not serve."""
    host_names: tuple[str, ...] = ()
    """Host names that a service without tokens answers to, besides loopback names."""
    log_queries: bool = False
    log_days: float = 90.0
    """How long the query log keeps a row."""
    zero_retention: bool = False
    """Store nothing about requests: no query log, no jobs, no token ids in the logs."""
    job_days: float = 7.0
    """How long an ended job and its results are kept."""

    signers: tuple[str, ...] = ()
    """Files of signing keys: the first signs reports, documents of the others are still recognised."""
    provider: str | None = None
    """Who runs this service; it signs reports and the signpost."""
    contact: str | None = None
    public_url: str | None = None
    """The service's own address, as others reach it."""
    dossier_url: str | None = None

    fpr: float = 0.01
    max_fpr: float = 0.05
    """The loosest level that a request may ask for, unless ``fpr`` is looser."""
    public_fpr: float = 1e-4
    """The level of verdicts for public tokens: times the texts in a token's budget, it bounds how many texts
    somebody can find that are called marked by chance."""
    text_bytes: int = 512 * _KIB
    """The longest text; a longer one is refused, since a part of it could have another verdict."""
    texts: int = 64
    """The most texts per request."""
    body_bytes: int = 8 * _MIB
    extract_bytes: int = 8 * _MIB
    audit_bytes: int = 16 * _MIB
    audit_texts: int = 20_000
    jobs_per_token: int = 4
    """The most audits that one token may have waiting or running."""
    max_jobs: int = 64
    """The most audits that may be waiting or running in all."""
    request_bytes: int = 512 * _KIB
    """The most bytes of texts and prompts that one request may have scored; larger collections are jobs."""
    request_seconds: float = 20.0
    """The most work for which others wait: a turn of a text, or all that a reader reads (`admission`)."""
    text_seconds: float = 60.0
    """The most work of one text; above `request_seconds` it is done in a thread of its own."""
    read_tokens: int = 4096
    """How much of a text the reader reads, from its start."""
    held_bytes: int = 64 * _MIB
    """The most bytes of bodies that one process holds at a time."""
    connections: int = 512
    """The most connections of one process."""
    header_seconds: float = 10.0
    """How long a client may take to send a request's headers."""
    write_seconds: float = 30.0
    """How long a client may take to read what it is sent."""
    body_seconds: float = 15.0
    """How long a body may take, besides a second per 16 KiB."""
    waiting_seconds: float = 20.0
    """The most work, as estimated, that may wait in one process before it answers 503."""
    threads: int = 1
    """Detection threads per process."""
    max_new_tokens: int = 1024
    generation_bytes: int = 64 * _KIB
    """The longest prompt or conversation to be continued."""
    greedy: str = "unmarked"
    """What becomes of texts at temperature 0, which leave no choice to mark: ``unmarked`` or ``refuse``."""
    policy: str | None = None
    """Which parts of texts are left unmarked: ``default``, or a JSON file (`dewmark.policy`)."""
    policy_log: str | None = None
    """The file that says of every text which parts were marked, and why others were not."""
    certificate: tuple[str, str] | None = None
    """Certificate chain and private key (PEM) that sign a manifest into every text."""
    roots: str | None = None
    """Certificates (PEM) under which signers of manifests are trusted."""
    public_page: str | None = None
    """The address of the public detector's page."""
    opt_out: bool = False
    """Whether a request may ask for an unmarked text."""
    max_waiting_completions: int = 32
    """The most completions that may wait in one process before it answers 503."""
    generation_batch_size: int = 8
    grace_seconds: int = 30
    """How long running requests may take to finish when the service stops."""
    silent_seconds: float = 30.0
    """How long a worker may not answer before it is replaced."""
    lease_seconds: float = 10.0
    """How long a worker may be silent before another worker takes over its job."""

    def __post_init__(self) -> None:
        if not self.detectors and not self.keys:
            raise ConfigError("nothing to detect with: give --detector DIR, --key FILE or --keys DIR")
        if self.require_tokens and self.without_tokens:
            raise ConfigError("--require-tokens and --without-tokens contradict each other: give one")
        if self.greedy not in ("unmarked", "refuse"):
            raise ConfigError(f"--greedy must be unmarked or refuse, got {self.greedy!r}")
        levels = (("--fpr", self.fpr), ("--max-fpr", self.max_fpr), ("--public-fpr", self.public_fpr))
        for option, level in levels:
            if not 0.0 < level < 1.0:
                raise ConfigError(f"{option} must lie in (0, 1), got {level:g}")
        if self.policy_log is not None and self.zero_retention:
            raise ConfigError("--zero-retention stores nothing about requests: leave out --policy-log")
        if self.zero_retention and self.log_queries:
            raise ConfigError("--zero-retention stores nothing about requests: leave out --log-queries")
        for name in ("log_days", "job_days"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"--{name.replace('_', '-')} must be above 0, got {getattr(self, name):g}")
        for option, url in (("--public-url", self.public_url), ("--public-page", self.public_page)):
            if url is not None and not url.startswith(("https://", "http://")):
                raise ConfigError(f"{option} must begin with https:// or http://, got {url!r}")
        for name in ("workers", "threads", "text_bytes", "max_waiting_completions", "generation_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def may_be_open(self) -> bool:
        """Whether the service may answer without tokens until the first one is created."""
        return not self.require_tokens and (self.without_tokens or is_loopback(self.host))

    def to_json(self) -> str:
        """JSON for a worker process. It contains the store's URL: never print it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The inverse of `to_json`."""
        return cls(**{name: _tuples(value) for name, value in json.loads(text).items()})


def _tuples(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
