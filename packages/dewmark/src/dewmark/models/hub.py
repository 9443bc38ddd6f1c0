"""Models in local folders and on the Hugging Face hub: which version it is, and loading it quietly."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from dewmark.extras import require

__all__ = ["quiet_libraries"]

# The files that determine a model's vectors; exports for other runtimes and model cards do not.
_HASHED = {".bin", ".json", ".model", ".safetensors", ".txt"}
_NOT_HASHED = {"onnx", "openvino"}
_WHOLE = 1 << 22
_SAMPLES, _SAMPLE = 64, 1 << 14


def folder_hash(folder: Path) -> str:
    """16 hex digits that identical copies of a model folder share and a retrained model does not.

    Small files are hashed in full. For large ones the size, both ends and evenly spaced samples are hashed:
    training moves every weight, so there is no need to read a gigabyte each time.
    """
    digest = hashlib.sha256()
    files = (file for file in folder.rglob("*") if file.suffix in _HASHED and file.is_file())
    for file in sorted(files, key=lambda file: file.relative_to(folder).as_posix()):
        relative = file.relative_to(folder)
        if any(part in _NOT_HASHED or part.startswith(".") for part in relative.parts):
            continue
        size = file.stat().st_size
        digest.update(f"{relative.as_posix()}\0{size}\0".encode())
        with file.open("rb") as stream:
            if size <= _WHOLE:
                digest.update(stream.read())
                continue
            for i in range(_SAMPLES):
                stream.seek((size - _SAMPLE) * i // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the libraries' progress bars and all log lines below an error, then restore both."""
    hub = require("huggingface_hub.utils", extra="encoders")
    bars = require("transformers.utils.logging", extra="encoders")
    with contextlib.ExitStack() as restored:
        for logger in map(logging.getLogger, ("sentence_transformers", "transformers", "huggingface_hub")):
            restored.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if not hub.are_progress_bars_disabled():
            restored.callback(hub.enable_progress_bars)
        if bars.is_progress_bar_enabled():
            restored.callback(bars.enable_progress_bar)
        bars.disable_progress_bar()
        hub.disable_progress_bars()
        yield
