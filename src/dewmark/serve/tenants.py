"""The tenants of a service: one detector per key, selected by the tenant's id.

A tenant is an exported detector folder, whose tables are memory-mapped and so shared by all processes, or a
key file bound to a host's vocabulary. Requests name ids only; key material never crosses the wire.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dewmark import config
from dewmark.core.keys import Key
from dewmark.detector import Detector
from dewmark.errors import ConfigError
from dewmark.scheme import BoundScheme
from dewmark.serve.settings import Settings
from dewmark.watermark import Watermark, load_scheme
from dewmark.workspace import Progress

__all__ = ["Tenant", "open_tenants", "open_watermark", "tenant_paths"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Tenant:
    """One key's detector."""

    id: str
    bound: BoundScheme

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
        if equals and _ID.fullmatch(name):
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


def open_tenants(
    settings: Settings, *, verify: bool = True, progress: Progress | None = None
) -> dict[str, Tenant]:
    """Open all detectors and keys; a key that already has a detector is skipped."""
    tenants: dict[str, Tenant] = {}
    owners: dict[str, str] = {}  # by fingerprint
    for id_, folder in settings.detectors:
        _add(tenants, owners, id_, Detector.load(folder, verify=verify, progress=progress).scheme)
    for id_, file in settings.keys:
        key = Key.load(file)
        if key.fingerprint not in owners:
            _add(tenants, owners, id_, _bind(key, settings, progress))
    return tenants


def open_watermark(
    settings: Settings, tenants: Mapping[str, Tenant], *, progress: Progress | None = None
) -> Watermark:
    """The host with the first key's mark, configured like that key's detector if there is one."""
    if settings.host_model is None or not settings.keys:
        raise ConfigError("marking needs --host-model MODEL and --key FILE: a detector cannot mark")
    key = Key.load(settings.keys[0][1])
    scheme = settings.scheme
    values: Mapping[str, object] = config.parse_settings(settings.scheme_settings)
    same = next((t.bound for t in tenants.values() if t.bound.fingerprint == key.fingerprint), None)
    if same is not None:
        scheme, values = same.scheme.name, same.scheme.to_dict()
    watermark = Watermark(
        settings.host_model,
        key=key,
        scheme=scheme or "dew",
        settings=values,
        device=settings.device,
        dtype=settings.dtype,
        progress=progress,
    )
    if same is not None and not same.scheme.host_free:
        theirs, ours = same.host.tokenizer.identity, watermark.scheme.host.tokenizer.identity
        if theirs != ours:
            raise ConfigError(
                f"the detector of key {key.fingerprint} is for {same.host.name}, whose tokenizer differs "
                f"from that of {settings.host_model}: export a detector for that model"
            )
    return watermark


def _bind(key: Key, settings: Settings, progress: Progress | None) -> BoundScheme:
    return load_scheme(
        settings.scheme or "dew",
        key=key,
        settings=config.parse_settings(settings.scheme_settings),
        host=settings.vocabulary or settings.host_model,
        progress=progress,
    )


def _add(tenants: dict[str, Tenant], owners: dict[str, str], id_: str, bound: BoundScheme) -> None:
    if not _ID.fullmatch(id_):
        raise ConfigError(f"a tenant id may contain letters, digits and ._- only, got {id_!r}: use ID=DIR")
    if id_ in tenants:
        raise ConfigError(f"two tenants have the id {id_!r}: rename one with ID=DIR")
    if bound.fingerprint in owners:
        raise ConfigError(
            f"tenants {owners[bound.fingerprint]} and {id_} have the same key {bound.fingerprint}: "
            "give it once"
        )
    owners[bound.fingerprint] = id_
    tenants[id_] = Tenant(id_, bound)
