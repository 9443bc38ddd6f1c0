"""A scheme as transformers' own ``watermarking_config``.

    model.generate(**inputs, do_sample=True, watermarking_config=WatermarkingConfig(scheme))

There the scheme sees the logits after temperature, top-k and top-p; a logits processor sees them before. A
scheme that needs this final distribution draws the token itself and leaves no other, so that greedy decoding
takes what was drawn, too. Beam search exchanges its rows and is rejected. Texts without a seed of their own
draw it from torch, so `torch.manual_seed` repeats them.

Continuous batching takes the same configuration:

    model.generate_batch(
        inputs,
        generation_config=GenerationConfig(do_sample=True, watermarking_config=WatermarkingConfig(scheme)),
        continuous_batching_config=ContinuousBatchingConfig(
            per_request_processors=True, use_cuda_graph=False, use_async_batching=False))

There a batch is one row of all requests' tokens, and an ordinary logits processor learns only their last
tokens. transformers exchanges some processors for versions that are told which requests a step holds;
ours joins their table below. They need ``per_request_processors=True``, and every step's tokens on the
host: no CUDA graph around the processors, no asynchronous batching.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.generation.configuration_utils import BaseWatermarkingConfig
from transformers.generation.continuous_batching import cb_logits_processors
from transformers.generation.logits_process import LogitsProcessor

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, VocabularyError
from dewmark.sampling import Session
from dewmark.scheme import BoundScheme
from dewmark.serving_rows import Row, Rows, open_rows

__all__ = ["WatermarkingConfig"]

SEED = "dewmark_seed"


class WatermarkingConfig(BaseWatermarkingConfig):
    """Marks what ``model.generate`` writes; one object serves any number of calls."""

    def __init__(self, scheme: BoundScheme) -> None:
        self.scheme = scheme

    def validate(self) -> None:
        """Raise `ConfigError` unless the scheme is bound; transformers calls this before it generates."""
        if not isinstance(self.scheme, BoundScheme):
            raise ConfigError(
                f"WatermarkingConfig takes a bound scheme, got {type(self.scheme).__name__}: "
                "get one from dewmark.load_scheme"
            )

    def construct_processor(self, vocab_size: int, device: object = None) -> LogitsProcessor:
        """The logits processor for one call of generate."""
        self.validate()
        expected = self.scheme.host.vocab_size
        if vocab_size != expected:
            raise VocabularyError(
                f"the scheme was built for {self.scheme.host.name} ({expected} ids) and this model has "
                f"{vocab_size}: load the scheme for this model"
            )
        return _SessionProcessor(self.scheme)

    def to_dict(self) -> dict[str, Any]:
        """The scheme's public configuration, so that transformers never writes the key to disk."""
        return {"scheme": self.scheme.scheme.name, "config_hash": self.scheme.config_hash}

    def to_json_string(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield from self.to_dict().items()

    def __deepcopy__(self, memo: dict[int, Any]) -> WatermarkingConfig:
        # generate copies its configuration at every call; a bound scheme is immutable and may take gigabytes
        return self


class _SessionProcessor(LogitsProcessor):
    """Opens a session on its first call, whose ids (batch, length) are the prompts."""

    supports_continuous_batching = True  # in the form that is registered below

    def __init__(self, scheme: BoundScheme) -> None:
        self.scheme = scheme
        self._session: Session | None = None
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits of the same shape."""
        if input_ids.dim() == 1:
            raise ConfigError(
                "continuous batching tells marks which requests a step holds only with "
                "ContinuousBatchingConfig(per_request_processors=True)"
            )
        if self._session is None:
            self._session = self.scheme.session(input_ids, seeds=_seeds(len(input_ids)))
        if self.scheme.needs.final_distribution:
            if self._last is not None and not torch.equal(input_ids[:, :-1], self._last):
                raise ConfigError(
                    f"the rows were exchanged, as by beam search, and {self.scheme.scheme.name} puts its "
                    "mark in the sampling of each token: use num_beams=1 and do_sample=True"
                )
            self._last = input_ids
        return self._session(input_ids, scores)


def _seeds(rows: int) -> list[int]:
    """Seeds from torch's generator, so that ``torch.manual_seed`` repeats a text."""
    drawn: list[int] = torch.randint(2**63 - 1, (rows,)).tolist()
    return drawn


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
                seed=_seeds(1)[0] if seed is None else seed,
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


_EXCHANGED: dict[Any, Any] = cb_logits_processors.CLASSIC_TO_CB_PROCESSORS_MAP
_EXCHANGED[_SessionProcessor] = lambda processor: ContinuousMark(processor.scheme)
