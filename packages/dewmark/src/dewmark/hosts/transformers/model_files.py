"""Where a host's files come from: a packaged model, a local folder, a local GGUF file, or a hub id.

`resolve` turns a name into a `ModelSource` that transformers can open. A GGUF file is converted once into a
transformers folder under ``<cache>/hosts/``, with the SHA-256 of every file in ``manifest.json``; a damaged
folder is converted again. Boundary: files only; no model is kept, and neither torch nor transformers is
imported unless a file has to be converted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dewmark.config import cache_dir
from dewmark.errors import ConfigError, ModelError
from dewmark.hosts.transformers.gguf import convert_gguf
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.models.packaged import PACKAGED, PackagedModel, fetch
from dewmark.registry import HOSTS, unknown_name
from dewmark.storage import atomic_folder, read_manifest, sha256_file, write_manifest
from dewmark.workspace import Progress, silent

__all__ = ["ModelSource", "load_error", "resolve"]

_TOKENIZER = "dewmark_tokenizer"
_FORMAT = 3
_HUB_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A host's files: ``location`` is a folder or a hub id, ``identity`` changes when the files do."""

    name: str
    location: str
    identity: str
    revision: str | None = None
    offline: bool = True

    @property
    def tokenizer_folder(self) -> Path | None:
        """Where a converted model keeps its tokenizer in dewmark's own format."""
        folder = Path(self.location) / _TOKENIZER
        return folder if folder.is_dir() else None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for any ``from_pretrained``, besides the location."""
        return {"revision": self.revision, "local_files_only": self.offline} if self.revision else {}


def resolve(name: str, *, weights: bool = True, progress: Progress | None = None) -> ModelSource:
    """Find a host's files, downloading and converting them where needed.

    ``weights=False`` is for callers that read only the configuration and the tokenizer: it skips the checksum
    of converted weights.
    """
    report = progress or silent
    if name in PACKAGED:
        return _packaged(PACKAGED[name], weights=weights, progress=report)
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(name, path)
    if path.is_file():
        return _gguf_file(name, path, weights=weights, progress=report)
    if path.suffix == ".gguf" or name.startswith(("/", "./", "../", "~")):
        raise ModelError(f"there is no model at {name}: check the path")
    if name.count("/") == 1:
        return _hub(name)
    raise unknown_name("host", name, HOSTS)


def load_error(name: str, error: Exception) -> ModelError:
    """A one-line error for whatever transformers raised while loading a host."""
    return ModelError(
        f"cannot load the host {name}: {_first_line(error)}; check the files, or choose another host"
    )


def _packaged(model: PackagedModel, *, weights: bool, progress: Progress) -> ModelSource:
    if model.role != "host":
        raise ConfigError(f"{model.name} is a packaged {model.role}: choose a host, such as smollm2-135m")
    target = cache_dir() / "hosts" / f"{model.name}-{model.sha256[:12]}"
    _convert_once(
        target,
        gguf=lambda: fetch(model.name, progress=progress) / model.entry,
        generation=model.generation,
        weights=weights,
        progress=progress,
    )
    return ModelSource(name=model.name, location=str(target), identity=f"{model.name}@{model.sha256[:12]}")


def _gguf_file(name: str, path: Path, *, weights: bool, progress: Progress) -> ModelSource:
    if path.suffix != ".gguf":
        raise ModelError(f"{name} is neither a model folder nor a .gguf file: give one of these")
    stat = path.stat()
    # path, size and time instead of contents: reading gigabytes would delay every start
    stamp = _digest(str(path.resolve()), stat.st_size, stat.st_mtime_ns)
    target = cache_dir() / "hosts" / f"{path.stem}-{stamp}"
    gguf_sha256 = _convert_once(target, gguf=lambda: path, weights=weights, progress=progress)
    return ModelSource(name=name, location=str(target), identity=f"{path.name}@{gguf_sha256[:12]}")


def _folder(name: str, path: Path) -> ModelSource:
    if not (path / "config.json").is_file():
        raise ModelError(f"{name} has no config.json: give a folder that a transformers model was saved in")
    parts: list[object] = [
        sha256_file(path / small)
        for small in ("config.json", "tokenizer.json", "tokenizer.model")
        if (path / small).is_file()
    ]
    for file in sorted(path.iterdir()):
        if file.suffix in {".safetensors", ".bin", ".pt"}:
            stat = file.stat()
            parts += [file.name, stat.st_size, stat.st_mtime_ns]
    identity = f"{path.resolve().name}@{_digest(*parts)}"
    return ModelSource(name=name, location=str(path), identity=identity)


def _hub(name: str) -> ModelSource:
    """Pin a hub id to its current commit, or to the cached one if the hub cannot be reached.

    This sends one short request first: transformers on its own retries an unreachable hub for 20 seconds.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        commit = HfApi().model_info(name, timeout=_HUB_TIMEOUT).sha
        if commit:
            return ModelSource(
                name=name, location=name, identity=f"{name}@{commit[:12]}", revision=commit, offline=False
            )
        reason = "it has no commit"
    except (HfHubHTTPError, HFValidationError) as error:
        if getattr(getattr(error, "response", None), "status_code", 500) < 500:
            raise ModelError(
                f"the hub does not serve {name!r} ({_first_line(error)}): check the name, log in with "
                "'hf auth login' if the model is gated, or give a local folder"
            ) from error
        reason = _first_line(error)
    except Exception as error:  # noqa: BLE001 - the HTTP library's own errors: no network, a proxy, a timeout
        reason = _first_line(error)
    cached = try_to_load_from_cache(name, "config.json")
    if not isinstance(cached, str):
        raise ModelError(
            f"cannot reach the hub for {name!r} ({reason}): check the network, give a local folder or .gguf "
            "file, or use the packaged host smollm2-135m"
        )
    commit = Path(cached).parent.name
    return ModelSource(name=name, location=name, identity=f"{name}@{commit[:12]}", revision=commit)


def _convert_once(
    target: Path,
    *,
    gguf: Callable[[], Path],
    generation: Mapping[str, Any] = MappingProxyType({}),
    weights: bool,
    progress: Progress,
) -> str:
    """Convert the GGUF file into ``target`` unless it is there intact; returns the file's SHA-256."""
    manifest = read_manifest(target, "files", contents=weights)
    if manifest.get("format") == _FORMAT and "gguf_sha256" in manifest:
        return str(manifest["gguf_sha256"])
    file = gguf()
    gguf_sha256 = sha256_file(file)
    with atomic_folder(target) as folder:
        convert_gguf(file, folder, progress, generation=generation)
        HFTokenizer.load(folder).save(folder / _TOKENIZER)  # loads without transformers
        write_manifest(folder, "files", format=_FORMAT, gguf_sha256=gguf_sha256)
    return gguf_sha256


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
