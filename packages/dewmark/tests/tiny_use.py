"""The file of use-m3 with small random weights, a tokenizer of words, and a plain forward pass."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

CHUNKS, ROWS, WIDTH, BRANCH, HIDDEN = 3, 20, 12, 4, 6
ORDERS = {2: (0, 1), 3: (-1, 0, 1), 5: (-2, -1, 0, 1, 2)}  # where the neighbours of a piece stand


def tiny_weights(path: Path) -> Path:
    """Write an npz of the real file's structure; biases and gains are not neutral."""
    rng = np.random.default_rng(5)
    shapes: dict[str, tuple[int, ...]] = {}
    for n in ORDERS:
        shapes |= {
            f"proj{n}": (WIDTH, BRANCH),
            f"w1_{n}": (n * BRANCH, BRANCH),
            f"w2_{n}": (n * BRANCH, BRANCH),
        }
        shapes |= {f"{name}{n}": (BRANCH,) for name in ("proj_b", "ln_g", "ln_b", "b1_", "b2_")}
    features = WIDTH + len(ORDERS) * BRANCH
    shapes |= {"ln_g": (features,), "ln_b": (features,), "cnn_W": (features, WIDTH), "cnn_b": (WIDTH,)}
    shapes |= {"d0": (WIDTH, HIDDEN), "p1": (WIDTH, HIDDEN), "d1": (HIDDEN, HIDDEN)}
    shapes |= {"d2": (HIDDEN, WIDTH), "p3": (HIDDEN, WIDTH), "d3": (WIDTH, WIDTH)}
    arrays = {name: rng.normal(0.1, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays |= {f"q{i + 1}": rng.integers(0, 256, (ROWS, WIDTH), dtype=np.uint8) for i in range(CHUNKS)}
    arrays["scale"] = rng.uniform(0.01, 0.03, CHUNKS).astype(np.float32)
    arrays["lo"] = rng.uniform(-3, -1, CHUNKS).astype(np.float32)
    arrays["bits"] = np.array([8], dtype=np.int8)
    np.savez(path, eps=np.float64(1e-3), **arrays)
    return path


class TinyTokenizer:
    """Has the interface of the package's tokenizer; a word is one or two ids, by its hash."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, text: str, *, add_bos: bool = True, add_eos: bool = True) -> list[int]:
        self.asked.append(text)
        ids = [
            3 + zlib.crc32(w.encode()) % (CHUNKS * ROWS - 3)
            for word in text.split()
            for w in (word, word[4:])
            if w
        ]
        return [1] * add_bos + (ids or [0]) + [2] * add_eos


def forward(weights: Path, ids: list[int]) -> np.ndarray:
    """The vector of one text, in float64, piece by piece."""
    w = {name: np.asarray(array, dtype=np.float64) for name, array in np.load(weights).items()}

    def norm(x: np.ndarray, gain: np.ndarray, bias: np.ndarray) -> np.ndarray:
        x = x - x.mean()
        return x / np.sqrt((x * x).mean() + w["eps"]) * gain + bias

    embedded = [
        w[f"q{i % CHUNKS + 1}"][i // CHUNKS] * w["scale"][i % CHUNKS] + w["lo"][i % CHUNKS] for i in ids
    ]
    parts: list[list[np.ndarray]] = [[] for _ in ids]
    for t, x in enumerate(embedded):
        joined = np.concatenate([x @ w[f"proj{n}"] + w[f"proj_b{n}"] for n in ORDERS])
        gain, bias = (np.concatenate([w[f"{name}{n}"] for n in ORDERS]) for name in ("ln_g", "ln_b"))
        parts[t] = np.split(norm(joined, gain, bias), len(ORDERS))
    for branch, (n, places) in enumerate(ORDERS.items()):
        for layer in (1, 2):
            h = [part[branch] for part in parts]
            for t in range(len(ids)):
                around = [h[t + p] if 0 <= t + p < len(ids) else np.zeros(BRANCH) for p in places]
                out = np.concatenate(around) @ w[f"w{layer}_{n}"] + w[f"b{layer}_{n}"]
                parts[t][branch] = np.maximum(out, 0) + h[t]
    features = [
        norm(np.concatenate([x, *part]), w["ln_g"], w["ln_b"])
        for x, part in zip(embedded, parts, strict=True)
    ]
    y = sum(f @ w["cnn_W"] + w["cnn_b"] for f in features) / np.sqrt(len(ids))
    y = np.maximum(y @ w["p1"] + np.maximum(y @ w["d0"], 0) @ w["d1"], 0)
    y = np.tanh(y @ w["p3"] + np.maximum(y @ w["d2"], 0) @ w["d3"])
    return y / np.linalg.norm(y)
