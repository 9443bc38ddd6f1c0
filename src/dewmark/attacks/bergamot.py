"""The network of Bergamot's small translators ("tiny11") and its greedy decoding, for many sentences at once.

An encoder of Transformer layers and a decoder whose self-attention is a recurrent unit (SSRU): with x the
layer's input and f = σ(x W_f + b_f), its state is c = f ∘ c' + (1 − f) ∘ (x W) and its output relu(c). Every
sublayer is followed by x ← LayerNorm(x + output). Embeddings are shared by source, target and output.

The likeliest piece must not hang on rounding, which differs with a batch's shape and with the device. So a
sentence in whose decoding the best two pieces came nearer than `NEAR` is told apart (`Decoded.sure`), for the
caller to decode again in float64. Boundary: ids in, ids out; texts are `dewmark.attacks.bergamot_text`'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

from dewmark.attacks.bergamot_file import EMBEDDINGS, MarianFile
from dewmark.errors import ModelError

__all__ = ["END", "NEAR", "Decoded", "Network"]

END, UNKNOWN = 0, 1  # Marian's ids for the end of a sentence and for what no piece covers
NEAR = 2e-3
"""A difference of logits that rounding in float32 stays far below: it was seen to move one by 7e-5."""

_LENGTH_FACTOR = 2.5  # a translation has at most so many times the pieces of its source
_EPSILON = 1e-6
_EXACT = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]  # the first on a CPU; on CUDA it takes no float32
# What the settings must say for the network to be the one that is written here.
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


class Decoded(NamedTuple):
    """A translation by its ids, without the end, and whether no other choice of a piece came near."""

    ids: list[int]
    sure: bool


class Network:
    """One direction of translation, in one number type on one device."""

    def __init__(self, file: MarianFile, *, device: torch.device, dtype: torch.dtype) -> None:
        _check(file)
        self._device, self._dtype = device, dtype
        self._arrays = file.arrays
        self._heads = int(file.settings["transformer-heads"])
        self._embeddings = self._tensor(EMBEDDINGS)  # (vocab, dim)
        self._dim = self._embeddings.shape[1]
        self._output = self._embeddings.T.contiguous()  # in this order a CPU multiplies few rows faster
        self._bias = self._tensor("decoder_ff_logit_out_b").reshape(-1)
        self._bias[UNKNOWN] = -torch.inf  # never written, as in Marian
        self._encoder = [self._encoder_layer(f"encoder_l{n + 1}") for n in range(file.settings["enc-depth"])]
        self._decoder = [self._decoder_layer(f"decoder_l{n + 1}") for n in range(file.settings["dec-depth"])]

    @torch.inference_mode()
    def translate(self, sources: Sequence[Sequence[int]]) -> list[Decoded]:
        """Decode greedily; each source is a sentence's ids and ends in `END`."""
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
        rows = torch.arange(number, device=self._device)  # those still being written
        written = ids.new_zeros(number, steps)  # zeros: END
        gaps = positions.new_full((number,), torch.inf)
        states = positions.new_zeros(len(self._decoder), number, self._dim)
        last = positions.new_zeros(number, self._dim)  # no piece stands before the first
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
        """Keys and values (rows, heads, width, dim / heads) of the sources for every decoder layer."""
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
        """Logits (rows, vocab) and new states (layers, rows, dim) from the inputs (rows, dim) of a step."""
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
            raise ModelError(f"the translator has no array {name}: delete its folder and fetch it again")
        return torch.tensor(array, dtype=self._dtype, device=self._device)

    def _linear(self, *names: tuple[str, str | None]) -> _Linear:
        """Affine maps of (weight, bias) side by side; the arrays are (inputs, outputs)."""
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
    """Attention of queries (rows, heads, n, d) to what is not hidden -> (rows, n, heads · d)."""
    with sdpa_kernel(_EXACT):
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=~hidden[:, None, None])
    return mixed.transpose(1, 2).flatten(2)


def _positions(number: int, dim: int) -> torch.Tensor:
    """Marian's sinusoids (number, dim): the sines of all wavelengths, then the cosines."""
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
                f"this translator has {name}: {found!r}, dewmark knows {value!r} only: use a tiny11 model"
            )
