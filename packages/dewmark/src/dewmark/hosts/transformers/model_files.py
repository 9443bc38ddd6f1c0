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
from typing import TYPE_CHECKING, Any

from dewmark.config import cache_dir
from dewmark.errors import ConfigError, DewmarkError, ModelError, StorageError
from dewmark.hosts.transformers.tokenizer import HFTokenizer
from dewmark.models.hub import quiet_libraries
from dewmark.models.packaged import PACKAGED, fetch
from dewmark.registry import HOSTS, unknown_name
from dewmark.storage import atomic_folder, read_manifest, sha256_file, write_manifest
from dewmark.workspace import Progress, silent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ModelSource", "load_error", "resolve"]

_TOKENIZER = "dewmark_tokenizer"
_FORMAT = 3
_HUB_TIMEOUT = 10.0  # seconds
# Control tokens that GGUF files list as text: Gemma 3 writes an image placeholder with a probability of 12%
# in the middle of a sentence.
_CONTROLS = frozenset({"[multimodal]", "<start_of_image>", "<end_of_image>"})


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
        model = PACKAGED[name]
        if model.role != "host":
            raise ConfigError(f"{name} is a packaged {model.role}: choose a host, such as smollm2-135m")
        stamp = model.sha256[:12]
        target = cache_dir() / "hosts" / f"{name}-{stamp}"
        _convert_once(
            target,
            gguf=lambda: fetch(name, progress=report) / model.entry,
            generation=model.generation,
            weights=weights,
            progress=report,
        )
        return ModelSource(name=name, location=str(target), identity=f"{name}@{stamp}")
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(name, path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{name} is neither a model folder nor a .gguf file: give one of these")
        stat = path.stat()
        # path, size and time instead of contents: reading gigabytes would delay every start
        stamp = _digest(str(path.resolve()), stat.st_size, stat.st_mtime_ns)
        target = cache_dir() / "hosts" / f"{path.stem}-{stamp}"
        gguf_sha256 = _convert_once(target, gguf=lambda: path, weights=weights, progress=report)
        return ModelSource(name=name, location=str(target), identity=f"{path.name}@{gguf_sha256[:12]}")
    if path.suffix == ".gguf" or name.startswith(("/", "./", "../", "~")):
        raise ModelError(f"there is no model at {name}: check the path")
    if name.count("/") == 1:
        return _hub(name)
    raise unknown_name("host", name, HOSTS)


def load_error(name: str, error: Exception) -> ModelError:
    """A one-line error for whatever transformers raised while loading a host."""
    return ModelError(f"cannot load the host {name}: {_first_line(error)}; check the files, or take another")


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


def convert_gguf(
    gguf: Path, folder: Path, progress: Progress, *, generation: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write the model and the tokenizer of ``gguf`` into ``folder``, in bfloat16.

    ``generation`` are the fields of the model's published generation_config, for which GGUF has no place.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    progress(f"converting {gguf.name}", 0, 1)
    try:
        with quiet_libraries():
            tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
            model = AutoModelForCausalLM.from_pretrained(
                str(gguf.parent),
                gguf_file=gguf.name,
                dtype=torch.bfloat16,
                quantization_config=GgufConfig(dequantize=True),
            )
            flag_controls(tokenizer)
            from gguf import GGUFReader
            from tokenizers import pre_tokenizers

            # a GGUF file names its model's pre-tokenizer, and llama.cpp obeys; transformers ignores the name
            field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
            if field is not None and field.contents() == "smollm":  # which splits numbers into digits
                digits = pre_tokenizers.Digits(individual_digits=True)
                rest = tokenizer.backend_tokenizer.pre_tokenizer
                tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
            drop_padding(tokenizer)
            model.generation_config.update(**generation)  # type: ignore[no-untyped-call]
            tokenizer.save_pretrained(str(folder))
            model.save_pretrained(str(folder))
    except DewmarkError:
        raise
    except Exception as error:  # the readers and writers below raise many classes
        if "No space left" in str(error):
            raise StorageError(f"the disk is full at {folder.parent}: free some and try again") from error
        raise ModelError(
            f"cannot convert {gguf}: {_first_line(error)}; it may be damaged or of a kind that transformers "
            "cannot read"
        ) from error
    progress(f"converting {gguf.name}", 1, 1)


def flag_controls(tokenizer: PreTrainedTokenizerBase) -> None:
    """Mark the control tokens among a tokenizer's added tokens as special."""
    from transformers import AddedToken

    present = sorted(_CONTROLS & {str(token) for token in tokenizer.added_tokens_decoder.values()})
    if present:
        tokenizer.backend_tokenizer.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in present]
        )


def drop_padding(tokenizer: PreTrainedTokenizerBase) -> None:
    """Drop the names, such as ``[PAD151665]``, that llama.cpp gives to ids beyond the tokenizer's.

    They are rows of the embedding matrix that no text uses; as tokens they could be written.
    """
    from tokenizers import Tokenizer as Backend

    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = whole["model"]["vocab"]
    if not isinstance(vocabulary, dict) or all(name != f"[PAD{i}]" for name, i in vocabulary.items()):
        return
    whole["model"]["vocab"] = {name: i for name, i in vocabulary.items() if name != f"[PAD{i}]"}
    tokenizer._tokenizer = Backend.from_str(json.dumps(whole))


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
