"""The tenants of a service: one detector per key, selected by the tenant's id.

A tenant is an exported detector folder, whose tables are memory-mapped and so shared by all processes, or a
key file bound to a host's vocabulary. Requests name ids only; key material never crosses the wire.

A tenant may have several keys, one for each epoch. The key with the plain id (``acme``) is the current one:
it detects and, if the service generates text, writes. Keys with a label (``acme@2025``) are retired: they
only detect. To rotate, rename the current key and put a new one in its place.

How often a marked text of some length is found is measured by `dewmark power --out DETECTOR`, which leaves
``power.json`` in the detector's folder. Without it, the package's measurement of the default scheme is used,
if the tenant has those settings; its origin goes with every number, because another host may mark more
weakly.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from dewmark import config
from dewmark.batch.keyring import Kind, read_kinds
from dewmark.core.keys import Key
from dewmark.detector import Detector
from dewmark.errors import ArtifactError, ConfigError
from dewmark.hosts.base import Host
from dewmark.hosts.expectations import open_reader
from dewmark.opening import load_scheme
from dewmark.scheme import BoundScheme, reader_name
from dewmark.watermark import Watermark
from dewmark.workspace import Expectations, Progress
from dewmark_audit.strength import Strength
from dewmark_audit.texts import package_file
from dewmark_desk.settings import DEMONSTRATION, Settings, check_tenant_id


@dataclass(frozen=True, slots=True)
class MeasuredPower:
    """The strength of the mark in texts of ``host``; ``own`` if measured for this very detector.

    ``language`` is that of the measured texts, None if the measurement does not say.
    """

    strength: Strength
    host: str
    own: bool
    language: str | None = None

    def found_in_100(self, effective_length: float, *, level: float) -> dict[str, Any]:
        """The share found by a test of the whole text under one key at this level, as plain JSON values."""
        texts = self.strength.texts
        # a sample of n texts cannot show more than n in n + 1
        share = min(self.strength.found(effective_length, fpr=level), texts / (texts + 1))
        return {
            "found_in_100": min(math.floor(100.0 * share), 99),  # no sample shows that every text is found
            "host": self.host,
            "texts": texts,
            "own": self.own,
            "language": self.language,
        }


def read_power(bound: BoundScheme, folder: Path | None = None) -> MeasuredPower | None:
    """The measurement in a detector's folder, else the package's one if it is of this scheme, else None."""
    if folder is not None and (folder / "power.json").exists():
        return _parsed((folder / "power.json").read_text(encoding="utf-8"), bound, own=True)
    packaged = resources.files("dewmark_desk") / "data" / "power.json"
    return _parsed(packaged.read_text(encoding="utf-8"), bound, own=False)


def _parsed(text: str, bound: BoundScheme, *, own: bool) -> MeasuredPower | None:
    try:
        given = json.loads(text)
        same = given["scheme"] == bound.scheme.name and given["config"] == bound.scheme.to_dict()
        strength, language = Strength(**given["strength"]), given.get("language")
        measured = MeasuredPower(strength, str(given["host"]), own, language and str(language))
    except (ValueError, KeyError, TypeError):
        raise ArtifactError("a detector's power.json is corrupt: renew it by dewmark power --out") from None
    if not same and own:
        raise ArtifactError(
            "a detector's power.json was measured with other settings: measure again with dewmark power --out"
        )
    return measured if same else None


@dataclass(frozen=True)
class Tenant:
    """One key's detector; its id is the tenant's, with the epoch's label if the key is retired."""

    id: str
    bound: BoundScheme
    power: MeasuredPower | None = None
    """How often marked texts are found, if that was measured."""

    @functools.cached_property
    def owner(self) -> str:
        """The tenant that the key belongs to."""
        return self.id.partition("@")[0]

    @property
    def epoch(self) -> str | None:
        """The label of a retired key's epoch; None for the current key."""
        return self.id.partition("@")[2] or None

    @functools.cached_property
    def has_ring(self) -> bool:
        """Whether detection chooses among members, payloads or epochs of the key."""
        return self.bound.n_hypotheses > 1

    @functools.cached_property
    def languages(self) -> tuple[str, ...] | None:
        """The languages that the scheme's encoder knows; None if unknown."""
        known = self.bound.languages.known
        return None if known is None else tuple(sorted(known))


def tenant_paths(given: Sequence[str]) -> list[tuple[str, str]]:
    """(id, folder) pairs from ``--detector`` values: ``DIR``, ``ID=DIR``, or a folder of detectors."""
    found: list[tuple[str, str]] = []
    for value in given:
        name, equals, path = value.partition("=")
        if equals and _is_id(name):
            found.append((name, path))
            continue
        folder = Path(value)
        if not (folder / "detector.json").exists() and folder.is_dir():
            inside = sorted(path.parent for path in folder.glob("*/detector.json"))
            if inside:
                found += [(path.name, str(path)) for path in inside]
                continue
        found.append((folder.resolve().name, value))
    return found


def key_paths(given: Sequence[str], folder: str | Path | None = None) -> list[tuple[str, str]]:
    """(id, file) pairs from ``--key`` values, ``FILE`` or ``ID=FILE``, and a folder of ``*.key`` files."""
    found: list[tuple[str, str]] = []
    for value in given:
        name, equals, path = value.partition("=")
        found.append((name, path) if equals and _is_id(name) else (Path(value).stem, value))
    if folder is not None:
        inside = sorted(Path(folder).glob("*.key"))
        if not inside:
            raise ConfigError(f"{folder} has no key: expected files named *.key")
        found += [(file.stem, str(file)) for file in inside]
    return found


def open_tenants(
    settings: Settings, *, verify: bool = True, progress: Progress | None = None
) -> dict[str, Tenant]:
    """Open all detectors, and the keys that have none; tenants with the same reader share it."""
    host = settings.host_model or settings.vocabulary

    @functools.cache
    def reader(name: str | None) -> Expectations | None:
        placed = {"device": settings.device, "dtype": settings.dtype}
        return open_reader(name, host=host, limit=settings.read_tokens, progress=progress, **placed)

    tenants: dict[str, Tenant] = {}
    owners: dict[str, str] = {}  # by fingerprint
    kinds = {} if settings.keyring is None else read_kinds(settings.keyring)
    for id_, folder in settings.detectors:
        bound = Detector.load(folder, verify=verify, progress=progress).scheme
        bound = bound.reading_with(reader(settings.reader or reader_name(bound)))
        _add(tenants, owners, id_, bound, Path(folder))
    for id_, file in settings.keys:
        key = Key.load(file)
        if key.fingerprint not in owners:
            kind = kinds.get(Path(file))
            bound = _bind(key, settings, kind, progress).reading_with(reader(settings.reader))
            _add(tenants, owners, id_, bound)
    return tenants


def open_demonstration() -> Tenant:
    """The key of the packaged example under the default scheme. It is public, so its mark shows nothing."""
    key = Key(hashlib.sha256(b"dewmark demonstration").digest())
    return Tenant(DEMONSTRATION, load_scheme(key, host=None, settings={}))


@functools.cache
def example_text() -> str:
    """A text with the mark of the demonstration key in its second and third of six paragraphs.

    ``python -m tests.desk.compose_example`` composes it again if the default scheme changes, and a test says
    when that is due.
    """
    packaged = resources.files("dewmark_desk") / "data" / "example.txt"
    return packaged.read_text(encoding="utf-8").strip()


@functools.cache
def unmarked_text() -> str:
    """A paragraph that is older than any mark."""
    return package_file("human.txt").read_text(encoding="utf-8").strip().split("\n\n")[0]


def open_writers(settings: Settings, tenants: Mapping[str, Tenant]) -> tuple[Host, dict[str, BoundScheme]]:
    """The host, and the mark of each tenant that has a current key, configured like that key's detector."""
    if settings.host_model is None or not settings.keys:
        raise ConfigError("marking needs --host-model MODEL and --key FILE: a detector cannot mark")
    by_key = {tenant.bound.fingerprint: tenant for tenant in tenants.values()}
    writers: dict[str, BoundScheme] = {}
    host: Host | None = None
    for _, file in settings.keys:
        key = Key.load(file)
        tenant = by_key[key.fingerprint]
        if tenant.epoch is not None:
            continue
        bound = tenant.bound
        watermark = Watermark(
            key,
            host=host or settings.host_model,
            scheme=bound.scheme.name,
            settings=bound.scheme.to_dict(),
            device=settings.device,
            dtype=settings.dtype,
        )
        host = watermark.host
        if not bound.scheme.host_free:
            theirs, ours = bound.host.tokenizer.identity, watermark.scheme.host.tokenizer.identity
            if theirs != ours:
                raise ConfigError(
                    f"the detector of key {key.fingerprint} is for {bound.host.name}, whose tokenizer "
                    f"differs from that of {settings.host_model}: export a detector for that model"
                )
        writers[tenant.id] = watermark.scheme
    if host is None:
        raise ConfigError("all keys are retired (ID@LABEL): marking needs a current key, --key ID=FILE")
    return host, writers


def _bind(key: Key, settings: Settings, kind: Kind | None, progress: Progress | None) -> BoundScheme:
    if kind is None:
        host = settings.vocabulary or settings.host_model
        kind = Kind(settings.scheme, host, config.parse_settings(settings.scheme_settings))
    return load_scheme(
        key, host=kind.host, scheme=kind.scheme or "dew", settings=kind.settings, progress=progress
    )


def _add(
    tenants: dict[str, Tenant],
    owners: dict[str, str],
    id_: str,
    bound: BoundScheme,
    folder: Path | None = None,
) -> None:
    owner, at, label = id_.partition("@")
    check_tenant_id(owner)
    if at:
        check_tenant_id(label)
    if id_ in tenants:
        raise ConfigError(f"two tenants have the id {id_!r}: rename one with ID=DIR")
    if bound.fingerprint in owners:
        raise ConfigError(
            f"tenants {owners[bound.fingerprint]} and {id_} have the same key {bound.fingerprint}: "
            "give it once"
        )
    owners[bound.fingerprint] = id_
    tenants[id_] = Tenant(id_, bound, read_power(bound, folder))


def _is_id(name: str) -> bool:
    """Whether a name is a tenant's id, with or without an epoch's label."""
    try:
        for part in name.split("@", 1):
            check_tenant_id(part)
    except ConfigError:
        return False
    return True
