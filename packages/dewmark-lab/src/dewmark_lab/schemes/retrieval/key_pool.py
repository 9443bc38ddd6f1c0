"""A pool of outputs: each has an embedding, by which it is found again, and its own key, encrypted.

An entry is an id, a nonce, the key sealed with AES-256-GCM with the id as associated data, and the unit
vector in float32. Entries are rows of an SQLite database: in memory, or ``pool.sqlite`` in a folder of mode
0700, which many processes may read while one writes. A killed writer leaves nothing behind. Vectors are
compared one by one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dewmark.arrays import F32, I64
from dewmark.errors import ArtifactError, ConfigError, StorageError

_FILE = "pool.sqlite"
_ID, _NONCE = 16, 12
_ROWS_AT_ONCE = 1 << 15
_TABLES = """
CREATE TABLE about (text TEXT NOT NULL);
CREATE TABLE entries (
    place INTEGER PRIMARY KEY, id BLOB UNIQUE NOT NULL, nonce BLOB NOT NULL, sealed BLOB NOT NULL,
    vector BLOB NOT NULL
);
"""


class Pool:
    """A pool in memory, or in a folder, which is created when the first entry is added.

    ``secret`` (32 bytes) encrypts the keys; ``dim`` is the dimension of the vectors, ``encoder`` made them,
    and ``fingerprint`` is that of the master key. With ``must_exist``, searching a folder without a pool is
    an error; otherwise such a pool is empty.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        secret: bytes,
        dim: int,
        encoder: str,
        fingerprint: str,
        must_exist: bool = False,
    ) -> None:
        self.folder, self.dim, self.secret = folder, dim, secret
        self._cipher = AESGCM(secret)
        self._about = {"encoder": encoder, "dim": dim, "key_fingerprint": fingerprint}
        self._must_exist = must_exist
        self._lock = threading.RLock()
        self._memory: sqlite3.Connection | None = None
        if folder is None:
            self._memory = sqlite3.connect(":memory:", check_same_thread=False)
            with self._memory:
                self._create(self._memory)
        self._vectors = np.zeros((0, dim), dtype=np.float32)

    def __len__(self) -> int:
        return len(self._table())

    def add(self, keys: Sequence[bytes], texts: Sequence[str], vectors: F32) -> None:
        """Register outputs with their keys and unit vectors (n, dim); known outputs are skipped."""
        rows = [self._entry(*each) for each in zip(keys, texts, vectors, strict=True)]
        with self._open(writing=True) as database:
            assert database is not None
            known = "INSERT OR IGNORE INTO entries (id, nonce, sealed, vector) VALUES (?, ?, ?, ?)"
            database.executemany(known, rows)

    def nearest(self, vectors: F32, count: int) -> list[list[bytes]]:
        """For each unit row (n, dim), the distinct keys of the ``count`` most similar entries, best first."""
        places = most_similar(self._table(), vectors, count)
        if not places.size:
            return [[] for _ in vectors]
        with self._open() as database:
            assert database is not None
            keys = {place: self._key(database, place) for place in np.unique(places).tolist()}
        return [list(dict.fromkeys(keys[place] for place in row)) for row in places.tolist()]

    def stored(self) -> bytes:
        """The whole database of a pool in memory."""
        assert self._memory is not None
        return self._memory.serialize()

    def take(self, data: bytes) -> None:
        """Fill a pool in memory with what another one `stored`."""
        assert self._memory is not None
        self._memory.deserialize(data)
        self._vectors = self._vectors[:0]
        with _reported("the stored detector's pool"):
            self._check(self._memory, "the stored detector's pool")

    def _entry(self, key: bytes, text: str, vector: F32) -> tuple[bytes, bytes, bytes, bytes]:
        output = key + text.encode("utf-8", "backslashreplace")
        ident = hashlib.blake2b(output, key=self.secret, person=b"entry", digest_size=_ID).digest()
        nonce = secrets.token_bytes(_NONCE)
        return ident, nonce, self._cipher.encrypt(nonce, key, ident), vector.astype("<f4").tobytes()

    def _key(self, database: sqlite3.Connection, place: int) -> bytes:
        """The key of an entry, counted from 0."""
        asked = "SELECT nonce, sealed, id FROM entries WHERE place = ?"
        nonce, sealed, ident = database.execute(asked, (place + 1,)).fetchone()
        try:
            return self._cipher.decrypt(nonce, sealed, ident)
        except InvalidTag:
            raise ArtifactError(
                f"entry {place} of the pool cannot be decrypted: it was changed, or another key was used"
            ) from None

    def _table(self) -> F32:
        """The vectors of all entries (n, dim), including those that other processes have added."""
        with self._lock, self._open() as database:
            if database is not None:
                asked = "SELECT vector FROM entries WHERE place > ? ORDER BY place"
                new = [row[0] for row in database.execute(asked, (len(self._vectors),))]
                if new:
                    rows = np.frombuffer(b"".join(new), dtype="<f4").reshape(len(new), self.dim)
                    self._vectors = np.concatenate((self._vectors, rows))
            return self._vectors

    @contextlib.contextmanager
    def _open(self, *, writing: bool = False) -> Iterator[sqlite3.Connection | None]:
        """The database in one transaction; None if there is none yet."""
        if self._memory is not None:
            with self._lock, self._memory:
                yield self._memory
            return
        assert self.folder is not None
        path = self.folder / _FILE
        if writing:
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.folder.chmod(0o700)
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            except OSError as error:
                raise StorageError(f"cannot write {path}: {error.strerror}") from None
        elif not path.exists():
            if self._must_exist:
                raise ArtifactError(
                    f"{self.folder} contains no pool: nothing was generated with it, or the path is wrong"
                )
            yield None
            return
        with _reported(str(path)), contextlib.closing(sqlite3.connect(path, timeout=60.0)) as own, own:
            if writing:
                own.execute("BEGIN IMMEDIATE")
                if not own.execute("SELECT 1 FROM sqlite_master").fetchone():
                    self._create(own)
            self._check(own, f"the pool {self.folder}")
            yield own

    def _create(self, database: sqlite3.Connection) -> None:
        for statement in filter(str.strip, _TABLES.split(";")):
            database.execute(statement)
        database.execute("INSERT INTO about VALUES (?)", (json.dumps(self._about),))

    def _check(self, database: sqlite3.Connection, name: str) -> None:
        """Raise if the pool was made with another key or encoder."""
        about = json.loads(database.execute("SELECT text FROM about").fetchone()[0])
        for field, mine in self._about.items():
            if about.get(field) != mine:
                raise ConfigError(
                    f"{name} was made with {field} {about.get(field)}, not {mine}: choose another folder"
                )


@contextlib.contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StorageError(f"cannot use {name}: {error}") from None
    except sqlite3.DatabaseError:
        raise ArtifactError(f"{name} is corrupt: restore it from a backup") from None


def most_similar(table: F32, vectors: F32, count: int) -> I64:
    """The places (n, ≤ count) of the table's rows with the largest products with rows (n, dim)."""
    best = np.zeros((len(vectors), 0), dtype=np.float32)
    where = np.zeros((len(vectors), 0), dtype=np.int64)
    for start in range(0, len(table), _ROWS_AT_ONCE):
        products = vectors @ table[start : start + _ROWS_AT_ONCE].T
        places = np.broadcast_to(np.arange(start, start + products.shape[1]), products.shape)
        best, where = np.concatenate((best, products), axis=1), np.concatenate((where, places), axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :count]
        best, where = np.take_along_axis(best, order, axis=1), np.take_along_axis(where, order, axis=1)
    return where
