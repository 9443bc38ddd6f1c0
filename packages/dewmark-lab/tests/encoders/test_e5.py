"""multilingual-e5-small: its file is read as it was written, and its vectors are BERT's."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from dewmark.errors import ModelError
from dewmark_lab.e5 import E5Encoder, read_model

HIDDEN, INNER, POSITIONS = 384, 32, 64
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁query", ":", "▁bridge", "▁the", "s", "▁old"]


def block(weights: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Weights in blocks of 32 with 4 bits each, and what can be read back."""
    rows = weights.reshape(-1, 32)
    scale = (np.abs(rows).max(axis=1) / 7.0).astype("<f2")
    codes = np.clip(np.round(rows / scale[:, None]) + 8, 0, 15).astype(np.uint8)
    packed = b"".join(
        s.tobytes() + (row[:16] | (row[16:] << 4)).tobytes() for s, row in zip(scale, codes, strict=True)
    )
    return packed, ((codes.astype(np.float32) - 8) * scale.astype(np.float32)[:, None]).reshape(weights.shape)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    shapes = {
        "emb.word": (len(PIECES), HIDDEN),
        "emb.pos": (POSITIONS, HIDDEN),
        "emb.type": (2, HIDDEN),
        "emb.ln.w": (HIDDEN,),
        "emb.ln.b": (HIDDEN,),
    }
    for name, size in {"q": HIDDEN, "k": HIDDEN, "v": HIDDEN, "ao": HIDDEN}.items():
        shapes |= {f"l0.{name}.w": (size, HIDDEN), f"l0.{name}.b": (size,)}
    shapes |= {"l0.fi.w": (INNER, HIDDEN), "l0.fi.b": (INNER,)}
    shapes |= {"l0.fo.w": (HIDDEN, INNER), "l0.fo.b": (HIDDEN,)}
    shapes |= {f"l0.{name}.{end}": (HIDDEN,) for name in ("aln", "oln") for end in "wb"}
    arrays = {name: rng.normal(size=shape, scale=0.3).astype(np.float32) for name, shape in shapes.items()}
    texts = [piece.encode() for piece in PIECES]
    offsets = np.cumsum([0, *map(len, texts)]).astype("<u4")
    scores = -np.arange(len(PIECES), dtype="<f4")
    normal = struct.pack("<IBI", ord("Ｂ"), 1, ord("b"))  # a full-width letter
    head = b"E5S1" + struct.pack("<I", 1)
    head += struct.pack("<7ifi", HIDDEN, 1, 2, INNER, len(PIECES), POSITIONS, 2, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, len(b"".join(texts)))
    head += offsets.tobytes() + scores.tobytes() + b"".join(texts)
    head += struct.pack("<iI", 1, len(normal)) + normal + struct.pack("<i", len(arrays))
    at = len(head) + sum(2 + len(name) + 21 for name in arrays)
    directory, data = b"", b""
    for name, array in arrays.items():
        quantised = name == "emb.word" or name.endswith(("q.w", "k.w", "v.w", "ao.w", "fi.w", "fo.w"))
        packed = array.tobytes()
        if quantised:
            packed, arrays[name] = block(array)
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", int(quantised), array.size, at + len(data), len(packed))
        data += packed
    file = tmp_path_factory.mktemp("e5") / "tiny.bin"
    file.write_bytes(head + directory + data)
    return file, arrays


def test_all_tensors_pieces_and_sizes_are_read(model: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, arrays = model
    file = read_model(path)
    assert (file.hidden, file.layers, file.heads, file.inner, file.positions) == (384, 1, 2, 32, 64)
    assert [piece for piece, _ in file.pieces] == PIECES
    assert file.normal == {ord("Ｂ"): "b"}
    for name, array in arrays.items():
        np.testing.assert_allclose(file.tensors[name], array.ravel(), rtol=1e-6)


def test_vectors_do_not_depend_on_the_batch(model, monkeypatch):
    encoder = E5Encoder(device="cpu")
    monkeypatch.setattr("dewmark_lab.e5.fetch", lambda name, progress: Path("/"))
    monkeypatch.setattr("dewmark_lab.e5.read_model", lambda path: read_model(model[0]))
    texts = ["the old bridges", "bridge", "", "Ｂridge"]
    rows = encoder.encode(texts)
    assert rows.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(rows[3], rows[1], atol=1e-6)  # the map of code points
    for text, row in zip(texts, rows, strict=True):
        np.testing.assert_allclose(encoder.encode([text])[0], row, atol=1e-5)
    assert not np.allclose(rows[0], rows[1], atol=1e-2)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.bin").write_bytes(b"E5S1" + bytes(10))
    with pytest.raises(ModelError, match=r"broken.bin is no such model"):
        read_model(tmp_path / "broken.bin")
