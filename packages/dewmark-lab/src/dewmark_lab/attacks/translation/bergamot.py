"""Bergamot's small translation models ("tiny11"): the network, and Marian's model files.

Texts: `split_text` splits them; the sentences of all texts are sorted by length and translated in batches.

Network: a Transformer encoder, and a decoder that replaces self-attention by a recurrent unit (SSRU): for a
layer input x and f = σ(x W_f + b_f), the state is c = f ∘ c' + (1 − f) ∘ (x W) and the output relu(c). Every
sublayer is followed by x ← LayerNorm(x + output). Source, target and output share their embeddings. Decoding
is greedy, and rounding, which varies with the batch shape and the device, must not change the translation: a
sentence for which the two best pieces ever come closer than `NEAR` is decoded again in float64.

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

import functools
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

from dewmark.arrays import F32
from dewmark.errors import ModelError
from dewmark_lab.attacks.translation.split_text import OnProgress, batches_of, translate_texts

LONGEST = 128
"""The most pieces per sentence; longer sentences are split."""
NEAR = 2e-3
"""A logit difference far above float32 rounding, which was observed to change one by 7e-5."""
END, UNKNOWN = 0, 1  # Marian's ids for the end of a sentence and the unknown piece
FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101
EMBEDDINGS = "Wemb"
SETTINGS = "special:model.yml"

_BATCH_PIECES = {"cpu": 2048, "cuda": 32768}  # pieces per batch, padding included, that keep the device busy
_LENGTH_FACTOR = 2.5  # a translation has at most this many times the pieces of its source
_EPSILON = 1e-6
_EXACT = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]  # flash on a CPU; on CUDA it does not take float32
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


class TextTranslator:
    """One direction, from a folder with Marian's binary model and a ``tokenizer.json``."""

    def __init__(self, folder: Path, *, device: torch.device) -> None:
        models = sorted(folder.glob("model.*.bin"))
        if len(models) != 1:
            raise ModelError(f"{folder} has {len(models)} models, not one: delete it to download it again")
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises nothing more specific
            raise ModelError(f"cannot read {folder / 'tokenizer.json'}: {error}") from error
        self._file: MarianFile = read_marian(models[0])
        self._device = device
        self._network = Network(self._file, device=device, dtype=torch.float32)

    def translate(self, texts: Sequence[str], *, on_progress: OnProgress) -> list[str]:
        """Translate texts; ``on_progress`` gets the number of finished sentences and of all sentences."""
        return translate_texts(
            texts, too_long=self._too_long, translate=lambda given: self._translate(given, on_progress)
        )

    def _too_long(self, sentence: str) -> bool:
        # a piece has at least one character, so most sentences need no tokenizing
        return len(sentence) > LONGEST and len(self._tokenizer.encode(sentence).ids) > LONGEST

    def _translate(self, given: Sequence[str], on_progress: OnProgress) -> list[str]:
        sources = [[*encoded.ids, END] for encoded in self._tokenizer.encode_batch(list(given))]
        order = sorted(range(len(given)), key=lambda i: len(sources[i]))
        found: dict[int, list[int]] = {}
        unsure: list[int] = []
        for batch in self._batches(order, sources):
            for i, decoded in zip(batch, self._network.translate([sources[i] for i in batch]), strict=True):
                found[i] = decoded.ids
                if not decoded.sure:
                    unsure.append(i)
            on_progress(len(found) - len(unsure), len(given))
        for batch in self._batches(unsure, sources):
            for i, decoded in zip(batch, self._exact.translate([sources[i] for i in batch]), strict=True):
                found[i] = decoded.ids
        on_progress(len(given), len(given))
        written: list[str] = self._tokenizer.decode_batch([found[i] for i in range(len(given))])
        return written

    def _batches(self, order: Sequence[int], sources: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Consecutive sentences, as many per batch as the device handles well."""
        room = _BATCH_PIECES.get(self._device.type, _BATCH_PIECES["cpu"])
        return batches_of(order, list(map(len, sources)), room=room)

    @functools.cached_property
    def _exact(self) -> Network:
        return Network(self._file, device=self._device, dtype=torch.float64)


class Decoded(NamedTuple):
    """A translation's ids without the end, and whether every choice of a piece was clear."""

    ids: list[int]
    sure: bool


class Network:
    """The network of one direction, with one dtype on one device."""

    def __init__(self, file: MarianFile, *, device: torch.device, dtype: torch.dtype) -> None:
        _check(file)
        self._device, self._dtype = device, dtype
        self._arrays = file.arrays
        self._heads = int(file.settings["transformer-heads"])
        self._embeddings = self._tensor(EMBEDDINGS)  # (vocab, dim)
        self._dim = self._embeddings.shape[1]
        self._output = self._embeddings.T.contiguous()  # this layout is faster on a CPU for few rows
        self._bias = self._tensor("decoder_ff_logit_out_b").reshape(-1)
        self._bias[UNKNOWN] = -torch.inf  # never generated, as in Marian
        self._encoder = [self._encoder_layer(f"encoder_l{n + 1}") for n in range(file.settings["enc-depth"])]
        self._decoder = [self._decoder_layer(f"decoder_l{n + 1}") for n in range(file.settings["dec-depth"])]

    @torch.inference_mode()
    def translate(self, sources: Sequence[Sequence[int]]) -> list[Decoded]:
        """Decode greedily; each source holds a sentence's ids and ends in `END`."""
        width = max(len(source) for source in sources)
        padded = [[*source, *[END] * (width - len(source))] for source in sources]
        lengths = torch.tensor([len(source) for source in sources], device=self._device)
        limits = (lengths * _LENGTH_FACTOR).ceil().long()
        steps = int(limits.max())
        positions = _positions(max(width, steps), self._dim).to(self._device, self._dtype)
        ids = torch.tensor(padded, device=self._device)
        hidden = torch.arange(width, device=self._device) >= lengths[:, None]  # (rows, width): padding
        memory = self._encode(ids, hidden, positions)

        number = len(sources)
        rows = torch.arange(number, device=self._device)  # rows that are not finished
        written = ids.new_zeros(number, steps)  # zeros: END
        gaps = positions.new_full((number,), torch.inf)
        states = positions.new_zeros(len(self._decoder), number, self._dim)
        last = positions.new_zeros(number, self._dim)  # the first piece has no predecessor
        for step in range(steps):
            logits, states = self._step(last + positions[step], states, memory, hidden)
            best, pieces = logits.max(dim=1)
            second = logits.scatter_(1, pieces[:, None], -torch.inf).amax(dim=1)
            gaps[rows] = torch.minimum(gaps[rows], best - second)
            written[rows, step] = pieces
            going = (pieces != END) & (step + 1 < limits[rows])
            kept = going.nonzero()[:, 0]
            if len(kept) == 0:
                break
            if len(kept) < len(rows):
                rows, pieces, hidden = rows[kept], pieces[kept], hidden[kept]
                states = states[:, kept]
                memory = [(keys[kept], values[kept]) for keys, values in memory]
            last = self._embeddings[pieces] * math.sqrt(self._dim)
        sure = (gaps >= NEAR).tolist()
        return [Decoded(_until_end(row), ok) for row, ok in zip(written.tolist(), sure, strict=True)]

    def _encode(
        self, ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The sources' keys and values (rows, heads, width, dim / heads) for every decoder layer."""
        x = self._embeddings[ids] * math.sqrt(self._dim) + positions[: ids.shape[1]]
        for layer in self._encoder:
            queries, keys, values = (self._split(part) for part in layer.qkv(x).chunk(3, dim=-1))
            x = layer.norm(x + layer.out(_attend(queries, keys, values, hidden)))
            x = layer.feed(x)
        return [
            (self._split(keys), self._split(values))
            for keys, values in (layer.kv(x).chunk(2, dim=-1) for layer in self._decoder)
        ]

    def _step(
        self,
        x: torch.Tensor,
        states: torch.Tensor,
        memory: list[tuple[torch.Tensor, torch.Tensor]],
        hidden: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step: inputs (rows, dim) to logits (rows, vocab) and new states (layers, rows, dim)."""
        after = []
        for layer, state, (keys, values) in zip(self._decoder, states, memory, strict=True):
            new, forget = layer.cell(x).chunk(2, dim=-1)
            forget = torch.sigmoid(forget)
            after.append(forget * state + (1 - forget) * new)
            x = layer.cell_norm(x + torch.relu(after[-1]))
            query = self._split(layer.query(x)[:, None])
            x = layer.norm(x + layer.out(_attend(query, keys, values, hidden)[:, 0]))
            x = layer.feed(x)
        return torch.addmm(self._bias, x, self._output), torch.stack(after)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, width, dim) -> (rows, heads, width, dim / heads)."""
        return x.view(*x.shape[:2], self._heads, -1).transpose(1, 2)

    def _tensor(self, name: str) -> torch.Tensor:
        array = self._arrays.get(name)
        if array is None:
            raise ModelError(f"the translator has no array {name}: delete its folder to download it again")
        return torch.tensor(array, dtype=self._dtype, device=self._device)

    def _linear(self, *names: tuple[str, str | None]) -> _Linear:
        """Affine maps, given by (weight, bias) names, side by side; weights are (inputs, outputs)."""
        weights = [self._tensor(weight) for weight, _ in names]
        biases = [
            self._tensor(bias).reshape(-1) if bias else weight.new_zeros(weight.shape[1])
            for weight, (_, bias) in zip(weights, names, strict=True)
        ]
        return _Linear(torch.cat(weights, dim=1), torch.cat(biases))

    def _norm(self, prefix: str) -> _Norm:
        return _Norm(*(self._tensor(f"{prefix}_ln_{part}").reshape(-1) for part in ("scale", "bias")))

    def _feed(self, prefix: str) -> _Feed:
        first, second = (self._linear((f"{prefix}_ffn_W{n}", f"{prefix}_ffn_b{n}")) for n in (1, 2))
        return _Feed(first, second, self._norm(f"{prefix}_ffn_ffn"))

    def _encoder_layer(self, prefix: str) -> _EncoderLayer:
        own = f"{prefix}_self"
        return _EncoderLayer(
            qkv=self._linear(*((f"{own}_W{part}", f"{own}_b{part}") for part in "qkv")),
            out=self._linear((f"{own}_Wo", f"{own}_bo")),
            norm=self._norm(f"{own}_Wo"),
            feed=self._feed(prefix),
        )

    def _decoder_layer(self, prefix: str) -> _DecoderLayer:
        cell, context = f"{prefix}_rnn", f"{prefix}_context"
        return _DecoderLayer(
            cell=self._linear((f"{cell}_W", None), (f"{cell}_Wf", f"{cell}_bf")),
            cell_norm=self._norm(f"{cell}_ffn"),
            query=self._linear((f"{context}_Wq", f"{context}_bq")),
            kv=self._linear(*((f"{context}_W{part}", f"{context}_b{part}") for part in "kv")),
            out=self._linear((f"{context}_Wo", f"{context}_bo")),
            norm=self._norm(f"{context}_Wo"),
            feed=self._feed(prefix),
        )


class _Linear(NamedTuple):
    weight: torch.Tensor  # (inputs, outputs)
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight.T, self.bias)


class _Norm(NamedTuple):
    scale: torch.Tensor
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.scale.shape, self.scale, self.bias, _EPSILON)


class _Feed(NamedTuple):
    first: _Linear
    second: _Linear
    norm: _Norm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.second(torch.relu(self.first(x))))


class _EncoderLayer(NamedTuple):
    qkv: _Linear
    out: _Linear
    norm: _Norm
    feed: _Feed


class _DecoderLayer(NamedTuple):
    cell: _Linear
    cell_norm: _Norm
    query: _Linear
    kv: _Linear
    out: _Linear
    norm: _Norm
    feed: _Feed


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Attention of queries (rows, heads, n, d) to unmasked positions -> (rows, n, heads · d)."""
    with sdpa_kernel(_EXACT):
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=~hidden[:, None, None])
    return mixed.transpose(1, 2).flatten(2)


def _positions(number: int, dim: int) -> torch.Tensor:
    """Marian's position embeddings (number, dim): the sines of all wavelengths, then the cosines."""
    half = dim // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000) / max(1, half - 1)))
    angles = torch.arange(number, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _until_end(row: list[int]) -> list[int]:
    return row[: row.index(END)] if END in row else row


def _check(file: MarianFile) -> None:
    for name, value in _EXPECTED.items():
        found = file.settings.get(name)
        if found != value:
            raise ModelError(
                f"this translator has {name}: {found!r}, dewmark supports only {value!r}: use a tiny11 model"
            )


@dataclass(frozen=True)
class MarianFile:
    """A model's settings and its arrays by name."""

    settings: dict[str, Any]
    arrays: dict[str, F32]


def read_marian(path: Path) -> MarianFile:
    """Read a model file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    try:
        return _parse(data)
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
