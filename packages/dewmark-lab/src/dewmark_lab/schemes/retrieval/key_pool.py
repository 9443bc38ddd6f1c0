"""A pool of outputs: each has an embedding, by which it is found again, and its own key, encrypted.

An entry is one record of fixed size: an id of 16 bytes, a nonce, the key sealed with AES-256-GCM with the id
as associated data, the unit vector in float32, and a CRC-32 of all that. `Pool` keeps the entries in memory.

`DiskPool` keeps them in a folder of mode 0700, which many processes may read while one writes:

- ``pool.json``: format, encoder, dimension of the vectors, fingerprint of the master key;
- ``entries.bin``: the records, appended under a lock and flushed to disk, never changed.

A killed writer leaves a partial record, or records that fail their CRC, at the end of the file: readers skip
them and the next writer removes them. Readers take no lock, and compare all entries one by one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from dewmark.arrays import F32, I64
from dewmark.errors import ArtifactError, ConfigError
from dewmark.storage import atomic_write

Places = I64
Records = NDArray[Any]

_FORMAT = 1
_KEY, _ID, _NONCE, _TAG, _CRC = 32, 16, 12, 16, 4
_ROWS_AT_ONCE = 1 << 15
_RECORDS_AT_ONCE = 4096


class Pool:
    """A pool in memory. ``secret`` (32 bytes) encrypts the keys; ``dim`` is the dimension of the vectors."""

    def __init__(self, *, secret: bytes, dim: int) -> None:
        self.dim = dim
        self.dtype = np.dtype(
            [
                ("id", f"V{_ID}"),
                ("nonce", f"V{_NONCE}"),
                ("sealed", f"V{_KEY + _TAG}"),
                ("vector", "<f4", (dim,)),
                ("crc", "<u4"),
            ]
        )
        self._secret = secret
        self._cipher = AESGCM(secret)
        self._lock = threading.RLock()
        self._ids: set[bytes] = set()
        self._identified = 0
        self._records: Records = np.zeros(0, dtype=self.dtype)

    @property
    def records(self) -> Records:
        """All entries, (n,)."""
        return self._records

    def __len__(self) -> int:
        return len(self.records)

    def add(self, keys: Sequence[bytes], texts: Sequence[str], vectors: F32) -> None:
        """Register outputs with their keys and unit vectors (n, dim); known outputs are skipped."""
        rows = [self._record(*each) for each in zip(keys, texts, vectors, strict=True)]
        with self._lock, self._writing():
            present = self._known_ids()
            new = {ident: row for row in rows if (ident := row["id"].tobytes()) not in present}
            if new:
                self._append(np.array(list(new.values()), dtype=self.dtype))

    def nearest(self, vectors: F32, count: int) -> list[list[bytes]]:
        """For each unit row (n, dim), the distinct keys of the ``count`` most similar entries, best first."""
        records = self.records
        found = self._search(records, vectors, min(count, len(records)))
        return [
            list(dict.fromkeys(self._decrypted_key(records, place) for place in row))
            for row in found.tolist()
        ]

    def take(self, data: bytes) -> None:
        """Fill an empty pool with another pool's records."""
        if len(data) % self.dtype.itemsize:
            raise ArtifactError("the stored pool has vectors of another dimension; export the detector again")
        self._records = np.frombuffer(data, dtype=self.dtype)

    def _record(self, key: bytes, text: str, vector: F32) -> Records:
        output = key + text.encode("utf-8", "backslashreplace")
        ident = hashlib.blake2b(output, key=self._secret, person=b"entry", digest_size=_ID).digest()
        nonce = secrets.token_bytes(_NONCE)
        row = np.zeros((), dtype=self.dtype)
        row["id"], row["nonce"] = np.void(ident), np.void(nonce)
        row["sealed"] = np.void(self._cipher.encrypt(nonce, key, ident))
        row["vector"] = vector
        row["crc"] = checksum(row.tobytes())
        return row

    def _decrypted_key(self, records: Records, place: int) -> bytes:
        """The key of an entry."""
        row = records[place]
        try:
            return self._cipher.decrypt(row["nonce"].tobytes(), row["sealed"].tobytes(), row["id"].tobytes())
        except InvalidTag:
            raise ArtifactError(
                f"entry {place} of the pool cannot be decrypted: it was changed, or another key was used"
            ) from None

    def _known_ids(self) -> set[bytes]:
        records = self.records
        self._ids.update(ident.tobytes() for ident in records["id"][self._identified :])
        self._identified = len(records)
        return self._ids

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Held while entries are being added."""
        yield

    def _append(self, rows: Records) -> None:
        self._records = np.concatenate((self._records, rows))

    def _search(self, records: Records, vectors: F32, count: int) -> Places:
        """The indices of the ``count`` entries most similar to each row: (n, count)."""
        return most_similar(records["vector"], vectors, count)[1]


def checksum(record: bytes) -> int:
    """The CRC-32 of a record without its last field."""
    return zlib.crc32(record[:-_CRC])


def most_similar(table: F32, vectors: F32, count: int) -> tuple[F32, Places]:
    """The largest products of rows (n, dim) with a table's rows, and their places: both (n, ≤ count)."""
    best = np.zeros((len(vectors), 0), dtype=np.float32)
    where = np.zeros((len(vectors), 0), dtype=np.int64)
    for start in range(0, len(table) if count else 0, _ROWS_AT_ONCE):
        products = vectors @ np.ascontiguousarray(table[start : start + _ROWS_AT_ONCE]).T
        places = np.broadcast_to(np.arange(start, start + products.shape[1]), products.shape)
        best, where = largest_of((best, products), (where, places), count)
    return best, where


def largest_of(products: tuple[F32, F32], places: tuple[Places, Places], count: int) -> tuple[F32, Places]:
    """Merge two lists: the ``count`` largest products of each row and their places, largest first."""
    both, where = np.concatenate(products, axis=1), np.concatenate(places, axis=1)
    order = np.argsort(-both, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(both, order, axis=1), np.take_along_axis(where, order, axis=1)


class DiskPool(Pool):
    """A pool in a folder, which is created when the first entry is added.

    With ``must_exist``, searching a folder without a pool is an error; otherwise such a pool is empty.
    """

    def __init__(
        self, folder: Path, *, secret: bytes, dim: int, encoder: str, fingerprint: str, must_exist: bool
    ) -> None:
        super().__init__(secret=secret, dim=dim)
        self.folder = folder
        self._entries = folder / "entries.bin"
        self._about = {"format": _FORMAT, "encoder": encoder, "dim": dim, "key_fingerprint": fingerprint}
        self._must_exist = must_exist
        self._checked = False

    @property
    def records(self) -> Records:
        """All intact entries, (n,), including those that other processes added since the last call."""
        with self._lock:
            if self._exists() and self._entries.exists():
                count = self._intact(self._entries.stat().st_size // self.dtype.itemsize)
                if count > len(self._records):
                    self._records = np.memmap(self._entries, dtype=self.dtype, mode="r", shape=(count,))
            return self._records

    def _intact(self, present: int) -> int:
        """How many of the records present are intact: all but some at the end."""
        count = checked = len(self._records)
        with self._entries.open("rb") as stream:  # not mapped: a writer may truncate a broken end meanwhile
            stream.seek(checked * self.dtype.itemsize)
            while checked < present:
                data = stream.read(self.dtype.itemsize * min(_RECORDS_AT_ONCE, present - checked))
                rows = np.frombuffer(
                    data[: len(data) // self.dtype.itemsize * self.dtype.itemsize], self.dtype
                )
                if not len(rows):
                    break
                for place, row in enumerate(rows, start=checked):
                    if row["crc"] != checksum(row.tobytes()):
                        continue
                    if place != count:
                        raise ArtifactError(
                            f"entry {count} of {self._entries} is damaged: restore the file from a backup"
                        )
                    count += 1
                checked += len(rows)
        return count

    def _exists(self) -> bool:
        """Whether there is a pool; raises if it was made with another key or encoder."""
        if self._checked:
            return True
        path = self.folder / "pool.json"
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            if self._must_exist:
                raise ArtifactError(
                    f"{self.folder} contains no pool: nothing was generated with it, or the path is wrong"
                ) from None
            return False
        except ValueError:
            raise ArtifactError(f"{path} is corrupt: restore it from a backup") from None
        for name, mine in self._about.items():
            if about.get(name) != mine:
                raise ConfigError(
                    f"the pool {self.folder} was made with {name} {about.get(name)}, not {mine}: "
                    "choose another folder"
                )
        self._checked = True
        return True

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self._must_exist = False
        if not self._exists():
            with atomic_write(self.folder / "pool.json", private=True) as stream:
                self.folder.chmod(0o700)
                stream.write((json.dumps(self._about, indent=1) + "\n").encode())
            self._exists()
        handle = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _append(self, rows: Records) -> None:
        handle = os.open(self._entries, os.O_CREAT | os.O_RDWR, 0o600)
        with os.fdopen(handle, "r+b") as stream:
            stream.truncate(len(self.records) * self.dtype.itemsize)  # what a killed writer left behind
            stream.seek(0, os.SEEK_END)
            stream.write(rows.tobytes())
            stream.flush()
            os.fsync(stream.fileno())
