"""Log-likelihood of given completions under a causal language model, in batches that fit in memory.

Boundary: token ids in, sums of log-probabilities out. Logits are the large thing, (rows, tokens, vocab), so
rows are batched by that number and only the completions' logits are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dewmark.errors import NumericalError
from dewmark.hosts.decoding import CausalLM, forward_parameters, pad_left

__all__ = ["score_completions"]

_LOGITS_AT_ONCE = 1 << 26
_POSITIONS_AT_ONCE = 64


@torch.inference_mode()
def score_completions(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    fill_id: int,
    vocab_size: int,
) -> list[float]:
    """Sum of log p(token | all before it) over each completion's tokens; prompts are not empty."""
    sums = [0.0] * len(prompts)
    lengths = [len(p) + len(c) for p, c in zip(prompts, completions, strict=True)]
    for batch in _batches(lengths, _LOGITS_AT_ONCE // vocab_size):
        scores = _score_batch(model, [prompts[i] for i in batch], [completions[i] for i in batch], fill_id)
        for i, score in zip(batch, scores, strict=True):
            sums[i] = score
    return sums


def _score_batch(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    fill_id: int,
) -> list[float]:
    device = model.get_input_embeddings().weight.device
    rows = [[*p, *c] for p, c in zip(prompts, completions, strict=True)]
    ids, mask = pad_left(rows, fill_id=fill_id, device=device)
    longest = max(len(c) for c in completions)
    if longest == 0:
        return [0.0] * len(rows)
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
    # (rows, longest, vocab): left padding lines the ends up
    logits = model(**inputs).logits[:, -longest - 1 : -1]
    targets = ids[:, -longest:]
    # In pieces, and by logsumexp: a float32 copy of all logits would double the memory.
    pieces = []
    for start in range(0, longest, _POSITIONS_AT_ONCE):
        part = logits[:, start : start + _POSITIONS_AT_ONCE].float()
        wanted = targets[:, start : start + _POSITIONS_AT_ONCE, None]
        pieces.append(part.gather(2, wanted).squeeze(2) - part.logsumexp(dim=-1))
    log_p = torch.cat(pieces, dim=1).double().cpu()
    sums = [float(row[longest - len(c) :].sum()) for row, c in zip(log_p, completions, strict=True)]
    for i, value in enumerate(sums):
        if value != value:
            raise NumericalError(
                f"the log-likelihood of text {i} of the batch is NaN under {type(model).__name__} in "
                f"{model.dtype}: load the host with dtype='float32'"
            )
    return sums


def _batches(lengths: Sequence[int], positions: int) -> Iterator[list[int]]:
    """Rows of like length together, each batch of at most ``positions`` padded tokens (or one row)."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > positions:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
