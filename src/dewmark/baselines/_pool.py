"""A pool of outputs: for each an embedding, by which it is found again, and its own key, encrypted.

An entry is one record of fixed size: an id of 16 bytes, a nonce, the key sealed by AES-256-GCM with the id as
associated data, the unit vector in float32, and a CRC-32 of all that.

Boundary: bytes and vectors, in memory; `_pool_disk` keeps them in a folder, and what is done with a key the
scheme knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from dewmark.arrays import F32
from dewmark.errors import ArtifactError

__all__ = ["Places", "Pool", "Records", "checksum", "first_of", "most_alike"]

Places = NDArray[np.int64]
Records = NDArray[Any]

_KEY, _ID, _NONCE, _TAG, _CRC = 32, 16, 12, 16, 4
_ROWS_AT_ONCE = 1 << 15


class Pool:
    """A pool in memory. ``secret`` (32 bytes) seals the keys; ``dim`` is the width of the vectors."""

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
        """Register outputs with their keys and unit vectors (n, dim); those that are there already stay."""
        rows = [self._record(*each) for each in zip(keys, texts, vectors, strict=True)]
        with self._lock, self._writing():
            present = self._known_ids()
            new = {ident: row for row in rows if (ident := row["id"].tobytes()) not in present}
            if new:
                self._append(np.array(list(new.values()), dtype=self.dtype))

    def nearest(self, vectors: F32, count: int) -> list[list[bytes]]:
        """For each unit row (n, dim) the distinct keys of the ``count`` entries most like it, best first."""
        records = self.records
        found = self._search(records, vectors, min(count, len(records)))
        return [list(dict.fromkeys(self._opened(records, place) for place in row)) for row in found.tolist()]

    def take(self, data: bytes) -> None:
        """Fill an empty pool with the records of another one."""
        if len(data) % self.dtype.itemsize:
            raise ArtifactError("the stored pool is for vectors of another width; export the detector again")
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

    def _opened(self, records: Records, place: int) -> bytes:
        """The key of an entry."""
        row = records[place]
        try:
            return self._cipher.decrypt(row["nonce"].tobytes(), row["sealed"].tobytes(), row["id"].tobytes())
        except InvalidTag:
            raise ArtifactError(
                f"entry {place} of the pool cannot be opened: it was sealed under another key, or changed"
            ) from None

    def _known_ids(self) -> set[bytes]:
        records = self.records
        self._ids.update(ident.tobytes() for ident in records["id"][self._identified :])
        self._identified = len(records)
        return self._ids

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Held while entries are added."""
        yield

    def _append(self, rows: Records) -> None:
        self._records = np.concatenate((self._records, rows))

    def _search(self, records: Records, vectors: F32, count: int) -> Places:
        """Where the ``count`` entries most like each row are: (n, count)."""
        return most_alike(records["vector"], vectors, count)[1]


def checksum(record: bytes) -> int:
    """The CRC-32 of a record without its last field."""
    return zlib.crc32(record[:-_CRC])


def most_alike(table: F32, vectors: F32, count: int) -> tuple[F32, Places]:
    """The largest products of rows (n, dim) with a table's rows, and which these are: both (n, ≤ count)."""
    best = np.zeros((len(vectors), 0), dtype=np.float32)
    where = np.zeros((len(vectors), 0), dtype=np.int64)
    for start in range(0, len(table) if count else 0, _ROWS_AT_ONCE):
        products = vectors @ np.ascontiguousarray(table[start : start + _ROWS_AT_ONCE]).T
        places = np.broadcast_to(np.arange(start, start + products.shape[1]), products.shape)
        best, where = first_of((best, products), (where, places), count)
    return best, where


def first_of(products: tuple[F32, F32], places: tuple[Places, Places], count: int) -> tuple[F32, Places]:
    """The ``count`` largest products of each row and their places, largest first, from two lists of both."""
    both, where = np.concatenate(products, axis=1), np.concatenate(places, axis=1)
    order = np.argsort(-both, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(both, order, axis=1), np.take_along_axis(where, order, axis=1)
