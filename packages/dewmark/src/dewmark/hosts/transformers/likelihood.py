"""Logits of completions under a causal language model.

Logits (rows, tokens, vocab) are what takes memory, so rows are batched by their number, and only the logits
that are needed are computed.

Boundary: token ids in, logits out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from dewmark.errors import NumericalError
from dewmark.hosts.transformers.attention import growing_attention
from dewmark.hosts.transformers.decoding_loop import CausalLM, device_of, forward_parameters, pad_left

__all__ = ["Rows", "batches"]

# Limits of a batch by device type: logits (rows, tokens, vocab), and padded tokens.
LOGITS_AT_ONCE = {"cpu": 1 << 26, "cuda": 1 << 29}
_TOKENS_AT_ONCE = {"cpu": 1 << 13, "cuda": 1 << 16}

Rows = Sequence[Sequence[int]]


def completion_logits(
    model: CausalLM, prompts: Rows, completions: Rows, *, fill_id: int, vocab_size: int
) -> Iterator[torch.Tensor]:
    """For each completion of L ids the logits (L, vocab) of its tokens, in the model's own precision.

    Prompts are not empty. Neighbours share a batch.
    """
    kind = device_type(device_of(model))
    cut = "logits_to_keep" in forward_parameters(model)  # else there are logits of the prompts too
    widths = [len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]
    heads = [len(completion) + 1 for completion in completions] if cut else widths

    def fits(rows: int, width: int, kept: int) -> bool:
        return rows * width <= _TOKENS_AT_ONCE[kind] and rows * kept * vocab_size <= LOGITS_AT_ONCE[kind]

    for batch in batches(widths, heads, fits):
        chosen = [completions[i] for i in batch]
        logits = _batch_logits(model, [prompts[i] for i in batch], chosen, fill_id, vocab_size)
        for row, completion in zip(logits, chosen, strict=True):
            own = row[row.shape[0] - len(completion) :]
            if bool(torch.isnan(own).any()):
                name = type(model).__name__
                raise NumericalError(f"{name} gives NaN in {model.dtype}: load the host with dtype='float32'")
            yield own


@torch.no_grad()  # not inference mode: callers may modify the logits in place
def _batch_logits(
    model: CausalLM, prompts: Rows, completions: Rows, fill_id: int, vocab_size: int
) -> torch.Tensor:
    """Logits (rows, longest completion, vocab); left padding aligns the ends."""
    device = device_of(model)
    longest = max(len(c) for c in completions)
    if longest == 0:
        return torch.zeros((len(prompts), 0, vocab_size), device=device)
    rows = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
    ids, mask = pad_left(rows, fill_id=fill_id, device=device)
    accepted = forward_parameters(model)
    inputs = {"input_ids": ids, "attention_mask": mask, "return_dict": True, "use_cache": False}
    if "position_ids" in accepted:
        inputs["position_ids"] = (mask.cumsum(dim=-1) - 1).clamp(min=0)
    if "logits_to_keep" in accepted:
        inputs["logits_to_keep"] = longest + 1
    with growing_attention(device):
        logits: torch.Tensor = model(**inputs).logits[:, -longest - 1 : -1]
    return logits


def batches(
    widths: Sequence[int], heads: Sequence[int], fits: Callable[[int, int, int], bool]
) -> Iterator[list[int]]:
    """Indices of neighbouring rows, as many as ``fits(rows, width, heads)`` allows, and at least one."""
    batch: list[int] = []
    width = kept = 0
    for i, (own_width, own_heads) in enumerate(zip(widths, heads, strict=True)):
        width, kept = max(width, own_width), max(kept, own_heads)
        if batch and not fits(len(batch) + 1, width, kept):
            yield batch
            batch, width, kept = [], own_width, own_heads
        batch.append(i)
    if batch:
        yield batch


def device_type(device: torch.device) -> str:
    """The kind of device whose limits hold."""
    return "cuda" if device.type == "cuda" else "cpu"
