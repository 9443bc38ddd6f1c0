"""The key test of many texts on an accelerator, in padded batches of texts of similar length.

Up to float32 rounding the numbers are those that `dewmark.dew.detection` and `dewmark.stats.key_test` give
one text at a time: u of every pair, and the variance Σ_ij w_i w_j f(ρ_ij) of their sum over keys. Padding
weighs 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F32, F64
from dewmark.dew.detection import saturate
from dewmark.dew.projection import scale_contexts
from dewmark.dew.reading import Pairs, Reading
from dewmark.dew.settings import DewSettings
from dewmark.stats.evidence import Evidence
from dewmark.stats.score_law import tanh_kernel

__all__ = ["MAX_PAIRS", "score_batch"]

MAX_PAIRS = 4096  # per text; the covariance of a longer one is better summed in blocks
_ROWS = 1 << 15  # padded pairs of one batch
_CELLS = 1 << 26  # entries of its covariance matrices


@torch.inference_mode()
def score_batch(
    device: torch.device,
    reading: Reading,
    *,
    Q: F32,
    G: F32,
    n: int,
    scheme: DewSettings,
) -> list[tuple[Evidence, float]]:
    """The evidence of each text of a reading, and the variance of its sum over keys.

    ``Q`` (V, d_C) are the units' rows under the key. T and C of the evidence are mere labels, since the
    variance is already known.
    """
    tables = _Tables(reading, Q, G, n, device)
    kernel = (1.0,) if scheme.scores_linearly else tanh_kernel(scheme.gamma)
    nothing = Evidence.independent(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
    found = [(dataclasses.replace(nothing, positions=text.positions), 0.0) for text in reading.texts]
    for group in _groups(reading.texts):
        pairs = [reading.texts[i] for i in group]
        u, variances = tables.score(pairs, kernel=kernel, subtract_mean=scheme.subtract_text_mean)
        for i, mine, row, variance in zip(group, pairs, u, variances, strict=True):
            aligned = row[: len(mine.tokens)].astype(np.float32)
            values = aligned.astype(np.float64)
            evidence = Evidence(
                scores=values if scheme.scores_linearly else saturate(values, gamma=scheme.gamma),
                alignments=aligned,
                weights=mine.weights,
                positions=mine.positions,
                T=mine.tokens,
                C=mine.windows,
                kernel=kernel,
            )
            found[i] = (evidence, float(variance))
    return found


class _Tables:
    """The vectors of a batch of texts on the device."""

    def __init__(self, reading: Reading, Q: F32, G: F32, n: int, device: torch.device) -> None:
        self._device = device
        self._T, self._Q = (torch.from_numpy(x).to(device) for x in (reading.token_rows, Q))
        self._C = self._contexts(reading)
        self._scaled = scale_contexts(self._C, torch.from_numpy(np.array(G)).to(device), n)

    def _contexts(self, reading: Reading) -> torch.Tensor:
        """ê_C (W, d_C); sums are taken on the device, from a few thousand rows."""
        parts = reading.parts
        if parts is None:
            assert reading.context_rows is not None
            return torch.from_numpy(reading.context_rows).to(self._device)
        rows = torch.from_numpy(parts.rows).to(self._device)
        rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1])))  # index -1 is the last row
        sums = rows[torch.from_numpy(parts.index).to(self._device)].sum(dim=1)
        return torch.nn.functional.normalize(sums, dim=-1, eps=1e-12)

    def score(
        self, texts: Sequence[Pairs], *, kernel: tuple[float, ...], subtract_mean: bool
    ) -> tuple[F32, F64]:
        """u (B, N) of the texts' pairs, padded, and the variances (B,) of their sums."""
        tokens, windows = (self._padded([getattr(t, name) for t in texts]) for name in ("tokens", "windows"))
        w = self._padded([text.weights for text in texts]).float()
        t, q, c = self._T[tokens], self._Q[tokens], self._C[windows]
        if subtract_mean:
            several = [len(np.unique(text.tokens)) > 1 for text in texts]  # a lone token is not its own mean
            share = w / w.sum(dim=1, keepdim=True)
            share *= torch.tensor(several, device=self._device).unsqueeze(1)
            t = t - share.unsqueeze(1) @ t
            q = q - share.unsqueeze(1) @ q
            plain = (w == 0) | ~torch.tensor(several, device=self._device).unsqueeze(1)
            norms = t.norm(dim=-1).masked_fill(plain, 1.0).unsqueeze(-1)
            t, q = t / norms, q / norms
        u = (q * self._scaled[windows]).sum(dim=-1)
        rho = (t @ t.mT) * (c @ c.mT)
        variance = ((_power_series(rho, kernel) @ w.unsqueeze(-1)).squeeze(-1).double() * w.double()).sum(
            dim=1
        )
        return u.cpu().numpy(), variance.cpu().numpy()

    def _padded(self, rows: Sequence[NDArray[np.generic]]) -> torch.Tensor:
        width = max(map(len, rows))
        out = np.zeros((len(rows), width), dtype=rows[0].dtype)
        for line, row in zip(out, rows, strict=True):
            line[: len(row)] = row
        return torch.from_numpy(out).to(self._device)


def _power_series(rho: torch.Tensor, coefficients: tuple[float, ...]) -> torch.Tensor:
    """Σ_j coefficients[j] ρ^(j+1), elementwise."""
    total = torch.full_like(rho, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * rho + c
    return total * rho


def _groups(texts: Sequence[Pairs]) -> Iterator[list[int]]:
    """Indices of texts, shortest first, in batches that stay small when padded to their longest."""
    group: list[int] = []
    for i in sorted(range(len(texts)), key=lambda i: len(texts[i].tokens)):
        width = len(texts[i].tokens)
        if width == 0:
            continue
        if group and (len(group) + 1) * width > min(_ROWS, _CELLS // width):
            yield group
            group = []
        group.append(i)
    if group:
        yield group
