"""A pool in a folder of mode 0700, which many processes may read while one writes.

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
import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dewmark.arrays import F32
from dewmark.baselines._pool import Places, Pool, Records, checksum, first_of, most_alike
from dewmark.errors import ArtifactError, ConfigError
from dewmark.storage import append_at, atomic_write

__all__ = ["INDEX_FROM", "DiskPool"]

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
