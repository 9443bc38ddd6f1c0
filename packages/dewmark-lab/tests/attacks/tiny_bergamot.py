"""A translator with random weights, written as Marian writes its files, and its network in plain numpy."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dewmark.arrays import F64
from dewmark_lab.attacks.translation.bergamot import FLOAT32, INT8, INTGEMM8, SETTINGS

HEADS, DIM, WIDE = 4, 16, 24
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?-éã"
VOCABULARY = ["</s>", "<unk>", "▁", *LETTERS, *(f"▁{word}" for word in ("the", "house", "old", "city"))]
CONFIG = {
    "type": "transformer",
    "enc-depth": 2,
    "dec-depth": 2,
    "dec-cell": "ssru",
    "tied-embeddings-all": True,
    "transformer-decoder-autoreg": "rnn",
    "transformer-ffn-activation": "relu",
    "transformer-ffn-depth": 2,
    "transformer-heads": HEADS,
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-preprocess": "",
    "transformer-train-position-embeddings": False,
}

Item = tuple[int, tuple[int, ...], bytes]


def random_arrays(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Weights by Marian's names, (inputs, outputs) each; the end is likely enough to come now and then."""
    rng = np.random.default_rng(seed)
    shapes = {"Wemb": (len(VOCABULARY), DIM), "decoder_ff_logit_out_b": (1, len(VOCABULARY))}
    for side, blocks in (("encoder", ("self",)), ("decoder", ("context", "rnn"))):
        for layer in ("l1", "l2"):
            prefix = f"{side}_{layer}"
            for block in blocks:
                if block == "rnn":
                    shapes |= {f"{prefix}_rnn_W": (DIM, DIM), f"{prefix}_rnn_Wf": (DIM, DIM)}
                    shapes |= {f"{prefix}_rnn_bf": (1, DIM)}
                else:
                    shapes |= {f"{prefix}_{block}_W{part}": (DIM, DIM) for part in "qkvo"}
                    shapes |= {f"{prefix}_{block}_b{part}": (1, DIM) for part in "qkvo"}
            shapes |= {f"{prefix}_ffn_W1": (DIM, WIDE), f"{prefix}_ffn_b1": (1, WIDE)}
            shapes |= {f"{prefix}_ffn_W2": (WIDE, DIM), f"{prefix}_ffn_b2": (1, DIM)}
            for norm in ("ffn_ffn", *("rnn_ffn" if block == "rnn" else f"{block}_Wo" for block in blocks)):
                shapes |= {f"{prefix}_{norm}_ln_{part}": (1, DIM) for part in ("scale", "bias")}
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, shape in shapes.items():  # large weights and small biases: the output depends on the source
        spread = 0.3 if name == "Wemb" else 1.0 if "_W" in name and "_ln_" not in name else 0.1
        arrays[name] = (rng.normal(0, spread, shape) + name.endswith("_ln_scale")).astype(np.float32)
    arrays["decoder_ff_logit_out_b"][0, 0] += 2.0
    return arrays


def quantised(array: NDArray[np.float32], *, transposed: bool) -> tuple[Item, NDArray[np.float32]]:
    """An intgemm8 item, and the values that it stands for."""
    multiplier = np.float32(127 / np.abs(array).max())
    whole = np.rint(array * multiplier).astype(np.int8)
    stored = whole.T if transposed else whole
    item = (INTGEMM8, array.shape, stored.tobytes() + struct.pack("<f", multiplier) + bytes(252))
    return item, whole.astype(np.float32) / multiplier


def write_marian(path: Path, items: Mapping[str, Item]) -> None:
    """Marian's binary format, version 1."""
    names = [name.encode() + b"\0" for name in items]
    head = struct.pack("<QQ", 1, len(items))
    for name, (kind, shape, data) in zip(names, items.values(), strict=True):
        head += struct.pack("<QQQQ", len(name), kind, len(shape), len(data))
    head += b"".join(names) + b"".join(struct.pack(f"<{len(s)}i", *s) for _, s, _ in items.values())
    padding = -(len(head) + 8) % 256
    head += struct.pack("<Q", padding) + bytes(padding)
    path.write_bytes(head + b"".join(data for _, _, data in items.values()))


def tiny_bergamot(folder: Path, *, seed: int = 0, **settings: object) -> dict[str, NDArray[np.float32]]:
    """A folder with a translator; returns the weights as they are after quantisation."""
    folder.mkdir(parents=True, exist_ok=True)
    items: dict[str, Item] = {}
    true: dict[str, NDArray[np.float32]] = {}
    for name, array in random_arrays(seed).items():
        if "W" in name and "_ln_" not in name:
            items[name], true[name] = quantised(array, transposed=name != "Wemb")
        else:
            items[name], true[name] = (FLOAT32, array.shape, array.tobytes()), array
    config = yaml.safe_dump({**CONFIG, **settings}).encode() + b"\0"
    items[SETTINGS] = (INT8, (len(config),), config)
    write_marian(folder / "model.tiny.bin", items)
    scores = [(piece, 0.0 if i < 2 else -float(len(VOCABULARY) - i)) for i, piece in enumerate(VOCABULARY)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return true


def translated(weights: Mapping[str, NDArray[np.float32]], source: list[int]) -> list[int]:
    """Greedy decoding of one sentence, the equations one after the other."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}

    def norm(x: F64, name: str) -> F64:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * w[f"{name}_ln_scale"] + w[f"{name}_ln_bias"]

    def attention(x: F64, to: F64, name: str) -> F64:
        q, k, v = (y @ w[f"{name}_W{p}"] + w[f"{name}_b{p}"] for y, p in ((x, "q"), (to, "k"), (to, "v")))
        size, out = DIM // HEADS, []
        for h in range(HEADS):
            part = slice(h * size, (h + 1) * size)
            scores = np.exp(q[:, part] @ k[:, part].T / math.sqrt(size))
            out.append(scores / scores.sum(-1, keepdims=True) @ v[:, part])
        return norm(x + np.concatenate(out, -1) @ w[f"{name}_Wo"] + w[f"{name}_bo"], f"{name}_Wo")

    def feed(x: F64, name: str) -> F64:
        y = np.maximum(x @ w[f"{name}_ffn_W1"] + w[f"{name}_ffn_b1"], 0)
        return norm(x + y @ w[f"{name}_ffn_W2"] + w[f"{name}_ffn_b2"], f"{name}_ffn_ffn")

    def position(at: int) -> F64:
        angles = at * 10_000.0 ** (-np.arange(DIM // 2) / (DIM // 2 - 1))
        return np.concatenate([np.sin(angles), np.cos(angles)])

    x = np.array([w["Wemb"][piece] * math.sqrt(DIM) + position(i) for i, piece in enumerate(source)])
    for layer in ("encoder_l1", "encoder_l2"):
        x = feed(attention(x, x, f"{layer}_self"), layer)
    memory, cells, written = x, [np.zeros((1, DIM)), np.zeros((1, DIM))], []
    last = np.zeros((1, DIM))
    for step in range(math.ceil(2.5 * len(source))):
        x = last + position(step)
        for n, layer in enumerate(("decoder_l1", "decoder_l2")):
            forget = 1 / (1 + np.exp(-(x @ w[f"{layer}_rnn_Wf"] + w[f"{layer}_rnn_bf"])))
            cells[n] = forget * cells[n] + (1 - forget) * (x @ w[f"{layer}_rnn_W"])
            x = norm(x + np.maximum(cells[n], 0), f"{layer}_rnn_ffn")
            x = feed(attention(x, memory, f"{layer}_context"), layer)
        logits = (x @ w["Wemb"].T + w["decoder_ff_logit_out_b"])[0]
        logits[1] = -np.inf  # the unknown piece
        piece = int(logits.argmax())
        if piece == 0:
            break
        written.append(piece)
        last = w["Wemb"][[piece]] * math.sqrt(DIM)
    return written
