"""Two Triton kernels for encoders of short texts: attention over a few tokens, and add-and-normalise.

The libraries' attention kernels are made for long texts: on a window of eight tokens they occupy a whole
multiprocessor with tiles that are nearly all padding, which also delays a language model that runs beside
them. Here one program computes one head of one text. The kernels never wait for the device, so they can be
captured in a CUDA graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MOST_TOKENS = 64
"""The longest text, whose scores fit in a program's registers."""

_LEAST = 16  # the smallest side of a matrix product
_BELOW = tl.constexpr(-1e30)  # the score of padding; finite, so that a row may be all padding


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    qkv, mask, out, tokens, width, scale, HEAD: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr
):
    text, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, c = tl.arange(0, TOKENS), tl.arange(0, COLUMNS)
    inside = (t[:, None] < tokens) & (c[None, :] < HEAD)
    row = text * tokens + t
    at = qkv + row[:, None] * (3 * width) + head * HEAD + c[None, :]
    q = tl.load(at, mask=inside, other=0.0)
    k = tl.load(at + width, mask=inside, other=0.0)
    v = tl.load(at + 2 * width, mask=inside, other=0.0)
    present = tl.load(mask + row, mask=t < tokens, other=0) != 0
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(present[None, :], scores, _BELOW)
    shares = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    shares = shares / tl.sum(shares, axis=1)[:, None]
    mixed = tl.dot(shares.to(v.dtype), v, input_precision="ieee")
    tl.store(out + row[:, None] * width + head * HEAD + c[None, :], mixed.to(v.dtype), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(x, y, weight, bias, out, width, eps, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    inside = c < width
    left = tl.load(x + row * width + c, mask=inside, other=0.0)
    right = tl.load(y + row * width + c, mask=inside, other=0.0)
    total = (left.to(tl.float32) + right.to(tl.float32)).to(left.dtype).to(tl.float32)
    centred = tl.where(inside, total - tl.sum(total, axis=0) / width, 0.0)
    scaled = centred / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps)
    gain = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + c, (scaled * gain + shift).to(left.dtype), mask=inside)


def attend(qkv: torch.Tensor, mask: torch.Tensor, *, heads: int) -> torch.Tensor:
    """Multi-head attention: queries, keys and values side by side, (N, T, 3 * width), to (N, T, width).

    ``mask`` (N, T) is 0 at padding; T is at most `MOST_TOKENS`.
    """
    qkv, mask = qkv.contiguous(), mask.contiguous()
    texts, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    head = width // heads
    out = qkv.new_empty(texts, tokens, width)
    _attend[(texts, heads)](
        qkv,
        mask,
        out,
        tokens,
        width,
        head**-0.5,
        HEAD=head,
        TOKENS=max(triton.next_power_of_2(tokens), _LEAST),
        COLUMNS=max(triton.next_power_of_2(head), _LEAST),
        num_warps=1 if tokens <= _LEAST else 4,
    )
    return out


def add_norm(x: torch.Tensor, y: torch.Tensor, norm: torch.nn.LayerNorm) -> torch.Tensor:
    """``norm(x + y)`` in one pass; both are contiguous and (..., width)."""
    width = x.shape[-1]
    out = torch.empty_like(x)
    _add_norm[(x.numel() // width,)](
        x, y, norm.weight, norm.bias, out, width, norm.eps, COLUMNS=triton.next_power_of_2(width)
    )
    return out
