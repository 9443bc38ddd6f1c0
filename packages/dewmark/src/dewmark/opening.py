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
from dewmark.scheme import BoundScheme, Scheme
from dewmark.text.languages import LanguagePolicy
from dewmark.types import Detection, Identification, Looks
from dewmark.verdict import DEFAULT_FPR, decide
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


__all__ = ["DEFAULT_HOST", "identified", "identify", "load_scheme"]

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


@checked
def identify(
    texts: Sequence[str],
    keys: Sequence[Key],
    *,
    host: object = None,
    tokenizer: object = None,
    scheme: str = "dew",
    settings: Mapping[str, Any] | None = None,
    prompts: Sequence[str | None] | None = None,
    fpr: float = DEFAULT_FPR,
    test: str | None = None,
    reader: Reads = None,
    progress: Progress | None = None,
) -> list[Identification]:
    """Say for each text which of several keys (models, tenants) marked it, if any.

    The verdict is corrected for the number of keys (`dewmark.verdict`). Each text is read once, however many
    keys there are.
    """
    if not keys:
        raise ConfigError("no key to compare with: give at least one")
    chosen = chosen_scheme(scheme, settings, keys)
    expectations = _reader_of(chosen, reader, host, tokenizer, progress)
    info, workspace = _surroundings(chosen, host, tokenizer, progress)
    workspace = dataclasses.replace(workspace, expectations=expectations)
    rows = chosen.detect_keys(keys, texts, info, workspace, prompts=prompts, fpr=fpr, test=test)
    policy = LanguagePolicy(known=chosen.languages, every=chosen.language_free)
    return [
        identified([language.applied(detection) for detection in row], fpr=fpr)
        for language, row in zip(policy.read(texts), rows, strict=True)
    ]


def identified(detections: Sequence[Detection], *, fpr: float) -> Identification:
    """One text's results under several keys, corrected for their number."""
    found = decide(detections, fpr=fpr, looks=Looks(keys=len(detections)))
    return Identification(tuple(detections), found.index, found.applied(detections[found.index]))


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
