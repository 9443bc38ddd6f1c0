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
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from dewmark import hosts
from dewmark.arguments import checked
from dewmark.config import cache_dir
from dewmark.errors import ConfigError
from dewmark.passages import Version, judge
from dewmark.registry import SCHEMES
from dewmark.scheme import BoundScheme, Scheme
from dewmark.text.languages import LanguagePolicy
from dewmark.types import Detection, Identification
from dewmark.verdict import DEFAULT_FPR
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


__all__ = ["DEFAULT_HOST", "OpenKeys", "identify", "load_scheme"]

DEFAULT_HOST = "smollm2-135m"


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


@functools.partial(checked, options=load_scheme)
def identify(
    texts: Sequence[str],
    keys: Sequence[Key],
    *,
    prompts: Sequence[str | None] | None = None,
    fpr: float = DEFAULT_FPR,
    test: str | None = None,
    **options: Unpack[Opening],
) -> list[Identification]:
    """Say for each text which of several keys (models, tenants) marked it, if any.

    The verdict is corrected for the number of keys (`dewmark.verdict`). ``options`` are those of
    `load_scheme`.
    """
    opened = OpenKeys(keys, **options)
    rows = opened.score(texts, prompts=prompts, fpr=fpr, test=test)
    starts = [None] * len(texts) if prompts is None else prompts
    found = [
        judge([Version(*each)], opened.bound, fpr=fpr, explain=False)
        for each in zip(texts, starts, rows, strict=True)
    ]
    return [
        Identification(tuple(row), each.index, each.judged) for row, each in zip(rows, found, strict=True)
    ]


@checked
class OpenKeys:
    """One scheme with its host and reader, opened once for several keys."""

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

    def score(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = DEFAULT_FPR,
        test: str | None = None,
    ) -> list[list[Detection]]:
        """The results of each text as a whole under every key, each for itself; each text is read once."""
        workspace = dataclasses.replace(self._workspace, expectations=self._reader)
        rows = self._scheme.detect_keys(
            self._keys, texts, self._host, workspace, prompts=prompts, fpr=fpr, test=test
        )
        policy = LanguagePolicy(known=self._scheme.languages, every=self._scheme.language_free)
        return [
            [language.applied(detection) for detection in row]
            for language, row in zip(policy.read(texts), rows, strict=True)
        ]

    def bound(self, number: int) -> BoundScheme:
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
