"""Files that survive a kill: atomic writes, folders of arrays with checksums, JSONL that resumes.

A *bundle* is a folder of ``.npy`` arrays beside ``bundle.json``, which holds the caller's metadata and the
SHA-256 of every array. It is written to a temporary folder and renamed, so readers see all of it or nothing.
Arrays are opened memory-mapped and read-only, so processes share their pages.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dewmark.errors import ArtifactError, ConfigError, InputError, StorageError

__all__ = [
    "ResumableRows",
    "append_jsonl",
    "atomic_write",
    "load_bundle",
    "read_json",
    "read_jsonl",
    "read_small",
    "save_bundle",
    "sha256_file",
]

Array = NDArray[Any]

_NO_PLACE = (errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
_KINDS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}
_HASHED_AT_ONCE = 1 << 23  # bytes; in many small pieces a thread that hashes would hold up all others


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        # numpy reports a short write without an errno: "1000000 requested and 131056 written"
        short = error.errno is None and "requested and" in str(error)
        if short or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"the disk is full at {path}: free some space and try again") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise StorageError(f"cannot write {path}: permission denied") from error
        if error.errno in _NO_PLACE:
            raise StorageError(f"cannot write {path}: {os.strerror(error.errno)}") from error
        raise


def kind_of(mode: int) -> str:
    """What a file of this mode is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def output_place(path: Path, *, folder: bool = False) -> tuple[Path, int | None]:
    """Where an output goes, after symbolic links, and the mode of the file (or folder) that it replaces.

    `StorageError` if something else is there: a device or a FIFO must not be replaced by a file.
    """
    with _storage_errors(path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            mode = None
        if mode is not None and stat.S_IFMT(mode) != (stat.S_IFDIR if folder else stat.S_IFREG):
            wanted = "a folder" if folder else "a regular file"
            raise StorageError(
                f"cannot write {path}: it is {kind_of(mode)}, not {wanted}; choose another name"
            )
        return Path(os.path.realpath(path)), mode


def read_small(path: str | Path, *, most: int = 1 << 20) -> bytes:
    """A regular file of at most ``most`` bytes; `OSError` for a device, a FIFO or a longer file, unread."""
    path = Path(path)
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind_of(found.st_mode)}, not a regular file", str(path))
    if found.st_size > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 10} KiB", str(path))
    with path.open("rb") as stream:
        return stream.read(most)  # it may have grown


def read_json(path: str | Path, *, most: int = 1 << 20) -> Any:  # noqa: ANN401 - any JSON value
    """The JSON in a small file; `ValueError` if it is none or nested too deep, `OSError` as `read_small`."""
    try:
        return json.loads(read_small(path, most=most))
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


@contextlib.contextmanager
def atomic_write(path: Path, *, private: bool = False, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """Write a file that appears complete or not at all; ``private`` gives it mode 0600.

    A symbolic link stays, and the file behind it is replaced, which keeps its mode.
    """
    with _storage_errors(path):
        mode = None
        if overwrite:
            path, mode = output_place(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(0o600 if private else 0o644 if mode is None else stat.S_IMODE(mode))
            if overwrite:
                temporary.replace(path)
            else:
                try:
                    os.link(temporary, path)  # fails if the path exists, even in a race
                except FileExistsError:
                    raise StorageError(
                        f"{path} exists already and is not overwritten; choose another name"
                    ) from None
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A temporary folder that replaces ``path`` if the block ends without an error."""
    with _storage_errors(path):
        path, _ = output_place(path, folder=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield temporary
            for entry in (temporary, *temporary.rglob("*")):
                mode = 0o700 if private else 0o755
                entry.chmod(mode if entry.is_dir() else mode & 0o666)
            old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
            try:
                # another process may create or remove the same folder at any moment
                with contextlib.suppress(FileNotFoundError):
                    path.replace(old / "replaced")
                try:
                    temporary.replace(path)
                except OSError:
                    if not path.exists():
                        raise
            finally:
                shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(path.stat().st_size, _HASHED_AT_ONCE) or 1))
    with path.open("rb", buffering=0) as stream:
        while size := stream.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()


SMALL_FILE = 1 << 24  # bytes
_MANIFEST = "manifest.json"
verified: set[tuple[Path, int]] = set()  # (folder, its manifest's time) whose large files were hashed


def write_manifest(folder: Path, listed: str, **fields: object) -> None:
    """List all files of a folder with size and SHA-256 in its manifest, under ``listed``."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sums = {
        file.relative_to(folder).as_posix(): {"size": file.stat().st_size, "sha256": sha256_file(file)}
        for file in files
    }
    text = json.dumps({**fields, listed: sums}, indent=1) + "\n"
    (folder / _MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path, listed: str, *, contents: bool = True) -> dict[str, Any]:
    """The manifest of a folder whose files are as it says, else an empty one.

    Sizes and small files are checked at every call, large files once per process, and only with ``contents``.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        known = (folder, (folder / _MANIFEST).stat().st_mtime_ns)
        for name, expected in manifest[listed].items():
            file, size = folder / name, expected["size"]
            hashed = size < SMALL_FILE or (contents and known not in verified)
            if file.stat().st_size != size or (hashed and sha256_file(file) != expected["sha256"]):
                return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    if contents:
        verified.add(known)
    return manifest if manifest[listed] else {}


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its metadata and its arrays, memory-mapped read-only."""

    path: Path
    meta: dict[str, Any]
    arrays: dict[str, Array]


def save_bundle(
    path: Path, *, meta: Mapping[str, Any], arrays: Mapping[str, Array], private: bool = False
) -> None:
    """Write arrays and metadata as one bundle, atomically."""
    with atomic_folder(path, private=private) as folder:
        write_bundle(folder, meta=meta, arrays=arrays)


def write_bundle(folder: Path, *, meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a bundle's files into a folder from `atomic_folder`."""
    sums = {}
    for name, array in arrays.items():
        file = folder / f"{name}.npy"
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)
        sums[name] = sha256_file(file)
    index = {"meta": dict(meta), "sha256": sums}
    (folder / "bundle.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_bundle(path: Path, *, verify: bool = True) -> Bundle:
    """Open a bundle; ``verify`` checks every array against its checksum."""
    try:
        index = json.loads((path / "bundle.json").read_text(encoding="utf-8"))
        sums, meta = dict(index["sha256"]), dict(index["meta"])
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(f"{path} is not a dewmark table: it has no bundle.json") from None
    except (ValueError, KeyError, TypeError):
        raise ArtifactError(f"{path}/bundle.json is corrupt: delete {path} and make it again") from None
    arrays = {}
    for name, expected in sums.items():
        file = path / f"{name}.npy"
        try:
            if verify and sha256_file(file) != expected:
                raise ArtifactError(f"{file} is corrupt (wrong checksum): delete {path} and make it again")
            arrays[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        except (FileNotFoundError, ValueError, EOFError):
            raise ArtifactError(f"{file} is missing or cut short: delete {path} and make it again") from None
    return Bundle(path=path, meta=meta, arrays=arrays)


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each non-empty line of a JSONL file."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    with stream:
        yield from parse_jsonl(stream, name=str(path))


def parse_jsonl(lines: Iterable[bytes], *, name: str, first: int = 1) -> Iterator[tuple[int, dict[str, Any]]]:
    """`read_jsonl` of lines that are read already; ``first`` is the number of the first of them."""
    for number, raw in enumerate(lines, start=first):
        if not raw.strip():
            continue
        try:
            row = json.loads(raw.decode("utf-8-sig"))  # a first line may carry a byte-order mark
        except (ValueError, RecursionError):
            raise InputError(f"{name}, line {number}: not a line of JSON") from None
        if not isinstance(row, dict):
            raise InputError(f"{name}, line {number}: expected a JSON object, got {type(row).__name__}")
        yield number, row


def encode_jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows as lines of JSON."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    # Only lone surrogates have no UTF-8; the backslash form of those is JSON's own escape.
    return lines.encode("utf-8", "backslashreplace")


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]], *, private: bool = False) -> None:
    """Append rows and flush them to the disk; ``private`` creates the file with mode 0600."""
    with _storage_errors(path):
        path, _ = output_place(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600 if private else 0o666)
        with os.fdopen(handle, "ab") as stream:
            stream.write(encode_jsonl(rows))
            stream.flush()
            os.fsync(stream.fileno())


def first_row(path: Path) -> dict[str, Any] | None:
    """The first row of a JSONL file, or None if the file has no complete row."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        line = stream.readline()
    return _parse_row(line) if line.endswith(b"\n") else None


class ResumableRows:
    """A JSONL file that grows batch by batch and can be killed at any byte: it resumes to the same bytes.

    A finished file has ``total`` rows. They are made in order, in batches of ``batch_size``, and a finished
    batch is appended and flushed to the disk. Opening the file cuts off an unfinished batch, so a resumed run
    makes the batches that an uninterrupted run would make.

    ``expected(i)`` returns row i as far as it is known in advance, with ``...`` for each field that is not;
    a file that does not match, because another run wrote it, is rejected and left untouched. Without
    ``expected`` the path must identify the run, and the file may hold more rows than are asked for.
    """

    def __init__(
        self,
        path: Path,
        total: int,
        *,
        batch_size: int,
        expected: Callable[[int], Mapping[str, Any]] | None = None,
        private: bool = False,
    ) -> None:
        self.path, self.total, self.batch_size = path, total, batch_size
        self._expected, self._private = expected, private
        self.done = self._resume()

    def pending(self) -> Iterator[range]:
        """The batches that are still to be made, as ranges of row numbers."""
        for start in range(self.done, self.total, self.batch_size):
            yield range(start, min(start + self.batch_size, self.total))

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the rows of a finished batch."""
        append_jsonl(self.path, rows, private=self._private)
        self.done += len(rows)

    def read(self) -> Iterator[dict[str, Any]]:
        """The finished rows, at most ``total``."""
        if self.done:
            yield from (row for _, row in itertools.islice(read_jsonl(self.path), self.done))

    def _resume(self) -> int:
        """Check the file, cut off an unfinished batch, and return how many rows remain."""
        output_place(self.path)
        done = end = size = 0
        try:
            with self.path.open("rb") as stream:
                for index, line in enumerate(stream):
                    if self._expected is not None:
                        self._check(index, line, self._expected)
                    elif index == self.total:
                        return self.total
                    size += len(line)
                    rows = index + line.endswith(b"\n")
                    if rows == self.total or (rows > index and rows % self.batch_size == 0):
                        done, end = rows, size
            if end < size:
                os.truncate(self.path, end)
        except FileNotFoundError:
            return 0
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"cannot resume {self.path}: {error.strerror}") from error
        return done

    def _check(self, index: int, line: bytes, expected: Callable[[int], Mapping[str, Any]]) -> None:
        where = f"{self.path}, line {index + 1}"
        if index >= self.total:
            raise ConfigError(f"{where} belongs to another run (this one has {self.total} rows): {_RESUME}")
        wanted = expected(index)
        if not line.endswith(b"\n"):  # cut short by a kill: only the fields before the first unknown count
            known = dict(itertools.takewhile(lambda field: field[1] is not ..., wanted.items()))
            head = encode_jsonl([known])[:-2]
            if line[: len(head)] != head[: len(line)]:
                raise ConfigError(f"{where} belongs to another run: {_RESUME}")
            return
        found = _parse_row(line)
        if found is None:
            raise InputError(f"{where} is not a row of this run: {_RESUME}")
        for name in (*wanted, *found):
            value = wanted.get(name)
            if name not in found or name not in wanted:
                has = "no field" if name in wanted else "another field,"
                raise ConfigError(
                    f"{where} belongs to another run or version ({has} {name}): choose another output file"
                )
            if value is not ... and found[name] != (value := json.loads(json.dumps(value))):
                said = f"{name} is {found[name]!r} and not {value!r}"
                said = said if len(said) <= _SHOWN else f"{name} differs"
                raise ConfigError(f"{where} belongs to another run ({said}): {_RESUME}")


_RESUME = "repeat that run's options and inputs, or choose another output file"
_SHOWN = 100  # characters of two differing values that an error message shows


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
