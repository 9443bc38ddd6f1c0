"""A batch of growing texts in a model's key-value cache that can be copied, row by row, to try continuations.

Rows grow by different numbers of ids. Each call appends one block of columns, padded on the left, and the
attention mask says which columns of a row are real; positions count those alone. What is in the cache is
never computed again, for however many copies of a row. Only layers that look back over a window of columns
would take padding for text: a model that has such layers reads its rows anew when they grow unevenly.

Boundary: ids in, logits out; nothing is sampled here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from dewmark.errors import ModelError
from dewmark.hosts.decoding import CausalLM, forward_parameters, pad_left

__all__ = ["Branches"]


class Branches:
    """Texts in the cache of one model; ``logits`` (rows, vocab) are those of each row's next token."""

    logits: torch.Tensor
    _cache: Any
    _mask: torch.Tensor

    def __init__(self, model: CausalLM, prompts: Sequence[Sequence[int]], *, fill_id: int) -> None:
        self._model = model
        self._fill_id = fill_id
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._accepted = forward_parameters(model)
        self._ids = [list(prompt) for prompt in prompts]
        self.logits = self._read()

    def extend(self, rows: Sequence[Sequence[int]]) -> None:
        """Append ids to each row, to some none at all."""
        self._ids = [[*before, *row] for before, row in zip(self._ids, rows, strict=True)]
        uneven = len({len(row) for row in rows}) > 1
        if uneven and any(getattr(self._cache, "is_sliding", ())):
            self.logits = self._read()
        elif any(rows):
            grown = torch.tensor([bool(row) for row in rows], device=self._device).unsqueeze(1)
            self.logits = torch.where(grown, self._forward(rows), self.logits)

    def select(self, rows: Sequence[int]) -> Branches:
        """A copy that holds these rows, each as often as it is named; the original is not touched."""
        other = copy.copy(self)
        other._cache = copy.deepcopy(self._cache)
        other.keep(rows)
        return other

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone."""
        index = torch.tensor(rows, dtype=torch.long, device=self._device)
        self._cache.batch_select_indices(index)
        self._ids = [self._ids[row] for row in rows]
        self._mask = self._mask[index]
        self.logits = self.logits[index]

    def _read(self) -> torch.Tensor:
        """Logits (rows, vocab) after all that the rows hold, with a new cache."""
        self._cache = None
        self._mask = torch.zeros((len(self._ids), 0), dtype=torch.long, device=self._device)
        return self._forward(self._ids)

    def _forward(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits (rows, vocab) after appending ids; those of a row that did not grow mean nothing."""
        if len({len(row) for row in rows}) == 1:
            ids = torch.tensor(rows, dtype=torch.long, device=self._device)
            real = torch.ones_like(ids)
        else:
            ids, real = pad_left(rows, fill_id=self._fill_id, device=self._device)
        before = self._mask.sum(dim=1, keepdim=True)
        self._mask = torch.cat((self._mask, real), dim=1)
        inputs: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": self._mask,
            "use_cache": True,
            "return_dict": True,
        }
        if self._cache is not None:
            inputs["past_key_values"] = self._cache
        if "position_ids" in self._accepted:  # models with relative positions read the mask alone
            inputs["position_ids"] = (before + real.cumsum(dim=1) - 1).clamp(min=0)
        if "logits_to_keep" in self._accepted:
            inputs["logits_to_keep"] = 1
        output = self._model(**inputs)
        self._cache = getattr(output, "past_key_values", None)
        if not hasattr(self._cache, "batch_select_indices"):
            raise ModelError(
                f"{type(self._model).__name__} keeps no key-value cache that can be copied row by row, which "
                "writing drafts needs: use another host, or a scheme that marks token by token"
            )
        logits: torch.Tensor = output.logits[:, -1]
        return logits
