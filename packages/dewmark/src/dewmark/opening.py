"""Schemes bound to keys, by names: what `Watermark`, `Detector` and the commands open.

Everything takes its parameters alike: ``key`` (or ``keys``), ``host``, ``scheme``, ``settings``, ``reader``.
``host`` is a host's name, a `HostInfo`, a `Host`, or a transformers model in memory with its ``tokenizer``;
without it, a scheme that detects without a host is bound to none, and any other to the default host.
``scheme`` is a name and ``settings`` are the scheme's parameters. ``reader`` is a language model that reads
the texts to be detected: a name (``host`` is the host), a `Host`, or an object that reads. Hosts are imported
only if one is asked for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from dewmark import hosts
from dewmark.arguments import checked
from dewmark.config import cache_dir
from dewmark.errors import ConfigError
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme, Reading, Scheme
from dewmark.types import Detection
from dewmark.workspace import Expectations, HostInfo, Progress, Workspace, no_host, silent

if TYPE_CHECKING:
    from dewmark.core.keys import Key
    from dewmark.hosts.base import Host

    Reads = str | Host | Expectations | None

    class Opening(TypedDict, total=False):
        """What `load_scheme` takes besides the key."""

        host: object
        tokenizer: object
        scheme: str
        settings: Mapping[str, Any] | None
        reader: Reads
        progress: Progress | None


__all__ = ["DEFAULT_HOST", "Keys", "load_scheme"]

DEFAULT_HOST = "smollm2-135m"
_BOUND_KEPT = 1024  # 64 MB of dew's matrices


@checked
def load_scheme(
    key: Key,
    *,
    host: object = None,
    tokenizer: object = None,
    scheme: str = "dew",
    settings: Mapping[str, Any] | None = None,
    reader: Reads = None,
    progress: Progress | None = None,
) -> BoundScheme:
    """Bind a scheme to a key and a host."""
    chosen = chosen_scheme(scheme, settings, [key])
    expectations = _reader_of(chosen, reader, host, tokenizer, progress)
    bound: BoundScheme = chosen.bind(key, *_surroundings(chosen, host, tokenizer, progress))
    return bound if expectations is None else bound.reading_with(expectations)


@checked
class Keys:
    """Several keys of one scheme, with its host and reader opened once: `dewmark.detect` takes them."""

    def __init__(
        self,
        keys: Sequence[Key],
        *,
        host: object = None,
        tokenizer: object = None,
        scheme: str = "dew",
        settings: Mapping[str, Any] | None = None,
        reader: Reads = None,
        progress: Progress | None = None,
    ) -> None:
        self._keys = list(keys)
        if not self._keys:
            raise ConfigError("no key to compare with: give at least one")
        self._scheme = chosen_scheme(scheme, settings, self._keys)
        self._reader = _reader_of(self._scheme, reader, host, tokenizer, progress)
        self._host, self._workspace = _surroundings(self._scheme, host, tokenizer, progress)
        # drawing a key's numbers takes longer than looking for them in a text
        self.bound = functools.lru_cache(maxsize=_BOUND_KEPT)(self._bound)

    @property
    def fingerprints(self) -> list[str]:
        """The fingerprint of each key."""
        return [key.fingerprint for key in self._keys]

    def whole(self, readings: Sequence[Reading], *, test: str, fpr: float) -> list[list[Detection]]:
        """For each text the result of the whole under each key."""
        workspace = dataclasses.replace(self._workspace, expectations=self._reader)
        together = self._scheme.whole_under(self._keys, readings, fpr=fpr, workspace=workspace)
        if together is not None:
            return together
        bounds = self._scheme.bind_keys(self._keys, self._host, self._workspace)
        read = (each if self._reader is None else each.reading_with(self._reader) for each in bounds)
        columns = [bound.whole(readings, test=test, fpr=fpr) for bound in read]
        return [list(row) for row in zip(*columns, strict=True)]

    def _bound(self, number: int) -> BoundScheme:
        """The scheme under the key with this number."""
        bound = self._scheme.bind(self._keys[number], self._host, self._workspace)
        return bound if self._reader is None else bound.reading_with(self._reader)


def open_reader(
    reader: Reads, *, host: str | None = None, progress: Progress | None = None
) -> Expectations | None:
    """The reader that is meant, or None; ``host`` is what the name ``host`` stands for."""
    if reader is None:
        return None
    from dewmark.hosts import expectations

    return expectations.open_reader(reader, host=host, progress=progress)


def chosen_scheme(scheme: str, settings: Mapping[str, Any] | None, keys: Sequence[Key]) -> Scheme:
    """A scheme by its name, with settings; `ConfigError` if it cannot read one of the keys."""
    chosen: Scheme = SCHEMES[scheme]().with_settings(dict(settings or {}))
    for key in keys:
        chosen.check_key(key)
    return chosen


def _surroundings(
    scheme: Scheme, host: object, tokenizer: object, progress: Progress | None
) -> tuple[HostInfo, Workspace]:
    """The host and workspace to bind a scheme to."""
    if host is None:
        host = no_host() if scheme.host_free else DEFAULT_HOST
    load = functools.partial(hosts.load_host, progress=progress)
    info, open_own = find_host(host, tokenizer, load=load, progress=progress)
    return info, open_workspace(open_own, load=load, progress=progress)


def _reader_of(
    scheme: Scheme, reader: Reads, host: object, tokenizer: object, progress: Progress | None
) -> Expectations | None:
    """The reader for a scheme; an error before anything else is opened if it has no use for one."""
    if reader == "host" and host is not None and not isinstance(host, str):
        reader = find_host(host, tokenizer, load=hosts.load_host, progress=progress)[1]()
    own = host if isinstance(host, str) else DEFAULT_HOST
    expectations = open_reader(reader, host=own, progress=progress)
    scheme.check_reader(expectations)
    return expectations


def find_host(
    host: object, tokenizer: object, *, load: Callable[[str], Host], progress: Progress | None
) -> tuple[HostInfo, Callable[[], Host]]:
    """A host's description, and a function that gives the host itself."""
    if isinstance(host, HostInfo):
        return host, functools.partial(load, host.name)
    from dewmark.hosts.base import Host

    if isinstance(host, Host):
        return host.info, lambda: host
    if isinstance(host, str):
        info = hosts.host_info(host, progress=progress)
        return info, functools.partial(load, info.name)
    if tokenizer is None:
        raise ConfigError(f"a {type(host).__name__} in memory needs its tokenizer: give that too")
    from dewmark.hosts.transformers.model import TransformersHost

    own = TransformersHost(host, tokenizer)  # type: ignore[arg-type]  # whatever the caller gives
    return own.info, lambda: own


def open_workspace(
    open_own: Callable[[], Host], *, load: Callable[[str], Host], progress: Progress | None
) -> Workspace:
    """What a scheme may use while it is bound: the cache, and hosts by name (None is its own)."""

    @functools.cache
    def open_host(name: str | None) -> Host:
        return open_own() if name is None else load(name)

    return Workspace(
        cache=cache_dir(),
        progress=progress or silent,
        find_host=functools.partial(hosts.host_info, progress=progress),
        open_host=open_host,
    )
