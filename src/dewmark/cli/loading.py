"""From a command's options to the library's objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dewmark import config
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.cli.terminal import Progress
    from dewmark.core.keys import Key
    from dewmark.decoding import Decoding
    from dewmark.hosts.base import Host
    from dewmark.scheme import BoundScheme
    from dewmark.types import Generation
    from dewmark.watermark import Watermark
    from dewmark.workspace import HostInfo

__all__ = ["NONE", "Writer", "load_key", "load_scheme", "load_unmarked", "load_watermark"]

NONE = "none"  # the scheme that leaves no mark and needs no key


class Writer:
    """A host that writes, marked by ``scheme`` or not; ``open_host`` loads the weights when needed."""

    def __init__(self, scheme: BoundScheme | None, info: HostInfo, open_host: Callable[[], Host]) -> None:
        self.scheme = scheme
        self.info = info
        self._open_host = open_host

    @classmethod
    def marked(cls, watermark: Watermark) -> Writer:
        """A host that writes marked text."""
        return cls(watermark.scheme, watermark.scheme.host, lambda: watermark.host)

    @functools.cached_property
    def host(self) -> Host:
        """The host with its weights, loaded on first use."""
        return self._open_host()

    def config_hash(self, decoding: Decoding) -> str:
        """The ``config_hash`` that the host will give its texts, known before it is loaded."""
        from dewmark.hosts.base import generation_hash

        return generation_hash(decoding, self.scheme, self.info)

    def write(
        self, prompts: Sequence[str], *, seeds: Sequence[int], decoding: Decoding, batch_size: int = 8
    ) -> list[Generation]:
        """Continue prompts."""
        return self.host.generate(
            prompts, scheme=self.scheme, seeds=seeds, batch_size=batch_size, decoding=decoding
        )


def load_key(file: Path | None) -> Key:
    """Read the key that the options name."""
    from dewmark.core.keys import Key

    if file is None:
        raise ConfigError("no key given: add --key FILE (make one with: dewmark key new --out FILE)")
    return Key.load(file)


def load_watermark(
    key: Key,
    *,
    host: str | None,
    scheme: str | None,
    settings: Sequence[str] | None,
    progress: Progress,
    device: str = "auto",
    dtype: str = "auto",
) -> Watermark:
    """The facade for the options given; what was not given keeps the library's default."""
    from dewmark.watermark import DEFAULT_HOST, Watermark

    return Watermark(
        host or DEFAULT_HOST,
        key=key,
        scheme=scheme or "dew",
        settings=config.parse_settings(settings or ()),
        device=device,
        dtype=dtype,
        progress=progress,
    )


def load_scheme(
    key: Key,
    *,
    host: str | None,
    scheme: str | None,
    settings: Sequence[str] | None,
    progress: Progress,
) -> BoundScheme:
    """The scheme for the options given, to detect with: a host is looked up only if the scheme needs it."""
    from dewmark import watermark

    chosen = config.parse_settings(settings or ())
    return watermark.load_scheme(scheme or "dew", key=key, settings=chosen, host=host, progress=progress)


def load_unmarked(
    host: str | None, *, progress: Progress, device: str = "auto", dtype: str = "auto"
) -> Writer:
    """A host that writes without a mark."""
    from dewmark.hosts import host_info, load_host
    from dewmark.watermark import DEFAULT_HOST

    name = host or DEFAULT_HOST
    opened = functools.partial(load_host, name, device=device, dtype=dtype, progress=progress)
    return Writer(None, host_info(name, progress=progress), opened)
