"""The bias mark on a GPU as two kernels: find each row's m likeliest tokens, score and bias them in place.

A library call for the top m of a large vocabulary costs more than all the rest of a marking step. Here every
block of the vocabulary keeps its own m best, and one program per row merges them, reads their rows of Q,
and adds λ tanh(γu) to their logits. A logit and its id travel as one 64-bit number, so that sorting moves
both and ties go to the smaller id. Nothing is allocated and nothing waits for the device: both kernels can
be captured in a CUDA graph. Needs Triton, which comes with torch for CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["bias_top_", "blocks_of"]

_BLOCK = 1024


def blocks_of(vocab: int) -> int:
    """How many blocks a vocabulary is cut into: the second size of the workspace of `bias_top_`."""
    return -(-vocab // _BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _best_of_blocks(logits, best, vocab, stride, BLOCK: tl.constexpr, KEPT: tl.constexpr):  # type: ignore[no-untyped-def]
    row, block = tl.program_id(0), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row.to(tl.int64) * stride + ids, mask=ids < vocab, other=float("-inf"))
    bits = values.to(tl.float32).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # integers in the order of the floats
    packed = (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
    kept = tl.topk(packed, KEPT)
    place = (row * tl.num_programs(1) + block) * KEPT + tl.arange(0, KEPT)
    tl.store(best + place, kept)


@triton.jit  # type: ignore[untyped-decorator]
def _bias_best(  # type: ignore[no-untyped-def]
    logits,
    best,
    Q,
    contexts,
    products,
    strength,
    gamma,
    root_n,
    stride,
    kept_in_row,
    m,
    vocab,
    width,
    ALL: tl.constexpr,
    KEPT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0)
    places = tl.arange(0, ALL)
    packed = tl.load(best + row * kept_in_row + places, mask=places < kept_in_row, other=-(1 << 63))
    top = tl.topk(packed, KEPT)  # from the largest down
    ids = 0x7FFFFFFF - (top & 0xFFFFFFFF)
    inside = (tl.arange(0, KEPT) < m) & (ids < vocab)
    ids = tl.where(inside, ids, 0)
    columns = tl.arange(0, WIDTH)
    e = tl.load(contexts + row * width + columns, mask=columns < width, other=0.0)
    Ge = tl.load(products + row * width + columns, mask=columns < width, other=0.0)
    length = tl.sqrt(tl.sum(e * Ge, axis=0))
    rows = tl.load(
        Q + ids[:, None] * width + columns[None, :],
        mask=inside[:, None] & (columns < width)[None, :],
        other=0.0,
    )
    u = tl.sum(rows.to(tl.float32) * e[None, :], axis=1) * root_n / length
    u = tl.where(length > 0.0, u, 0.0)  # an empty context carries no mark
    bias = strength * (2.0 * tl.sigmoid(2.0 * gamma * u) - 1.0)
    at = logits + row.to(tl.int64) * stride + ids
    values = tl.load(at, mask=inside, other=0.0)
    tl.store(at, (values.to(tl.float32) + bias).to(values.dtype), mask=inside)


def bias_top_(
    logits: torch.Tensor,
    Q: torch.Tensor,
    contexts: torch.Tensor,
    products: torch.Tensor,
    *,
    best: torch.Tensor,
    m: int,
    strength: float,
    gamma: float,
    n: int,
) -> torch.Tensor:
    """Add λ tanh(γu) to the m largest of each row of logits (batch, vocab), in place.

    ``Q`` (vocab, d_C); ``contexts`` e (batch, d_C) of any length and ``products`` eG (batch, d_C), float32:
    u = √n Q[x]·e / √(e G eᵀ), whatever the length of e. ``best`` (batch, blocks, m rounded up to a power of
    two) int64 is workspace.
    """
    batch, vocab = logits.shape
    kept = best.shape[-1]
    blocks: Any = _best_of_blocks[(batch, best.shape[1])]
    blocks(logits, best, vocab, logits.stride(0), BLOCK=_BLOCK, KEPT=kept, num_warps=4)
    rows: Any = _bias_best[(batch,)]
    rows(
        logits,
        best,
        Q,
        contexts,
        products,
        strength,
        gamma,
        n**0.5,
        logits.stride(0),
        best.shape[1] * kept,
        m,
        vocab,
        Q.shape[1],
        ALL=triton.next_power_of_2(best.shape[1] * kept),
        KEPT=kept,
        WIDTH=triton.next_power_of_2(Q.shape[1]),
        num_warps=8,
    )
    return logits
