"""What a causal language model thinks of given completions, in batches that fit in memory.

Boundary: token ids in, logits or sums of log-probabilities out. Logits are the large thing, (rows, tokens,
vocab), so rows are batched by that number and only the completions' logits are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dewmark.errors import NumericalError
from dewmark.hosts.decoding import CausalLM, forward_parameters, pad_left

__all__ = ["completion_logits", "score_completions"]

_LOGITS_AT_ONCE = 1 << 26
_POSITIONS_AT_ONCE = 64

Rows = Sequence[Sequence[int]]


def score_completions(
    model: CausalLM, prompts: Rows, completions: Rows, *, fill_id: int, vocab_size: int
) -> list[float]:
    """Sum of log p(token | all before it) over each completion's tokens; prompts are not empty."""
    sums = [0.0] * len(prompts)
    # rows of like length share a batch, so that little of it is padding
    order = sorted(range(len(prompts)), key=lambda i: -(len(prompts[i]) + len(completions[i])))
    rows = completion_logits(
        model,
        [prompts[i] for i in order],
        [completions[i] for i in order],
        fill_id=fill_id,
        vocab_size=vocab_size,
    )
    for i, logits in zip(order, rows, strict=True):
        targets = torch.tensor(completions[i], dtype=torch.long, device=logits.device)
        # In pieces, and by logsumexp: a float32 copy of all logits would double the memory.
        for start in range(0, len(targets), _POSITIONS_AT_ONCE):
            part = logits[start : start + _POSITIONS_AT_ONCE].float()
            wanted = targets[start : start + _POSITIONS_AT_ONCE, None]
            sums[i] += float((part.gather(1, wanted).squeeze(1) - part.logsumexp(dim=-1)).double().sum())
    return sums


def completion_logits(
    model: CausalLM, prompts: Rows, completions: Rows, *, fill_id: int, vocab_size: int
) -> Iterator[torch.Tensor]:
    """For each completion of L ids the logits (L, vocab) of its tokens, in the model's own precision.

    Prompts are not empty. Neighbours share a batch of at most `_LOGITS_AT_ONCE` logits (or one row).
    """
    lengths = [len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]
    for batch in _batches(lengths, _LOGITS_AT_ONCE // vocab_size):
        chosen = [completions[i] for i in batch]
        logits = _batch_logits(model, [prompts[i] for i in batch], chosen, fill_id, vocab_size)
        for i, row, completion in zip(batch, logits, chosen, strict=True):
            own = row[row.shape[0] - len(completion) :]
            if bool(torch.isnan(own).any()):
                raise NumericalError(
                    f"{type(model).__name__} gives NaN for text {i} in {model.dtype}: "
                    "load the host with dtype='float32'"
                )
            yield own


@torch.no_grad()  # not inference mode: whoever gets the logits may work on them in place
def _batch_logits(
    model: CausalLM, prompts: Rows, completions: Rows, fill_id: int, vocab_size: int
) -> torch.Tensor:
    """Logits (rows, longest completion, vocab); left padding lines the ends up."""
    device = model.get_input_embeddings().weight.device
    longest = max(len(c) for c in completions)
    if longest == 0:
        return torch.zeros((len(prompts), 0, vocab_size), device=device)
    rows = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
    ids, mask = pad_left(rows, fill_id=fill_id, device=device)
    accepted = forward_parameters(model)
    inputs: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": mask,
        "return_dict": True,
        "use_cache": False,
    }
    if "position_ids" in accepted:
        inputs["position_ids"] = (mask.cumsum(dim=-1) - 1).clamp(min=0)
    if "logits_to_keep" in accepted:
        inputs["logits_to_keep"] = longest + 1
    logits: torch.Tensor = model(**inputs).logits[:, -longest - 1 : -1]
    return logits


def _batches(lengths: Sequence[int], positions: int) -> Iterator[list[int]]:
    """Neighbouring rows, each batch of at most ``positions`` padded tokens (or one row)."""
    batch: list[int] = []
    width = 0
    for i, length in enumerate(lengths):
        if batch and (len(batch) + 1) * max(width, length) > positions:
            yield batch
            batch, width = [], 0
        batch.append(i)
        width = max(width, length)
    if batch:
        yield batch
