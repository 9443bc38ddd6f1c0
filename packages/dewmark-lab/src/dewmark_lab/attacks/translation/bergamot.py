"""Bergamot's small translation models ("tiny11"): the network, and Marian's model files.

A Transformer encoder, and a decoder that replaces self-attention by a recurrent unit (SSRU): for a layer
input x and f = σ(x W_f + b_f), the state is c = f ∘ c' + (1 − f) ∘ (x W) and the output relu(c). Every
sublayer is followed by x ← LayerNorm(x + output). Source, target and output share their embeddings. Decoding
is greedy and in float64: rounding, which varies with the batch shape and the device, then does not change a
translation.

Model files: Marian's binary format, version 1, little-endian::

    version, n                                          2 × uint64
    n × (name length, type, dimensions, bytes)          4 × uint64 each
    n names, each terminated by a zero byte
    n shapes                                            int32 each
    padding length and the padding                      uint64, bytes
    n × data

Types are float32, int8 (text such as the settings) and intgemm8: int8 elements q followed by their float32
multiplier m, for values q / m. Matrices of type intgemm8 are stored transposed, except for the embeddings.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn.functional import layer_norm, scaled_dot_product_attention

from dewmark.arrays import F32
from dewmark.errors import ModelError
from dewmark_lab.attacks.translation.split_text import OnProgress, SentenceTranslator, batches_of

END, UNKNOWN = 0, 1  # Marian's ids for the end of a sentence and the unknown piece
FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101
EMBEDDINGS = "Wemb"
SETTINGS = "special:model.yml"

_BATCH_PIECES = {"cpu": 2048, "cuda": 32768}  # pieces per batch, padding included, that keep the device busy
_LENGTH_FACTOR = 2.5  # a translation has at most this many times the pieces of its source
_EPSILON = 1e-6
_VERSION = 1

# The settings of the architecture implemented here.
_EXPECTED = {
    "type": "transformer",
    "dec-cell": "ssru",
    "transformer-decoder-autoreg": "rnn",
    "transformer-ffn-activation": "relu",
    "transformer-ffn-depth": 2,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-train-position-embeddings": False,
    "tied-embeddings-all": True,
}

Heads = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, both (rows, heads, width, dim / heads)."""


class BergamotTranslator(SentenceTranslator):
    """One direction, from a folder with Marian's binary model and a ``tokenizer.json``."""

    longest = 128

    def __init__(self, folder: Path, *, device: torch.device) -> None:
        models = sorted(folder.glob("model.*.bin"))
        if len(models) != 1:
            raise ModelError(f"{folder} has {len(models)} models, not one: delete it to download it again")
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises nothing more specific
            raise ModelError(f"cannot read {folder / 'tokenizer.json'}: {error}") from error
        self._room = _BATCH_PIECES.get(device.type, _BATCH_PIECES["cpu"])
        self._network = MarianNetwork(read_marian(models[0]), device=device)

    def pieces(self, sentence: str) -> list[int]:
        """The ids of a sentence, without the end."""
        ids: list[int] = self._tokenizer.encode(sentence).ids
        return ids

    def translate_sentences(self, sentences: Sequence[str], on_progress: OnProgress) -> list[str]:
        sources = [[*encoded.ids, END] for encoded in self._tokenizer.encode_batch(list(sentences))]
        found: dict[int, list[int]] = {}
        for batch in batches_of([len(source) for source in sources], room=self._room):
            found.update(zip(batch, self._network.translate([sources[i] for i in batch]), strict=True))
            on_progress(len(found), len(sentences))
        written: list[str] = self._tokenizer.decode_batch([found[i] for i in range(len(sentences))])
        return written


class MarianNetwork:
    """The network of one direction on a device. Weights are (inputs, outputs), by Marian's names."""

    def __init__(self, file: MarianFile, *, device: torch.device) -> None:
        for name, value in _EXPECTED.items():
            if (given := file.settings.get(name)) != value:
                raise ModelError(
                    f"this translator has {name}: {given!r}, dewmark supports only {value!r}: "
                    "use a tiny11 model"
                )
        self._device = device
        self._weights = {
            name: torch.tensor(array, dtype=torch.float64, device=device)
            for name, array in file.arrays.items()
        }
        self._heads = int(file.settings["transformer-heads"])
        self._embeddings = self._weight(EMBEDDINGS)  # (vocab, dim)
        self._dim = self._embeddings.shape[1]
        self._bias = self._weight("decoder_ff_logit_out_b").reshape(-1)
        self._bias[UNKNOWN] = -torch.inf  # never generated, as in Marian
        self._encoder = [f"encoder_l{n + 1}" for n in range(file.settings["enc-depth"])]
        self._decoder = [f"decoder_l{n + 1}" for n in range(file.settings["dec-depth"])]

    @torch.inference_mode()
    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Decode greedily; each source holds a sentence's ids and ends in `END`. The results do not."""
        width = max(len(source) for source in sources)
        padded = [[*source, *[END] * (width - len(source))] for source in sources]
        lengths = torch.tensor([len(source) for source in sources], device=self._device)
        limits = (lengths * _LENGTH_FACTOR).ceil().long()
        steps = int(limits.max())
        positions = _positions(max(width, steps), self._dim).to(self._device)
        ids = torch.tensor(padded, device=self._device)
        seen = torch.arange(width, device=self._device) < lengths[:, None]  # (rows, width): not padding
        memory = self._encode(ids, seen, positions)

        number = len(sources)
        rows = torch.arange(number, device=self._device)  # rows that are not finished
        written = ids.new_zeros(number, steps)  # zeros: END
        states = positions.new_zeros(len(self._decoder), number, self._dim)
        last = positions.new_zeros(number, self._dim)  # the first piece has no predecessor
        for step in range(steps):
            logits, states = self._step(last + positions[step], states, memory, seen)
            pieces = logits.argmax(dim=1)
            written[rows, step] = pieces
            kept = ((pieces != END) & (step + 1 < limits[rows])).nonzero()[:, 0]
            if len(kept) == 0:
                break
            rows, pieces, seen, states = rows[kept], pieces[kept], seen[kept], states[:, kept]
            memory = [(keys[kept], values[kept]) for keys, values in memory]
            last = self._embeddings[pieces] * math.sqrt(self._dim)
        return [row[: row.index(END)] if END in row else row for row in written.tolist()]

    def _encode(self, ids: torch.Tensor, seen: torch.Tensor, positions: torch.Tensor) -> list[Heads]:
        """The sources' keys and values for every decoder layer."""
        x = self._embeddings[ids] * math.sqrt(self._dim) + positions[: ids.shape[1]]
        for layer in self._encoder:
            x = self._attend(x, self._memory(x, f"{layer}_self"), seen, f"{layer}_self")
            x = self._feed(x, layer)
        return [self._memory(x, f"{layer}_context") for layer in self._decoder]

    def _step(
        self, x: torch.Tensor, states: torch.Tensor, memory: list[Heads], seen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step: inputs (rows, dim) to logits (rows, vocab) and new states (layers, rows, dim)."""
        after = []
        for layer, state, known in zip(self._decoder, states, memory, strict=True):
            forget = torch.sigmoid(self._linear(x, f"{layer}_rnn_Wf", f"{layer}_rnn_bf"))
            after.append(forget * state + (1 - forget) * (x @ self._weight(f"{layer}_rnn_W")))
            x = self._norm(x + torch.relu(after[-1]), f"{layer}_rnn_ffn")
            x = self._attend(x[:, None], known, seen, f"{layer}_context")[:, 0]
            x = self._feed(x, layer)
        return x @ self._embeddings.T + self._bias, torch.stack(after)

    def _attend(self, x: torch.Tensor, known: Heads, seen: torch.Tensor, name: str) -> torch.Tensor:
        """x (rows, n, dim) after its attention to keys and values, those of padding left out."""
        queries = self._split(self._linear(x, f"{name}_Wq", f"{name}_bq"))
        mixed = scaled_dot_product_attention(queries, *known, attn_mask=seen[:, None, None])
        mixed = mixed.transpose(1, 2).flatten(2)
        return self._norm(x + self._linear(mixed, f"{name}_Wo", f"{name}_bo"), f"{name}_Wo")

    def _memory(self, x: torch.Tensor, name: str) -> Heads:
        keys, values = (self._split(self._linear(x, f"{name}_W{part}", f"{name}_b{part}")) for part in "kv")
        return keys, values

    def _feed(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        inner = torch.relu(self._linear(x, f"{layer}_ffn_W1", f"{layer}_ffn_b1"))
        return self._norm(x + self._linear(inner, f"{layer}_ffn_W2", f"{layer}_ffn_b2"), f"{layer}_ffn_ffn")

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, width, dim) -> (rows, heads, width, dim / heads)."""
        return x.view(*x.shape[:2], self._heads, -1).transpose(1, 2)

    def _linear(self, x: torch.Tensor, weight: str, bias: str) -> torch.Tensor:
        return x @ self._weight(weight) + self._weight(bias).reshape(-1)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale, bias = (self._weight(f"{name}_ln_{part}").reshape(-1) for part in ("scale", "bias"))
        return layer_norm(x, scale.shape, scale, bias, _EPSILON)

    def _weight(self, name: str) -> torch.Tensor:
        if name not in self._weights:
            raise ModelError(f"the translator has no array {name}: delete its folder to download it again")
        return self._weights[name]


def _positions(number: int, dim: int) -> torch.Tensor:
    """Marian's position embeddings (number, dim): the sines of all wavelengths, then the cosines."""
    half = dim // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000) / max(1, half - 1)))
    angles = torch.arange(number, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


@dataclass(frozen=True)
class MarianFile:
    """A model's settings and its arrays by name."""

    settings: dict[str, Any]
    arrays: dict[str, F32]


def read_marian(path: Path) -> MarianFile:
    """Read a model file."""
    try:
        return _parse(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (struct.error, ValueError) as error:
        raise ModelError(
            f"{path.name} is not a Marian model of version {_VERSION} ({error}): delete it to download again"
        ) from error


def _parse(data: bytes) -> MarianFile:
    import yaml

    version, number = struct.unpack_from("<QQ", data, 0)
    if version != _VERSION:
        raise ValueError(f"version {version}")
    at = 16
    heads = list(struct.iter_unpack("<QQQQ", data[at : at + 32 * number]))
    if len(heads) != number:
        raise ValueError("truncated")
    at += 32 * number
    names, shapes = [], []
    for length, _, _, _ in heads:
        names.append(data[at : at + length].rstrip(b"\0").decode("utf-8"))
        at += length
    for _, _, dimensions, _ in heads:
        shapes.append(struct.unpack_from(f"<{dimensions}i", data, at))
        at += 4 * dimensions
    (padding,) = struct.unpack_from("<Q", data, at)
    at += 8 + padding
    arrays: dict[str, F32] = {}
    settings: dict[str, Any] = {}
    for name, (_, kind, _, size), shape in zip(names, heads, shapes, strict=True):
        item = data[at : at + size]
        at += size
        if name == SETTINGS:
            settings = yaml.safe_load(item.rstrip(b"\0").decode("utf-8"))
        elif kind != INT8:
            arrays[name] = _array(item, kind, shape, transposed=name != EMBEDDINGS)
    if at > len(data):
        raise ValueError("truncated")
    if not settings or not arrays:
        raise ValueError("no settings or no arrays")
    return MarianFile(settings, arrays)


def _array(item: bytes, kind: int, shape: tuple[int, ...], *, transposed: bool) -> F32:
    count = math.prod(shape)
    if kind == FLOAT32:
        return np.frombuffer(item, "<f4", count).reshape(shape)
    if kind != INTGEMM8:
        raise ValueError(f"unknown type {kind:#x}")
    (multiplier,) = struct.unpack_from("<f", item, count)
    values = np.frombuffer(item, np.int8, count).astype(np.float32) / np.float32(multiplier)
    return values.reshape(shape[::-1]).T if transposed else values.reshape(shape)
