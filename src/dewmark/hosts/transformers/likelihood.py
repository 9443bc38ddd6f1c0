"""What a causal language model thinks of given completions, in batches that fit in memory.

Boundary: token ids in, logits or sums of log-probabilities out. Logits are the large thing, (rows, tokens,
vocab), so rows are batched by that number and only the completions' logits are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dewmark.errors import NumericalError
from dewmark.hosts.transformers.decoding import CausalLM, forward_parameters, pad_left

__all__ = [
    "LOGITS_AT_ONCE",
    "SUMMED_AT_ONCE",
    "completion_logits",
    "device_kind",
    "not_a_number",
    "score_completions",
]

# by the kind of device: logits (rows, completion tokens, vocab) and padded tokens of a batch, and logits that
# are turned into log-probabilities at once
LOGITS_AT_ONCE = {"cpu": 1 << 26, "cuda": 1 << 29}
_TOKENS_AT_ONCE = {"cpu": 1 << 13, "cuda": 1 << 16}
SUMMED_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 27}

Rows = Sequence[Sequence[int]]


def score_completions(
    model: CausalLM, prompts: Rows, completions: Rows, *, fill_id: int, vocab_size: int
) -> list[float]:
    """Sum of log p(token | all before it) over each completion's tokens; prompts are not empty."""
    sums = [0.0] * len(prompts)
    # rows of like length share a batch, so that little of it is padding
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]) - len(completions[i]), i))
    sorted_prompts, sorted_completions = [prompts[i] for i in order], [completions[i] for i in order]
    for batch in _batches(model, sorted_prompts, sorted_completions, vocab_size):
        chosen = [sorted_completions[i] for i in batch]
        logits = _batch_logits(model, [sorted_prompts[i] for i in batch], chosen, fill_id, vocab_size)
        for i, found in zip(batch, _summed(logits, chosen), strict=True):
            if math.isnan(found):
                raise not_a_number(model, order[i])
            sums[order[i]] = found
    return sums


def _summed(logits: torch.Tensor, completions: Rows) -> list[float]:
    """Log-probabilities of completions, summed, from logits (rows, longest completion, vocab)."""
    rows, longest, vocab = logits.shape
    if not longest:
        return [0.0] * rows
    ids, mask = pad_left(completions, fill_id=0, device=logits.device)
    sums: list[float] = []
    # in pieces: a float32 copy of all logits would double the memory
    step = max(SUMMED_AT_ONCE[device_kind(logits.device)] // (longest * vocab), 1)
    for start in range(0, rows, step):
        part = logits[start : start + step].log_softmax(dim=-1, dtype=torch.float32)
        found = part.gather(2, ids[start : start + step, :, None]).squeeze(2)
        outside = mask[start : start + step] == 0
        sums += found.double().masked_fill(outside, 0.0).sum(dim=1).tolist()
    return sums


def completion_logits(
    model: CausalLM, prompts: Rows, completions: Rows, *, fill_id: int, vocab_size: int
) -> Iterator[torch.Tensor]:
    """For each completion of L ids the logits (L, vocab) of its tokens, in the model's own precision.

    Prompts are not empty. Neighbours share a batch.
    """
    for batch in _batches(model, prompts, completions, vocab_size):
        chosen = [completions[i] for i in batch]
        logits = _batch_logits(model, [prompts[i] for i in batch], chosen, fill_id, vocab_size)
        for i, row, completion in zip(batch, logits, chosen, strict=True):
            own = row[row.shape[0] - len(completion) :]
            if bool(torch.isnan(own).any()):
                raise not_a_number(model, i)
            yield own


def not_a_number(model: CausalLM, text: int) -> NumericalError:
    """What to say of a text whose probabilities are no numbers."""
    return NumericalError(
        f"{type(model).__name__} gives NaN for text {text} in {model.dtype}: "
        "load the host with dtype='float32'"
    )


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


def _batches(model: CausalLM, prompts: Rows, completions: Rows, vocab_size: int) -> Iterator[list[int]]:
    """Neighbouring rows, as many as memory has room for (or one row)."""
    kind = device_kind(model.get_input_embeddings().weight.device)
    cut = "logits_to_keep" in forward_parameters(model)  # else there are logits of the prompts too
    batch: list[int] = []
    width = kept = 0
    for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        width = max(width, len(prompt) + len(completion))
        kept = max(kept, len(completion) + 1) if cut else width
        rows = len(batch) + 1
        if batch and (
            rows * width > _TOKENS_AT_ONCE[kind] or rows * kept * vocab_size > LOGITS_AT_ONCE[kind]
        ):
            yield batch
            batch, width = [], len(prompt) + len(completion)
            kept = len(completion) + 1 if cut else width
        batch.append(i)
    if batch:
        yield batch


def device_kind(device: torch.device) -> str:
    """The name under which bounds on memory are kept."""
    return "cuda" if device.type == "cuda" else "cpu"
