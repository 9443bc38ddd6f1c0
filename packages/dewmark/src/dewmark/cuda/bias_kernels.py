"""The bias mark as two Triton kernels: find each row's m likeliest tokens, then score and bias them in place.

A library call for the top m of a large vocabulary costs more than the rest of a marking step. Instead, the
first kernel reads the logits once and keeps the maxima of blocks of 32 logits and of groups of 32 blocks.
Order the blocks by their maxima, the earlier block first in case of a tie: each of the first m blocks holds a
token that comes before every token outside them, so the m likeliest tokens lie in these blocks. The same
holds for groups. So the second kernel, one program per row, selects the first m groups, then the first m of
their blocks, then the first m of their tokens; it reads these tokens' rows of Q and adds λ tanh(γu) to their
logits.

A value and its index are packed into one 64-bit number, so that sorting moves both and ties go to the smaller
index. The kernels allocate nothing and never wait for the device, so they can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

MOST = 128
"""The largest m: the second kernel sorts 32 m numbers in registers."""

BLOCK = 32
"""Logits in a block, and blocks in a group."""

_TILE = 4  # groups that one program of the first kernel reads
_CELLS = 1 << 14  # elements of Q that a program of the second kernel holds at once, at most


def maxima_of(batch: int, vocab: int, *, device: torch.device) -> torch.Tensor:
    """A workspace for `keep_maxima`, int32 (batch, blocks + groups): the maxima of each row."""
    groups = -(-vocab // (BLOCK * BLOCK * _TILE)) * _TILE
    return torch.empty(batch, groups * (BLOCK + 1), dtype=torch.int32, device=device)


@triton.jit
def _ordered(values):  # type: ignore[no-untyped-def]
    """Integers that sort like the floats; 0.0 and -0.0 are equal, and NaN is the largest."""
    bits = (values.to(tl.float32) + 0.0).to(tl.int32, bitcast=True)
    bits = tl.where(values != values, 0x7FC00000, bits)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def _top_indices(ordered, indices, KEPT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The indices of the largest values, in descending order."""
    packed = (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - indices).to(tl.int64)
    best = tl.topk(tl.reshape(packed, (ordered.numel,)), KEPT)
    return 0x7FFFFFFF - (best & 0xFFFFFFFF).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _keep_maxima(logits, maxima, vocab, stride, groups, BLOCK: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    row, tile = tl.program_id(0), tl.program_id(1)
    blocks = tile * TILE * BLOCK + tl.arange(0, TILE * BLOCK)
    ids = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    values = tl.load(logits + row.to(tl.int64) * stride + ids, mask=ids < vocab, other=float("-inf"))
    largest = tl.max(_ordered(values), axis=1)
    mine = maxima + row * groups * (BLOCK + 1)
    tl.store(mine + blocks, largest)
    of_groups = tl.max(tl.reshape(largest, (TILE, BLOCK)), axis=1)
    tl.store(mine + groups * BLOCK + tile * TILE + tl.arange(0, TILE), of_groups)


@triton.jit  # type: ignore[untyped-decorator]
def _bias_best(  # type: ignore[no-untyped-def]
    logits,
    maxima,
    Q,
    contexts,
    products,
    strength,
    gamma,
    root_n,
    stride,
    groups,
    m,
    vocab,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
    KEPT: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0)
    mine = maxima + row * groups * (BLOCK + 1)
    inner = tl.arange(0, BLOCK)[None, :]
    places = tl.arange(0, GROUPS)
    ordered = tl.load(mine + groups * BLOCK + places, mask=places < groups, other=-(1 << 31))
    places = _top_indices(ordered, places, KEPT)[:, None] * BLOCK + inner
    ordered = tl.load(mine + places, mask=places < groups * BLOCK, other=-(1 << 31))
    places = _top_indices(ordered, places, KEPT)[:, None] * BLOCK + inner
    at = logits + row.to(tl.int64) * stride
    values = tl.load(at + places, mask=places < vocab, other=float("-inf"))
    ids = _top_indices(_ordered(values), places, KEPT)
    inside = (tl.arange(0, KEPT) < m) & (ids < vocab)
    ids = tl.where(inside, ids, 0)
    u = tl.zeros((KEPT,), dtype=tl.float32)
    square = 0.0
    for start in tl.static_range(0, WIDTH, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        known = columns < WIDTH
        e = tl.load(contexts + row * WIDTH + columns, mask=known, other=0.0)
        Ge = tl.load(products + row * WIDTH + columns, mask=known, other=0.0)
        cells = Q + ids.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        rows = tl.load(cells, mask=inside[:, None] & known[None, :], other=0.0)
        u += tl.sum(rows.to(tl.float32) * e[None, :], axis=1)
        square += tl.sum(e * Ge, axis=0)
    u = tl.where(square > 0.0, u * root_n / tl.sqrt(square), 0.0)  # an empty context carries no mark
    bias = strength * (2.0 * tl.sigmoid(2.0 * gamma * u) - 1.0)
    values = tl.load(at + ids, mask=inside, other=0.0)
    tl.store(at + ids, (values.to(tl.float32) + bias).to(values.dtype), mask=inside)


def keep_maxima(logits: torch.Tensor, maxima: torch.Tensor | None = None) -> torch.Tensor:
    """Order-preserving integers of the maxima of blocks and groups of logits (batch, vocab)."""
    batch, vocab = logits.shape
    if maxima is None:
        maxima = maxima_of(batch, vocab, device=logits.device)
    groups = maxima.shape[1] // (BLOCK + 1)
    first: Any = _keep_maxima[(batch, groups // _TILE)]
    first(logits, maxima, vocab, logits.stride(0), groups, BLOCK=BLOCK, TILE=_TILE, num_warps=4)
    return maxima


def bias_top_(
    logits: torch.Tensor,
    Q: torch.Tensor,
    contexts: torch.Tensor,
    products: torch.Tensor,
    *,
    maxima: torch.Tensor,
    m: int,
    strength: float,
    gamma: float,
    n: int,
) -> torch.Tensor:
    """Add λ tanh(γu) to the m largest of each row of logits (batch, vocab), in place; m is at most `MOST`.

    ``Q`` is (vocab, d_C); ``contexts`` are e (batch, d_C), of any norm, and ``products`` eG (batch, d_C),
    float32: u = √n Q[x]·e / √(e G eᵀ). ``maxima`` is a workspace from `maxima_of`.
    """
    batch, vocab = logits.shape
    groups = maxima.shape[1] // (BLOCK + 1)
    width, kept = Q.shape[1], max(16, triton.next_power_of_2(m))
    keep_maxima(logits, maxima)
    second: Any = _bias_best[(batch,)]
    second(
        logits,
        maxima,
        Q,
        contexts,
        products,
        strength,
        gamma,
        n**0.5,
        logits.stride(0),
        groups,
        m,
        vocab,
        BLOCK=BLOCK,
        GROUPS=max(kept, triton.next_power_of_2(groups)),
        KEPT=kept,
        WIDTH=width,
        COLUMNS=min(_CELLS // kept, 256, triton.next_power_of_2(width)),
        num_warps=8,
    )
    return logits
