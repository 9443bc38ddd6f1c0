"""A scheme inside transformers' continuous batching (``generate_batch``).

    model.generate_batch(
        inputs,
        generation_config=GenerationConfig(do_sample=True, watermarking_config=WatermarkingConfig(scheme)),
        continuous_batching_config=ContinuousBatchingConfig(
            per_request_processors=True, use_cuda_graph=False, use_async_batching=False))

There a batch is one row of all requests' tokens, and an ordinary logits processor learns only their last
tokens. transformers exchanges some processors for versions that are told which requests a step holds;
`register` adds ours to that table. They need ``per_request_processors=True``, and every step's tokens on the
host: no CUDA graph around the processors, no asynchronous batching.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.continuous_batching import cb_logits_processors
from transformers.generation.logits_process import LogitsProcessor

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.scheme import BoundScheme
from dewmark.serving_rows import Row, Rows, open_rows

SEED = "dewmark_seed"


class ContinuousMark(cb_logits_processors.ContinuousBatchingLogitsProcessor):
    """Marks the requests of a changing batch; ``dewmark_seed`` among a request's kwargs is its seed."""

    supported_kwargs: dict[str, type] = {SEED: int}  # noqa: RUF012 - as the base class declares it
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, scheme: BoundScheme) -> None:
        self._scheme = scheme
        self._rows: dict[torch.device, Rows] = {}
        self._texts: dict[str, tuple[Row, list[int]]] = {}
        self._batch: list[Any] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """There is nothing to fill: requests are followed on the host."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> torch.Tensor:
        """Remember the requests of the next step, in the order of its logits."""
        self._batch = [request.state for request in requests_with_new_token]
        present = {state.request_id for state in self._batch}
        if len(self._texts) > 4 * len(present) + 64:  # finished requests
            self._texts = {name: text for name, text in self._texts.items() if name in present}
        return torch.zeros(len(self._batch), dtype=torch.int32)

    def __call__(  # type: ignore[override] # transformers says FloatTensor
        self, scores: torch.Tensor, tensor_arg: torch.Tensor
    ) -> torch.Tensor:
        """Logits (tokens, vocab), after temperature and filters, to marked ones; padding stays."""
        if scores.is_cuda and torch.cuda.is_current_stream_capturing():
            raise ConfigError("marks read each step's tokens: set use_cuda_graph=False")
        if not self._batch:
            return scores
        rows = self._rows.get(scores.device)
        if rows is None:
            rows = self._rows[scores.device] = open_rows(self._scheme, scores.device)
        texts = [self._text(rows, state) for state in self._batch]
        marked = rows.mark(texts, scores[: len(texts)].float())
        return torch.cat((marked.to(scores.dtype), scores[len(texts) :]))

    def _text(self, rows: Rows, state: Any) -> Row:  # noqa: ANN401 - transformers' RequestState
        whole = [*state.initial_tokens, *state.generated_tokens]  # of an evicted request both change
        known = self._texts.get(state.request_id)
        if known is None:
            seed = state.logit_processor_kwargs.get(SEED)
            written: list[int] = []
            row = rows.open(
                list(state.initial_tokens),
                written,
                seed=secrets.randbits(63) if seed is None else seed,
                decoding=Decoding(),  # temperature and filters have been applied
            )
            known = self._texts[state.request_id] = row, written
            written.extend(state.generated_tokens)
            return row
        row, written = known
        new = whole[len(row.prompt) + len(written) :]
        if not new:
            raise ConfigError("marks need the token of the last step: set use_async_batching=False")
        written.extend(new)
        return row


def register(processor: type[LogitsProcessor]) -> None:
    """Let continuous batching exchange a processor of ours, which has a ``scheme``, for `ContinuousMark`."""
    exchanges: dict[Any, Any] = cb_logits_processors.CLASSIC_TO_CB_PROCESSORS_MAP
    exchanges[processor] = _exchanged


def _exchanged(processor: Any) -> ContinuousMark:  # noqa: ANN401 - one of ours
    return ContinuousMark(processor.scheme)
