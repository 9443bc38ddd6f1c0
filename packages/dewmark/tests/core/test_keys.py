from __future__ import annotations

import os
import pickle
import stat

import numpy as np
import pytest
from scipy import stats

from dewmark.core.keys import Key
from dewmark.errors import KeyFileError, StorageError

ZERO_TO_31 = Key(bytes(range(32)))


def test_vectors_never_change() -> None:
    """If these change, every text marked before is lost: do not update the numbers, find the cause."""
    assert ZERO_TO_31.fingerprint == FINGERPRINT
    assert ZERO_TO_31.subkey("dew/gaussian/R_T").hex() == SUBKEY
    assert ZERO_TO_31.stream("test").words(3).tolist() == WORDS
    np.testing.assert_allclose(ZERO_TO_31.stream("test").normals(2, 2), NORMALS, rtol=0, atol=1e-12)
    assert ZERO_TO_31.stream("test").permutation(8).tolist() == PERMUTATION


def test_normals_are_normal_and_uniforms_uniform() -> None:
    normals = ZERO_TO_31.stream("law").normals(200_000)
    assert stats.kstest(normals, "norm").pvalue > 1e-3
    assert stats.kstest(ZERO_TO_31.stream("law").uniforms(200_000), "uniform").pvalue > 1e-3


def test_purposes_and_keys_are_independent() -> None:
    a = ZERO_TO_31.stream("a").normals(50_000)
    b = ZERO_TO_31.stream("b").normals(50_000)
    other = Key(bytes(32)).stream("a").normals(50_000)
    # the correlation of independent samples has standard deviation 1/sqrt(50000) = 0.0045
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    assert abs(np.corrcoef(a, other)[0, 1]) < 0.02


def test_a_stream_continues_where_it_stopped() -> None:
    whole = ZERO_TO_31.stream("s").words(10)
    stream = ZERO_TO_31.stream("s")
    assert np.array_equal(np.concatenate((stream.words(3), stream.words(7))), whole)


def test_the_secret_is_never_shown() -> None:
    secret = bytes(range(100, 132))
    key = Key(secret)
    for shown in (repr(key), str(key), f"{key}", f"{key!r}", str([key])):
        assert secret.hex() not in shown
        assert key.fingerprint in shown
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_wrong_lengths_are_rejected_without_showing_the_key(length: int) -> None:
    secret = bytes([171]) * length
    with pytest.raises(KeyFileError, match=f"32 bytes long, got {length}") as caught:
        Key(secret)
    assert not length or secret.hex() not in str(caught.value)


def test_save_and_load(tmp_path) -> None:
    key = Key.generate()
    path = tmp_path / "folder" / "a.key"
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Key.load(path) == key
    with pytest.raises(StorageError, match="exists already"):
        Key.generate().save(path)
    assert Key.load(path) == key
    for open_to_somebody in (0o640, 0o620, 0o604):
        path.chmod(open_to_somebody)
        with pytest.warns(UserWarning, match="chmod 600"):
            Key.load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a key file"),
        (b"hello\n", "not a key file"),
        (b"\xff\xfe\x00", "not a key file"),
        (b"dewmark-key-v1 zz\n", "not hexadecimal"),
        (b"dewmark-key-v1 00ff\n", "has 2 bytes"),
        (b"1" * 5000, "not a key file"),
        (b"\n" * (1 << 20 | 1), "larger than 1024 KiB"),
    ],
)
def test_broken_key_files(tmp_path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.key"
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=message):
        Key.load(path)


def test_missing_key_file_says_how_to_make_one(tmp_path) -> None:
    with pytest.raises(KeyFileError, match="dewmark key new"):
        Key.load(tmp_path / "none.key")


def test_fast_normals_are_the_normals() -> None:
    exact = ZERO_TO_31.stream("fast").normals(100_000)
    fast = ZERO_TO_31.stream("fast").float32_normals(100_000)
    assert np.abs(fast - exact).max() < 1e-6


def test_rings_and_epochs_are_kept_in_the_file(tmp_path) -> None:
    path = tmp_path / "ring.key"
    first = Key.ring(256, payload_bits=4)
    first.save(path)
    assert path.read_text().startswith("dewmark-key-v2\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = Key.load(path).rotated("2027")
    second.save(path, overwrite=True)
    read = Key.load(path)
    assert (read.members, read.payload_bits, read.epoch) == (256, 4, "2027")
    assert read == second
    assert read != first
    assert [old.epoch for old in read.retired] == ["first"]
    assert read.retired == (first,)
    third = read.rotated("2028", members=16)
    assert [old.epoch for old in third.retired] == ["first", "2027"]
    assert third.members == 16
    with pytest.raises(KeyFileError, match="epoch '2027' already"):
        third.rotated("2027")
    with pytest.raises(KeyFileError, match="epoch's name"):
        third.rotated("in 2027")


def test_members_have_keys_of_their_own() -> None:
    ring = Key(bytes(range(32)), members=4096)
    keys = [ring.independent_member(i) for i in range(ring.independent)]
    assert len({key.fingerprint for key in (*keys, ring)}) == 17
    assert ZERO_TO_31.independent_member(0) is ZERO_TO_31


@pytest.mark.parametrize("members", [0, 17, 100, 24, -1])
def test_impossible_rings_are_rejected(members: int) -> None:
    with pytest.raises(KeyFileError, match=f"a ring has 2 to 16 members, or .* got {members}"):
        Key(bytes(32), members=members)


def test_impossible_payloads_are_rejected() -> None:
    with pytest.raises(KeyFileError, match="0 to 8 bits in a ring of 4096, got 9"):
        Key(bytes(32), members=4096, payload_bits=9)
    with pytest.raises(KeyFileError, match="0 to 16 bits, got 17"):
        Key(bytes(32), payload_bits=17)


@pytest.mark.parametrize("place", ["fifo", "/dev/zero", "."])
def test_only_a_regular_file_is_read(tmp_path, place: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(KeyFileError, match="it is a (FIFO|device|folder), not a regular file"):
        Key.load(tmp_path / place)


@pytest.mark.parametrize("lines", ["", "[" * 10**5, "{}", '{"key": "zz"}', '{"key": 3, "members": 1}', "[1]"])
def test_damaged_epochs_are_reported_without_the_key(tmp_path, lines: str) -> None:
    path = tmp_path / "broken.key"
    path.write_text(f"dewmark-key-v2\n{lines}\n")
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="is damaged"):
        Key.load(path)


FINGERPRINT = "269d4bd0fdd525ca"
SUBKEY = "8ceac18645c8bc86791d5ddec728e8f2893404378698e7ca86d502d1910ee04b"
WORDS = [7488818354597127802, 16471316117270806677, 11137279124050089064]
NORMALS = [[-0.2379249382069015, 1.2421632706540597], [0.2630736957252654, 1.3392701229320587]]
PERMUTATION = [5, 0, 6, 2, 7, 4, 1, 3]
