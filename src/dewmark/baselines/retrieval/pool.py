"""A pool of outputs: for each an embedding, by which it is found again, and its own key, encrypted.

An entry is one record of fixed size: an id of 16 bytes, a nonce, the key sealed by AES-256-GCM with the id as
associated data, the unit vector in float32, and a CRC-32 of all that.

Boundary: bytes and vectors, in memory; `_pool_disk` keeps them in a folder, and what is done with a key the
scheme knows.

A pool in a folder of mode 0700, which many processes may read while one writes.

- ``pool.json``: format, encoder, width of the vectors, fingerprint of the master key;
- ``entries.bin``: the records, appended under a lock and flushed to the disk, never changed;
- ``index.faiss``: a FAISS graph over the first entries, where FAISS is installed and they are many.

A write that a kill cut short leaves less than a record, or records that fail their CRC, at the end: readers
leave them out and the next writer removes them. Readers take no lock. Entries that the index lacks, or all
of them where there is none, are compared one by one: the answers are the same, but that the graph may miss
a neighbour.

Boundary: files; what a record is, `_pool` knows.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib
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

from dewmark.arrays import F32
from dewmark.errors import ArtifactError, ConfigError
from dewmark.storage import append_at, atomic_write

__all__ = ["INDEX_FROM", "DiskPool", "Places", "Pool", "Records", "checksum", "first_of", "most_alike"]

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


INDEX_FROM = 4096  # fewer entries are compared faster than a graph is built

_FORMAT = 1

_RECORDS_AT_ONCE = 4096

_LINKS = 32

_WIDTH = 64  # of the search in the graph


class DiskPool(Pool):
    """A pool in a folder, which is made when the first entry is added.

    ``must_exist`` refuses to search a folder that holds no pool; without it such a pool is empty.
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
        self._graph: Any = None

    @property
    def records(self) -> Records:
        """All whole entries, (n,), with those that other processes added since the last look."""
        with self._lock:
            if self._exists() and self._entries.exists():
                count = self._whole(self._entries.stat().st_size // self.dtype.itemsize)
                if count > len(self._records):
                    self._records = np.memmap(self._entries, dtype=self.dtype, mode="r", shape=(count,))
            return self._records

    def _whole(self, present: int) -> int:
        """How many of the records present are whole: all but some at the end."""
        count = checked = len(self._records)
        with self._entries.open("rb") as stream:  # not mapped: a writer may cut off a broken end meanwhile
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
        """Whether there is a pool; refuses one that was made with another key or encoder."""
        if self._checked:
            return True
        path = self.folder / "pool.json"
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            if self._must_exist:
                raise ArtifactError(
                    f"{self.folder} holds no pool: nothing was generated with it, or the path is wrong"
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
        # this also removes what a kill left behind
        append_at(self._entries, rows.tobytes(), end=len(self.records) * self.dtype.itemsize)
        if _faiss() is not None:
            self._extend_graph()

    def _extend_graph(self) -> None:
        """Bring the index up to date, once the entries that it lacks are many."""
        faiss, records = _faiss(), self.records
        graph = self._open_graph(len(records))
        indexed = 0 if graph is None else graph.ntotal
        if len(records) - indexed < max(INDEX_FROM, len(records) // 10):
            return
        if graph is None:
            graph = faiss.IndexHNSWFlat(self.dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.add(np.ascontiguousarray(records["vector"][indexed:]))
        with atomic_write(self.folder / "index.faiss", private=True) as stream:
            stream.write(faiss.serialize_index(graph).tobytes())
        self._graph = graph

    def _open_graph(self, entries: int) -> Any:  # noqa: ANN401 - a FAISS index
        """The stored index, or None where there is none that fits."""
        path = self.folder / "index.faiss"
        if self._graph is None and path.exists():
            with contextlib.suppress(RuntimeError):  # FAISS's own error for a broken file
                self._graph = _faiss().deserialize_index(np.fromfile(path, dtype=np.uint8))
        fits = self._graph is not None and self._graph.d == self.dim and self._graph.ntotal <= entries
        return self._graph if fits else None

    def _search(self, records: Records, vectors: F32, count: int) -> Places:
        graph = self._open_graph(len(records)) if _faiss() is not None and count else None
        if graph is None:
            return super()._search(records, vectors, count)
        graph.hnsw.efSearch = max(_WIDTH, 4 * count)
        early = graph.search(np.ascontiguousarray(vectors), min(count, graph.ntotal))
        late = most_alike(records["vector"][graph.ntotal :], vectors, count)
        return first_of((early[0], late[0]), (early[1], late[1] + graph.ntotal), count)[1]


@functools.cache
def _faiss() -> Any:  # noqa: ANN401 - the module, or None
    try:
        return importlib.import_module("faiss")
    except ImportError:
        return None
