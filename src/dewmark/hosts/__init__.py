"""Hosts: the language models that write.

Importing this package loads neither torch nor transformers; loading a host does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dewmark.hosts.transformers.model import TransformersHost
    from dewmark.workspace import HostInfo, Progress

__all__ = ["host_info", "info_from_model", "load_host", "wrap_model"]


def load_host(
    name: str, *, device: str = "auto", dtype: str = "auto", progress: Progress | None = None
) -> TransformersHost:
    """Load a host: a packaged name, a local folder or .gguf file, or a hub id (``owner/model``)."""
    from dewmark.hosts.transformers import model as transformers

    return transformers.load_host(name, device=device, dtype=dtype, progress=progress)


def host_info(name: str, *, progress: Progress | None = None) -> HostInfo:
    """Describe a host by its tokenizer and configuration; its weights are not loaded."""
    from dewmark.hosts.transformers import files as info

    return info.host_info(name, progress=progress)


def info_from_model(model: Any, tokenizer: Any) -> HostInfo:  # noqa: ANN401 - transformers is not imported here
    """Describe a transformers model in memory and its tokenizer."""
    from dewmark.hosts.transformers import model as transformers

    return transformers.info_from_model(model, tokenizer)


def wrap_model(model: Any, tokenizer: Any, info: HostInfo) -> TransformersHost:  # noqa: ANN401 - as above
    """A transformers model in memory as a host."""
    from dewmark.hosts.transformers import model as transformers

    return transformers.TransformersHost(model, tokenizer, info=info)
