"""The pool of keys: nothing is lost, keys are encrypted, and every reader finds the same."""

from __future__ import annotations

import hashlib
import multiprocessing
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest

from dewmark.errors import ArtifactError, ConfigError, StorageError
from dewmark_lab.schemes.retrieval.key_pool import Pool

DIM = 12
SECRET = bytes(range(32))


def open_pool(
    folder: Path | None, *, secret: bytes = SECRET, dim: int = DIM, must_exist: bool = False
) -> Pool:
    return Pool(
        folder, secret=secret, dim=dim, encoder="bag", fingerprint="0123456789abcdef", must_exist=must_exist
    )


def outputs(count: int, *, seed: int = 0) -> tuple[list[bytes], list[str], np.ndarray]:
    """Keys, texts and unit vectors."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, DIM)).astype(np.float32)
    keys = [hashlib.sha256(f"{seed} {i}".encode()).digest() for i in range(count)]
    texts = [f"output {i} of {seed}" for i in range(count)]
    return keys, texts, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(params=["memory", "disk"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Pool:
    return open_pool(None if request.param == "memory" else tmp_path / "pool")


def test_each_output_is_found_by_its_vector(pool: Pool) -> None:
    keys, texts, vectors = outputs(50)
    pool.add(keys[:20], texts[:20], vectors[:20])
    pool.add(keys[20:], texts[20:], vectors[20:])
    found = pool.nearest(vectors, 3)
    assert [row[0] for row in found] == keys
    likeness = vectors @ vectors.T
    expected = [[keys[i] for i in np.argsort(-row, kind="stable")[:3]] for row in likeness]
    assert found == expected


def test_empty_pool_finds_nothing(pool: Pool) -> None:
    assert pool.nearest(outputs(2)[2], 3) == [[], []]
    assert len(pool) == 0


def test_same_output_is_kept_once(pool: Pool) -> None:
    keys, texts, vectors = outputs(4)
    for _ in range(2):
        pool.add([*keys, keys[0]], [*texts, texts[0]], np.concatenate((vectors, vectors[:1])))
    assert len(pool) == 4
    pool.add(keys[:1], ["another text under the same key"], vectors[1:2])
    assert len(pool) == 5
    assert pool.nearest(vectors[:1], 5)[0].count(keys[0]) == 1  # a key counts once, however often it was used


def test_reader_sees_what_a_writer_adds(tmp_path: Path) -> None:
    writer, reader = (open_pool(tmp_path / "pool") for _ in range(2))
    keys, texts, vectors = outputs(6)
    assert len(reader) == 0
    writer.add(keys[:3], texts[:3], vectors[:3])
    assert reader.nearest(vectors[:1], 1) == [[keys[0]]]
    writer.add(keys[3:], texts[3:], vectors[3:])
    assert reader.nearest(vectors[5:], 1) == [[keys[5]]]


def _write(folder: Path, seed: int) -> None:
    pool = open_pool(folder)
    for key, text, vector in zip(*outputs(15, seed=seed), strict=True):
        pool.add([key], [text], vector[None])


def test_writers_in_many_processes_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write, args=(tmp_path / "pool", seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    pool = open_pool(tmp_path / "pool")
    assert len(pool) == 45
    for seed in range(3):
        keys, _, vectors = outputs(15, seed=seed)
        assert [row[0] for row in pool.nearest(vectors, 1)] == keys


def test_a_write_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    keys, texts, vectors = outputs(5)
    pool = open_pool(folder)
    pool.add(keys[:4], texts[:4], vectors[:4])
    with pytest.raises(ValueError, match="zip"):
        pool.add(keys, texts[:4], vectors)
    with sqlite3.connect(folder / "pool.sqlite") as killed:
        killed.execute("INSERT INTO entries (id, nonce, sealed, vector) VALUES (x'00', x'00', x'00', x'00')")
        killed.rollback()
    assert len(open_pool(folder)) == 4


def test_keys_are_encrypted(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    keys, texts, vectors = outputs(3)
    open_pool(folder).add(keys, texts, vectors)
    stored = b"".join(file.read_bytes() for file in folder.iterdir())
    for secret in (*keys, SECRET):
        assert secret not in stored
        assert secret.hex().encode() not in stored
    assert not any(text.encode() in stored for text in texts)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.iterdir())
    with pytest.raises(ArtifactError, match="another key"):
        open_pool(folder, secret=bytes(32)).nearest(vectors, 1)


def test_key_is_bound_to_its_entry(tmp_path: Path) -> None:
    """Exchanging the keys of two entries is detected, because the id is authenticated with the key."""
    pool = open_pool(tmp_path)
    keys, texts, vectors = outputs(2)
    pool.add(keys, texts, vectors)
    with sqlite3.connect(tmp_path / "pool.sqlite") as database:
        database.execute("UPDATE entries SET sealed = (SELECT sealed FROM entries WHERE place = 2), "
                         "nonce = (SELECT nonce FROM entries WHERE place = 2) WHERE place = 1")  # fmt: skip
    with pytest.raises(ArtifactError, match="cannot be decrypted"):
        open_pool(tmp_path).nearest(vectors, 1)


def test_pool_of_another_kind_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    open_pool(folder).add(*outputs(2))
    with pytest.raises(ConfigError, match="dim 12"):
        len(open_pool(folder, dim=5))
    (folder / "pool.sqlite").write_bytes(b"{" * 4096)
    with pytest.raises(ArtifactError, match="corrupt"):
        len(open_pool(folder))
    with pytest.raises(ArtifactError, match="contains no pool"):
        open_pool(tmp_path / "elsewhere", must_exist=True).nearest(outputs(1)[2], 1)
    with pytest.raises(ConfigError, match="dim 12"):
        open_pool(None, dim=5).take(open_pool(None).stored())


def test_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="cannot write"):
        open_pool(tmp_path / "file" / "pool").add(*outputs(1))
