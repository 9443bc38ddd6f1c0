"""The forward pass of Universal Sentence Encoder multilingual v3 in torch, for batches on a CUDA device.

The embedding x (512) of each piece goes through three branches of width 256 and orders n = 2, 3 and 5, each
of two residual convolutions over n neighbouring pieces. The embedding and the branches are normalised, summed
over the text and divided by √length, and a small network maps the sum to the text's vector. Convolutions are
written as matrix products: torch computes those in full float32 unless told otherwise, whereas cuDNN computes
convolutions in TF32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch.nn.functional import layer_norm, normalize, pad, relu
from torch.nn.utils.rnn import pad_sequence

from dewmark.arrays import F32, I64
from dewmark.errors import ModelError

_ORDERS = ((2, 0), (3, 1), (5, 2))  # pieces under the kernel, and how many of them come before the centre
_BUDGET = 8192  # pieces per batch, padding included


class PieceTokenizer(Protocol):
    """Tokenizes texts (`dewmark.encoders.use.USEWordTokenizer`)."""

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""


class TorchUSE:
    """The weights of one file on a device; safe to share between threads."""

    def __init__(self, weights: Path, pieces: PieceTokenizer, *, device: torch.device) -> None:
        try:
            with np.load(weights, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            chunks = [arrays.pop(f"q{i + 1}") for i in range(len(arrays["lo"]))]
            for name in ("proj{}", "proj_b{}", "ln_g{}", "ln_b{}"):  # concatenate the three branches
                joined = [arrays.pop(name.format(n)) for n, _ in _ORDERS]
                arrays[name.format("s")] = np.concatenate(joined, axis=-1)
        except (OSError, KeyError, ValueError) as error:
            raise ModelError(
                f"cannot read {weights} ({error}): delete {weights.parents[2]} and run again"
            ) from error
        self.device = device
        self._pieces = pieces
        self._eps = float(arrays.pop("eps"))
        # Row i is row i // 17 of chunk i % 17. It stays in bytes: 65 MB instead of 262 in float32.
        table = np.stack(chunks, axis=1).reshape(-1, chunks[0].shape[1])
        self._table = torch.from_numpy(table).to(device)
        self._weights = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        self.dim = int(arrays["d3"].shape[1])

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> F32:
        """N texts to (N, dim), unit rows, in batches of similar length."""
        found = self._pieces.rows(texts)
        rows = np.empty((len(found), self.dim), dtype=np.float32)
        for batch in _batches(np.fromiter(map(len, found), dtype=np.int64, count=len(found)), budget=_BUDGET):
            given = [torch.tensor(found[i]) for i in batch.tolist()]
            ids = pad_sequence(given, batch_first=True, padding_value=-1).to(self.device)
            rows[batch] = self(ids.clamp_min(0), ids >= 0).cpu().numpy()
        return rows

    def __call__(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Ids and mask (N, T), at least one piece per row, to unit rows (N, dim), float32."""
        weights, eps = self._weights, self._eps
        present = mask.to(torch.float32).unsqueeze(-1)
        chunk = ids % len(weights["lo"])
        x = self._table[ids].float() * weights["scale"][chunk, None] + weights["lo"][chunk, None]
        branches = _affine(x, weights["projs"], weights["proj_bs"])
        branches = layer_norm(branches, branches.shape[-1:], weights["ln_gs"], weights["ln_bs"], eps)
        features = [x]
        for (n, before), h in zip(_ORDERS, branches.mul_(present).chunk(len(_ORDERS), dim=-1), strict=True):
            for layer in (1, 2):
                c = _affine(_neighbours(h, n, before), weights[f"w{layer}_{n}"], weights[f"b{layer}_{n}"])
                h = (relu(c) + h).mul_(present)  # zero beyond the ends of the text
            features.append(h)
        y = torch.cat(features, dim=-1)
        y = layer_norm(y, y.shape[-1:], weights["ln_g"], weights["ln_b"], eps).mul_(present).sum(dim=1)
        length = present.sum(dim=1)
        # the projection of the sum equals the sum of projections
        y = (y @ weights["cnn_W"] + length * weights["cnn_b"]) / length.sqrt()
        y = relu(y @ weights["p1"] + relu(y @ weights["d0"]) @ weights["d1"])
        y = torch.tanh(y @ weights["p3"] + relu(y @ weights["d2"]) @ weights["d3"])
        return normalize(y, dim=-1, eps=eps**0.5)


def _affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """(N, T, a) to (N, T, b) in one matrix product."""
    return torch.addmm(bias, x.flatten(0, 1), weight).view(*x.shape[:2], -1)


def _neighbours(x: torch.Tensor, n: int, before: int) -> torch.Tensor:
    """(N, T, a) to (N, T, n a): each piece with its neighbours, zero beyond the edges."""
    tokens = x.shape[1]
    wide = pad(x, (0, 0, before, n - 1 - before))
    return torch.cat([wide[:, i : i + tokens] for i in range(n)], dim=-1)


def _batches(lengths: I64, *, budget: int) -> Iterator[I64]:
    """Indices of rows in order of length; a padded batch has at most ``budget`` ids, or one row."""
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order].tolist()
    start = 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or (end + 1 - start) * ordered[end] > budget:
            yield order[start:end]
            start = end
