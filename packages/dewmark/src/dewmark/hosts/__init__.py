"""Hosts: the language models that write.

A name is looked up in `dewmark.registry.HOSTS`; any other is a model for transformers. Importing this package
loads neither torch nor transformers; loading a host does.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from dewmark.arguments import checked
from dewmark.extras import require
from dewmark.models.packaged import PACKAGED
from dewmark.registry import HOSTS

if TYPE_CHECKING:
    from dewmark.hosts.base import ChatFormat, Host
    from dewmark.workspace import HostInfo, Progress

__all__ = ["chat_format", "host_info", "load_host"]


@checked
def load_host(
    name: str, *, device: str = "auto", dtype: str = "auto", progress: Progress | None = None
) -> Host:
    """Load a host: a registered name, a local folder or .gguf file, or a hub id (``owner/model``)."""
    if _is_published(name):
        host: Host = HOSTS[name](name, device=device, dtype=dtype, progress=progress)
        return host
    check_libraries()
    from dewmark.hosts.transformers import model

    return model.load_host(name, device=device, dtype=dtype, progress=progress)


def host_info(name: str, *, progress: Progress | None = None) -> HostInfo:
    """Describe a host for schemes, without loading the weights of a model for transformers."""
    if _is_published(name):
        return load_host(name, progress=progress).info
    check_libraries()
    from dewmark.hosts.transformers import description

    return description.host_info(name, progress=progress)


def chat_format(name: str, *, progress: Progress | None = None) -> ChatFormat:
    """A host's chat format, without loading the weights of a model for transformers.

    Raises `ConfigError` for a host without a chat template, which only continues text.
    """
    if _is_published(name):
        return load_host(name, progress=progress).chat
    check_libraries()
    from dewmark.hosts.transformers import description

    return description.chat_format(name, progress=progress)


def check_libraries() -> None:
    """Raise `MissingExtraError` before anything is fetched, if the libraries for models are not installed."""
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            require(module, extra="host")


def _is_published(name: str) -> bool:
    """Whether another package registered the host."""
    return name in HOSTS and name not in PACKAGED
