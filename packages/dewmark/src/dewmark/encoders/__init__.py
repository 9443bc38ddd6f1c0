"""Encoders: vectors of texts, and the vectors of words, tokens and contexts derived from them.

`load_encoder` finds an encoder by name. To add one, subclass `dewmark.encoders.base.Encoder` and register the
class under a name in `dewmark.registry.ENCODERS`, or publish it as an entry point of ``dewmark.encoders``.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from dewmark.arguments import checked
from dewmark.errors import MissingExtraError, ModelError
from dewmark.registry import ENCODERS, unknown_name
from dewmark.workspace import Progress, silent

if TYPE_CHECKING:
    from dewmark.encoders.base import Encoder

__all__ = ["load_encoder"]

loaded: dict[tuple[str, str], Encoder] = {}
_lock = threading.Lock()


@checked
def load_encoder(name: str, *, progress: Progress | None = None, device: str = "auto") -> Encoder:
    """Load an encoder: a registered name such as ``use-m3``, or with dewmark-lab a local folder or a hub id.

    Weights are loaded at the first `Encoder.encode`; only a hub id that is not in the hub's cache is
    downloaded at once. The same name and device give the same object throughout a process. ``device`` is a
    torch device, or ``auto``: CUDA if available, else the CPU.
    """
    with _lock:
        if (name, device) not in loaded:
            loaded[name, device] = create(name, progress=progress or silent, device=device)
        return loaded[name, device]


def create(name: str, *, progress: Progress, device: str) -> Encoder:
    # 1. registered names
    encoder: Encoder
    family, colon, argument = name.partition(":")
    if colon and f"{family}:" in ENCODERS:
        encoder = ENCODERS[f"{family}:"](argument, progress=progress, device=device)
        return encoder
    if name in ENCODERS:
        encoder = ENCODERS[name](progress=progress, device=device)
        return encoder
    # 2. folders and hub ids
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _unnamed("folder:", str(folder.resolve()), progress=progress, device=device)
    if name.startswith(("/", ".", "~")):
        raise ModelError(
            f"model folder {name} does not exist: give an existing folder, a hub id, or one of "
            f"{', '.join(ENCODERS)}"
        )
    if "/" in name:
        return _unnamed("hub:", name, progress=progress, device=device)
    raise unknown_name("encoder", name, ENCODERS, companion="dewmark-lab")


def _unnamed(kind: str, place: str, *, progress: Progress, device: str) -> Encoder:
    if kind not in ENCODERS:
        raise MissingExtraError(
            f"{place} needs a package: pip install 'dewmark-lab[encoders]', or use {', '.join(ENCODERS)}"
        )
    encoder: Encoder = ENCODERS[kind](place, progress=progress, device=device)
    return encoder
