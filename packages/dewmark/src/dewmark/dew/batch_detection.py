"""The key test of many texts on an accelerator, in padded batches of texts of similar length.

Up to float32 rounding the numbers are those that `dewmark.dew.detection` and `dewmark.stats.key_test` give
one text at a time: u of every pair, and the variance Σ_ij w_i w_j f(ρ_ij) of their sum over keys. Padding
weighs 0.

`flat_batch` serves full key matrices, where a text is one matrix M that is flattened; `score_batch` serves
pairs of projections.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from dewmark.arrays import F32, F64
from dewmark.dew.detection import saturate
from dewmark.dew.projection import scale_contexts
from dewmark.dew.reading import Pairs, Reading
from dewmark.dew.settings import DewSettings
from dewmark.dew.text_matrix import cut_sizes, leading_directions, most_directions, testable
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, key_test
from dewmark.stats.score_law import tanh_kernel

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
        self._C = _contexts(reading, device)
        self._scaled = scale_contexts(self._C, torch.from_numpy(np.array(G)).to(device), n)

    def score(
        self, texts: Sequence[Pairs], *, kernel: tuple[float, ...], subtract_mean: bool
    ) -> tuple[F32, F64]:
        """u (B, N) of the texts' pairs, padded, and the variances (B,) of their sums."""
        tokens, windows, weights = _padded(texts, self._device)
        w = weights.float()
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


@torch.inference_mode()
def flat_batch(
    device: torch.device, reading: Reading, *, W: F32, scheme: DewSettings
) -> Iterator[tuple[Evidence, Statistic]]:
    """Test each text of a reading under the key matrix ``W`` (d_T, d_C).

    T and C of the evidence hold the rows' norms alone, since the variance is already known.
    """
    tables = _FlatTables(reading, W, device)
    alike: dict[int, list[int]] = {}
    for i, text in enumerate(reading.texts):
        most = most_directions(len(text.tokens), float(text.weights.sum()), d=min(W.shape))
        alike.setdefault(most, []).append(i)
    found: dict[int, tuple[Evidence, Statistic]] = {}
    for most, members in alike.items():
        for group in _groups([reading.texts[i] for i in members]):
            chosen = [members[j] for j in group]
            tested = tables.test([reading.texts[i] for i in chosen], directions=most, scheme=scheme)
            found |= dict(zip(chosen, tested, strict=True))
    nothing = Evidence.independent(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
    for i, text in enumerate(reading.texts):
        yield found.get(i) or (dataclasses.replace(nothing, positions=text.positions), NOTHING)


class _FlatTables:
    """The vectors of a batch of texts under a full key matrix, on the device."""

    def __init__(self, reading: Reading, W: F32, device: torch.device) -> None:
        self._device = device
        self._T = torch.from_numpy(reading.token_rows).to(device)
        self._Q = self._T @ torch.from_numpy(W).to(device)
        self._C = _contexts(reading, device)

    def test(
        self, texts: Sequence[Pairs], *, directions: int, scheme: DewSettings
    ) -> Iterator[tuple[Evidence, Statistic]]:
        """Test texts that search for equally many directions to cut."""
        assert scheme.flatten is not None
        tokens, windows, weights = _padded(texts, self._device)
        t, q, c = self._T[tokens], self._Q[tokens], self._C[windows]
        if scheme.subtract_text_mean:
            several = ((tokens != tokens[:, :1]) & (weights > 0)).any(dim=1, keepdim=True)
            # a lone unit is not its own mean
            share = (weights / weights.sum(dim=1, keepdim=True)).float() * several
            t, q = (rows - share.unsqueeze(1) @ rows for rows in (t, q))
        weighted = c * weights.float().unsqueeze(-1)
        matrices = t.double().mT @ weighted.double()
        values, left, right = leading_directions(matrices.float(), directions, xp=torch)
        squares = matrices.square().sum(dim=(1, 2)).tolist()
        limit, d = scheme.flatten, min(matrices.shape[1:])
        cuts = [
            cut_sizes(sizes, square, float(text.weights.sum()), d=d, limit=limit)
            for text, sizes, square in zip(texts, values.cpu().numpy(), squares, strict=True)
        ]
        padded = np.zeros(values.shape)
        for row, sizes in zip(padded, cuts, strict=True):
            row[: len(sizes)] = sizes
        flat = matrices - (left * torch.from_numpy(padded).to(left.device).unsqueeze(1)) @ right.mT
        # left_j = Σ_i shares_ji t_i, so that it is known under the key as soon as the units are
        shares = (weighted @ right.float() / values.clip(1e-6).float().unsqueeze(1)).mT
        lengths = t.norm(dim=-1), c.norm(dim=-1)
        on_cpu = (
            flat.square().sum(dim=(1, 2)),
            (lengths[0] * lengths[1] * weights).square().sum(dim=1),
            (q * c).sum(dim=-1),
            ((shares @ q) * right.float().mT).sum(dim=-1),
            *lengths,
        )
        rows = zip(texts, squares, cuts, *(each.cpu().numpy() for each in on_cpu), strict=True)
        for text, square, cut, kept, energy, u, along, norms, around in rows:
            n = len(text.tokens)
            u, norms, along = u[:n], norms[:n], along[: len(cut)]
            shown = np.divide(u, norms, out=np.zeros_like(u), where=norms > 0.0)
            evidence = Evidence(
                scores=np.concatenate((u, along)).astype(np.float64),
                alignments=np.concatenate((shown, along)),
                weights=np.concatenate((text.weights, -cut)),
                positions=text.positions,
                T=norms[:, None],
                C=around[:n, None],
                kernel=(1.0,),
                extra=len(cut),
                unit_rows=False,
            )
            variance = float(kept) if testable(float(kept), square, float(energy)) else 0.0
            yield evidence, key_test(evidence, variance=variance)


def _contexts(reading: Reading, device: torch.device) -> torch.Tensor:
    """ê_C (W, d_C); sums are taken on the device, from a few thousand rows."""
    parts = reading.parts
    if parts is None:
        assert reading.context_rows is not None
        return torch.from_numpy(reading.context_rows).to(device)
    rows = torch.from_numpy(parts.rows).to(device)
    rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1])))  # index -1 is the last row
    sums = rows[torch.from_numpy(parts.index).to(device)].sum(dim=1)
    return torch.nn.functional.normalize(sums, dim=-1, eps=1e-12)


def _padded(texts: Sequence[Pairs], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Units, contexts and weights of the texts' pairs, (B, N) each, padded with weight 0."""
    width = max(len(text.tokens) for text in texts)
    tokens, windows = (np.zeros((len(texts), width), dtype=np.int64) for _ in range(2))
    weights = np.zeros((len(texts), width))
    for i, text in enumerate(texts):
        n = len(text.tokens)
        tokens[i, :n], windows[i, :n], weights[i, :n] = text.tokens, text.windows, text.weights
    return (
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(windows).to(device),
        torch.from_numpy(weights).to(device),
    )


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
