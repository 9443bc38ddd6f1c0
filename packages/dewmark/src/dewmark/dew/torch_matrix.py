"""`dewmark.dew.matrix` on an accelerator, in padded batches of texts of similar length.

Up to rounding the numbers are those of one text at a time. Padding weighs 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from dewmark.arrays import F32
from dewmark.dew.matrix import cut_sizes, leading_directions, most_directions, statistic, testable, z_scores
from dewmark.dew.reading import Pairs, Reading
from dewmark.encoders.contexts import SummedContexts
from dewmark.stats.evidence import Evidence
from dewmark.stats.key_test import NOTHING, Statistic, effective_length

_ROWS = 1 << 15  # padded pairs of one batch


@torch.inference_mode()
def test_batch(
    device: torch.device, reading: Reading, *, W: F32, limit: float
) -> Iterator[tuple[Evidence, Statistic]]:
    """Test each text of a reading under the key matrix ``W`` (d_T, d_C).

    T and C of the evidence hold the rows' norms alone, since the variance is already known.
    """
    tables = _Tables(reading, W, device)
    alike: dict[int, list[int]] = {}
    for i, text in enumerate(reading.texts):
        most = most_directions(len(text.tokens), float(text.weights.sum()), d=min(W.shape))
        alike.setdefault(most, []).append(i)
    found: dict[int, tuple[Evidence, Statistic]] = {}
    for most, members in alike.items():
        for group in _groups([reading.texts[i] for i in members]):
            chosen = [members[j] for j in group]
            tested = tables.test([reading.texts[i] for i in chosen], directions=most, limit=limit)
            found |= dict(zip(chosen, tested, strict=True))
    nothing = Evidence.independent(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
    for i, text in enumerate(reading.texts):
        yield found.get(i) or (dataclasses.replace(nothing, positions=text.positions), NOTHING)


class _Tables:
    """The vectors of a batch of texts and the key's W, on the device."""

    def __init__(self, reading: Reading, W: F32, device: torch.device) -> None:
        self._device = device
        self._T = torch.from_numpy(reading.token_rows).to(device)
        self._W = torch.from_numpy(W).to(device)
        self._C = _contexts(reading.contexts, device)

    def test(
        self, texts: Sequence[Pairs], *, directions: int, limit: float
    ) -> Iterator[tuple[Evidence, Statistic]]:
        """Test texts that search for equally many directions to cut."""
        tokens, windows, weights, expected, unforeseen = _padded(texts, self._device)
        t, c = self._T[tokens], self._C[windows]
        several = ((tokens != tokens[:, :1]) & (weights > 0)).any(dim=1, keepdim=True)
        # a lone unit is not its own mean
        share = (weights / weights.sum(dim=1, keepdim=True)).float() * several
        mean = share.unsqueeze(1) @ t
        if expected is None:
            t = t - mean
        else:
            t = t - (self._T[expected] + unforeseen.unsqueeze(2) * mean) * several.unsqueeze(2)
        M = t.double().mT @ (c * weights.unsqueeze(-1))
        values, left, right = leading_directions(M.float(), directions, xp=torch)
        squares, d = M.square().sum(dim=(1, 2)).tolist(), min(M.shape[1:])
        cuts = [
            cut_sizes(sizes, square, float(text.weights.sum()), d=d, limit=limit)
            for text, sizes, square in zip(texts, values.cpu().numpy(), squares, strict=True)
        ]
        padded = np.zeros(values.shape)
        for row, sizes in zip(padded, cuts, strict=True):
            row[: len(sizes)] = sizes
        F = M - (left * torch.from_numpy(padded).to(left.device).unsqueeze(1)) @ right.mT
        kept, lengths = F.square().sum(dim=(1, 2)), (t.norm(dim=-1), c.norm(dim=-1))
        on_cpu = (
            kept,
            z_scores(F, kept, self._W.double()[None])[:, 0],
            (lengths[0] * lengths[1] * weights).square().sum(dim=1),
            ((t @ self._W) * c).sum(dim=-1),
            ((left.float().mT @ self._W) * right.float().mT).sum(dim=-1),
            *lengths,
        )
        rows = zip(texts, squares, cuts, *(each.cpu().numpy() for each in on_cpu), strict=True)
        for text, whole, cut, square, z, energy, u, along, norms, around in rows:
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
            square = float(square) if testable(float(square), whole, float(energy)) else 0.0
            yield evidence, statistic(float(z), square, effective_length(evidence, square))


def _contexts(parts: SummedContexts, device: torch.device) -> torch.Tensor:
    """ê_C (W, d_C); sums are taken on the device, from a few thousand rows."""
    rows = torch.from_numpy(parts.rows).to(device)
    rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1])))  # index -1 is the last row
    sums = rows[torch.from_numpy(parts.index).to(device)].sum(dim=1)
    return torch.nn.functional.normalize(sums, dim=-1, eps=1e-12)


def _padded(
    texts: Sequence[Pairs], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Units, contexts, weights, expectations and their shares of the texts' pairs, (B, N), padded with 0."""
    width = max(len(text.tokens) for text in texts)
    tokens, windows, expected = (np.zeros((len(texts), width), dtype=np.int64) for _ in range(3))
    weights, unforeseen = np.zeros((len(texts), width)), np.zeros((len(texts), width), dtype=np.float32)
    for i, text in enumerate(texts):
        n = len(text.tokens)
        tokens[i, :n], windows[i, :n], weights[i, :n] = text.tokens, text.windows, text.weights
        if text.expected is not None:
            expected[i, :n], unforeseen[i, :n] = text.expected, text.unforeseen
    on_device = [
        torch.from_numpy(each).to(device) for each in (tokens, windows, weights, expected, unforeseen)
    ]
    read = texts[0].expected is not None
    return on_device[0], on_device[1], on_device[2], on_device[3] if read else None, on_device[4]


def _groups(texts: Sequence[Pairs]) -> Iterator[list[int]]:
    """Indices of texts, shortest first, in batches that stay small when padded to their longest."""
    group: list[int] = []
    for i in sorted(range(len(texts)), key=lambda i: len(texts[i].tokens)):
        width = len(texts[i].tokens)
        if width == 0:
            continue
        if group and (len(group) + 1) * width > _ROWS:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
