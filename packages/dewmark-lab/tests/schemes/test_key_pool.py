"""The pool of keys: nothing is lost, keys are encrypted, and every reader finds the same."""

from __future__ import annotations

import hashlib
import multiprocessing
import stat
from pathlib import Path

import numpy as np
import pytest

from dewmark.errors import ArtifactError, ConfigError, StorageError
from dewmark_lab.schemes.retrieval.key_pool import DiskPool, Pool

DIM = 12
SECRET = bytes(range(32))


def open_pool(folder: Path, *, secret: bytes = SECRET, dim: int = DIM, must_exist: bool = False) -> DiskPool:
    return DiskPool(
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
    return Pool(secret=SECRET, dim=DIM) if request.param == "memory" else open_pool(tmp_path / "pool")


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


@pytest.mark.parametrize("broken", ["half a record", "a record of zeros"])
def test_partial_write_is_skipped_and_removed(tmp_path: Path, broken: str) -> None:
    folder = tmp_path / "pool"
    keys, texts, vectors = outputs(5)
    pool = open_pool(folder)
    pool.add(keys[:4], texts[:4], vectors[:4])
    size = pool.dtype.itemsize
    with (folder / "entries.bin").open("ab") as stream:
        stream.write(b"\x01" * (size // 2) if broken == "half a record" else bytes(size))
    again = open_pool(folder)
    assert len(again) == 4
    again.add(keys[4:], texts[4:], vectors[4:])
    assert (folder / "entries.bin").stat().st_size == 5 * size
    for each in (pool, again, open_pool(folder)):
        assert [row[0] for row in each.nearest(vectors, 1)] == keys


def test_damaged_entry_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    pool = open_pool(folder)
    pool.add(*outputs(5))
    data = bytearray((folder / "entries.bin").read_bytes())
    data[2 * pool.dtype.itemsize + 40] ^= 1
    (folder / "entries.bin").write_bytes(data)
    with pytest.raises(ArtifactError, match="entry 2"):
        len(open_pool(folder))


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


def test_key_is_bound_to_its_entry() -> None:
    """Exchanging the keys of two entries is detected, because the id is authenticated with the key."""
    pool = Pool(secret=SECRET, dim=DIM)
    keys, texts, vectors = outputs(2)
    pool.add(keys, texts, vectors)
    forged = pool.records.copy()
    forged["nonce"], forged["sealed"] = pool.records["nonce"][::-1], pool.records["sealed"][::-1]
    other = Pool(secret=SECRET, dim=DIM)
    other.take(forged.tobytes())
    with pytest.raises(ArtifactError, match="cannot be decrypted"):
        other.nearest(vectors, 1)


def test_pool_of_another_kind_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    open_pool(folder).add(*outputs(2))
    with pytest.raises(ConfigError, match="dim 12"):
        len(open_pool(folder, dim=5))
    (folder / "pool.json").write_text("{")
    with pytest.raises(ArtifactError, match="corrupt"):
        len(open_pool(folder))
    with pytest.raises(ArtifactError, match="contains no pool"):
        open_pool(tmp_path / "elsewhere", must_exist=True).nearest(outputs(1)[2], 1)
    with pytest.raises(ArtifactError, match="another dimension"):
        Pool(secret=SECRET, dim=DIM).take(bytes(17))


def test_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="cannot write"):
        open_pool(tmp_path / "file" / "pool").add(*outputs(1))
