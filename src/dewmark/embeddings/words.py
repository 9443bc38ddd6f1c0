"""Vectors of words: each word is encoded once ever, and remembered in memory and on disk.

On disk it is one SQLite file per encoder, shared by all processes; a kill loses at most the last words. Rows
are rounded to float16 before anything is derived from them, so that whoever marks and whoever detects start
from the same numbers. The file holds words of the texts that were scored, alone and unordered, and is
readable by its owner only. Where the disk does not serve (full, read-only, damaged), memory does.

Boundary: M(word) and nothing else; what words mean as tokens and contexts is in `word_space`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dewmark.arrays import F16, F32
from dewmark.core.whitening import normalize_rows
from dewmark.embeddings.encoders import Encoder
from dewmark.embeddings.segmentation import VERSION
from dewmark.workspace import Progress, silent

__all__ = ["RowMemo", "WordVectors"]


_MEMORY_LIMIT = 300_000  # words: 300 MB at 512 dimensions
_DISK_LIMIT = 1 << 30  # bytes
_CHUNK = 2048
_BUSY_SECONDS = 10.0
_PARAMETERS = 500  # every SQLite takes at least 999 in one query


class RowMemo:
    """Rows by word, each computed once; kept as float16, forgotten all together when they are too many.

    ``compute`` maps N new words to rows (N, dim). Safe to share between threads.
    """

    def __init__(
        self, compute: Callable[[list[str]], NDArray[np.floating]], dim: int, *, limit: int = _MEMORY_LIMIT
    ) -> None:
        self._compute = compute
        self._limit = limit
        self._index: dict[str, int] = {}
        self._rows: F16 = np.empty((1024, dim), dtype=np.float16)
        self._lock = threading.RLock()

    def rows(self, words: Sequence[str]) -> F32:
        """The rows of words (N, dim); all that are new are computed in one call."""
        with self._lock:
            self.add(words)
            picked = np.fromiter((self._index[word] for word in words), dtype=np.int64, count=len(words))
            return self._rows[picked].astype(np.float32)

    def add(self, words: Collection[str]) -> None:
        """Compute and remember those of the words that are new."""
        with self._lock:
            new = [word for word in dict.fromkeys(words) if word not in self._index]
            if new and len(self._index) + len(new) > self._limit:
                self._index = {}
                new = list(dict.fromkeys(words))
            if not new:
                return
            fresh = self._compute(new)
            start, end = len(self._index), len(self._index) + len(new)
            if end > len(self._rows):
                grown = np.empty((max(end, 2 * len(self._rows)), self._rows.shape[1]), dtype=np.float16)
                grown[:start] = self._rows[:start]
                self._rows = grown
            self._rows[start:end] = fresh
            self._index.update(zip(new, range(start, end), strict=True))


class WordVectors:
    """M(word), unit rows: encoded, or as they were encoded before. ``folder`` None keeps nothing on disk."""

    def __init__(self, encoder: Encoder, folder: Path | None) -> None:
        self.encoder = encoder
        self.dim = encoder.dim
        name = hashlib.sha256(f"{VERSION}|{encoder.identity}".encode()).hexdigest()[:20]
        self._disk = None if folder is None else _Disk(folder / f"{name}.sqlite", encoder.dim)
        self._memo = RowMemo(self._find, encoder.dim)

    def vectors(self, words: Sequence[str]) -> F32:
        """Words, in the form that `segmentation` gives them, to unit rows (N, dim)."""
        return self._memo.rows(words)

    def load(self) -> None:
        """Load the encoder now, for who cannot wait for it at the first new word."""
        self.encoder.encode([""])

    def prepare(self, words: Collection[str], *, progress: Progress = silent) -> None:
        """Encode a whole vocabulary ahead of its use; what is known already costs a look-up."""
        distinct = list(dict.fromkeys(words))
        for i in range(0, len(distinct), _CHUNK):
            progress("encoding words", i, len(distinct))
            self._memo.add(distinct[i : i + _CHUNK])
        progress("encoding words", len(distinct), len(distinct))

    def _find(self, words: list[str]) -> F16:
        known = self._disk.read(words) if self._disk else {}
        new = [word for word in words if word not in known]
        if new:
            rows = [self.encoder.encode(new[i : i + _CHUNK]) for i in range(0, len(new), _CHUNK)]
            fresh = normalize_rows(np.concatenate(rows)).astype(np.float16)
            known.update(zip(new, fresh, strict=True))
            if self._disk:
                self._disk.write(new, fresh)
        return np.stack([known[word] for word in words])


class _Disk:
    """Rows by word in a SQLite file, done without if it is busy or not writable, and deleted if broken."""

    def __init__(self, path: Path, dim: int) -> None:
        self._path = path
        self._bytes = 2 * dim

    def read(self, words: Sequence[str]) -> dict[str, F16]:
        found: dict[str, F16] = {}

        def select(database: sqlite3.Connection) -> None:
            for i in range(0, len(words), _PARAMETERS):
                part = words[i : i + _PARAMETERS]
                marks = ",".join("?" * len(part))
                for word, row in database.execute(
                    f"SELECT word, row FROM words WHERE word IN ({marks})", part
                ):
                    if len(row) == self._bytes:
                        found[word] = np.frombuffer(row, dtype="<f2").astype(np.float16)

        if self._path.exists():
            self._run(select)
        return found

    def write(self, words: Sequence[str], rows: F16) -> None:
        blobs = [row.astype("<f2").tobytes() for row in rows]

        def insert(database: sqlite3.Connection) -> None:
            database.execute("CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, row BLOB)")
            database.executemany("INSERT OR IGNORE INTO words VALUES (?, ?)", zip(words, blobs, strict=True))

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
            if self._path.stat().st_size > _DISK_LIMIT:
                return
        except OSError:
            return
        self._run(insert)

    def _run(self, action: Callable[[sqlite3.Connection], None]) -> None:
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS)) as database, database:
                database.execute("PRAGMA journal_mode=WAL")  # readers need not wait for a writer
                database.execute("PRAGMA synchronous=NORMAL")  # a commit does not wait for the disk
                action(database)
        except sqlite3.OperationalError:
            pass  # busy, read-only, full, or no table yet: the words are encoded again
        except sqlite3.DatabaseError:
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(OSError):
                    self._path.with_name(self._path.name + suffix).unlink()
