r"""A scheme inside vLLM, offline or behind its HTTP server: one name for both of its model runners.

    DEWMARK_KEY_FILE=acme.key vllm serve MODEL \
        --logits-processors dewmark.hosts.engines.vllm:DewLogitsProcessor

The runners have different interfaces for processors. `DewLogitsProcessor` implements both as far as vLLM
checks that, and makes the processor of the runner that calls it: `FirstRunnerProcessor` here, or the one of
`dewmark.hosts.engines.vllm_v2_runner`.

The first runner calls processors before penalties, temperature, top-k and top-p. A scheme that needs the
final distribution therefore gets the request's own settings: it applies them, chooses the token with the
request's seed, and leaves only that one finite, so that nothing later can change it.

Boundary: vLLM's batch in (`BatchUpdate`), marked logits out. `dewmark.serving_rows` marks a changing batch,
`dewmark.hosts.engines.vllm_config` reads the options of operators and requests.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from dewmark.errors import ConfigError
from dewmark.extras import require
from dewmark.hosts.engines.markers import Marked, decoding_of, mark_rows, vllm_markers
from dewmark.hosts.engines.vllm_config import config_from_environment
from dewmark.hosts.engines.vllm_v2_runner import SecondRunnerProcessor

__all__ = ["DewLogitsProcessor"]

_first = require("vllm.v1.sample.logits_processor", extra="vllm")
_second = require("vllm.v1.worker.gpu.sample.logits_processor", extra="vllm")

_log = logging.getLogger("vllm.dewmark")  # a child of vLLM's logger, with its handlers and level
_PLACEHOLDER = -1  # in vLLM's lists, a token that is still on its way from the device
_PARKED = 64  # texts that left the batch and may come back

_NEUTRAL = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


class DewLogitsProcessor(_first.LogitsProcessor, _second.LogitsProcessor):  # type: ignore[misc, name-defined]
    """Marks the requests of vLLM's batch, each with its own key, member and payload."""

    def __new__(cls, vllm_config: Any, *given: Any) -> Any:  # noqa: ANN401 - vLLM's, of either runner
        """The processor of the runner that calls: the first gives two arguments more, the second one."""
        made = FirstRunnerProcessor if len(given) == 2 else SecondRunnerProcessor
        return made(vllm_config, *given)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:  # noqa: ANN401 - vLLM's SamplingParams
        """Reject a request with wrong parameters; vLLM answers it with HTTP 400."""
        config_from_environment().mark_request(
            sampling_params.extra_args, temperature=sampling_params.temperature
        )


class _Request(NamedTuple):
    """A text in the batch, and its penalties if any is in use and the scheme draws."""

    text: Marked
    penalties: tuple[float, float, float] | None


class FirstRunnerProcessor(_first.LogitsProcessor):  # type: ignore[misc, name-defined]
    """The processor of vLLM's first model runner."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ANN401
        """Read the configuration and build the default key's tables, so that no request waits for them."""
        _check_loading(vllm_config)
        self._config = config_from_environment()
        self._markers = vllm_markers(vllm_config, device)
        self._batch: dict[int, _Request] = {}
        self._parked: deque[Marked] = deque(maxlen=_PARKED)
        self._warned = False

    def is_argmax_invariant(self) -> bool:
        """False: a mark changes which token is likeliest."""
        return False

    def update_state(self, batch_update: Any) -> None:  # noqa: ANN401 - vLLM's BatchUpdate
        """Follow vLLM's batch: requests removed, added and moved, in this order."""
        if batch_update is None:
            return
        batch = self._batch
        for index in batch_update.removed:
            self._park(index)
        for index, params, prompt, written in batch_update.added:
            self._park(index)
            request = self._markers.wanted(params.extra_args, temperature=params.temperature)
            if request is not None:
                text = self._markers.open(
                    request,
                    prompt or [],
                    written,
                    seed=params.seed,
                    decoding=decoding_of(params),
                    before=self._parked,
                )
                batch[index] = _Request(text, self._penalties(params))
        for source, target, direction in batch_update.moved:
            moved, replaced = batch.pop(source, None), batch.pop(target, None)
            if moved is not None:
                batch[target] = moved
            if replaced is not None and direction == _first.MoveDirectionality.SWAP:
                batch[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mark logits (batch, vocab)."""
        known = {}
        for index, (text, penalties) in self._batch.items():
            if text.row.written and text.row.written[-1] == _PLACEHOLDER:
                self._warn()
                continue
            known[index] = text
            if penalties is not None:
                logits[index] = penalised(logits[index], text.row.prompt, text.row.written, *penalties)
        return mark_rows(known, logits)

    def _park(self, index: int) -> None:
        """Keep the text of a request that leaves the batch: it may only be preempted."""
        gone = self._batch.pop(index, None)
        if gone is not None:
            self._parked.append(gone.text)

    def _penalties(self, params: Any) -> tuple[float, float, float] | None:  # noqa: ANN401 - SamplingParams
        presence, frequency, repetition = (float(getattr(params, name)) for name in _NEUTRAL)
        neutral = (presence, frequency, repetition) == tuple(_NEUTRAL.values())
        needed = self._config.scheme.needs.final_distribution and not neutral
        return (presence, frequency, repetition) if needed else None

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "dewmark leaves tokens unmarked: vLLM passes requests whose last token is not known yet; "
                "start it with --no-async-scheduling"
            )


def penalised(
    logits: torch.Tensor,
    prompt: Sequence[int],
    written: Sequence[int],
    presence: float,
    frequency: float,
    repetition: float,
) -> torch.Tensor:
    """Logits (vocab,) after vLLM's penalties, which the first runner applies after the choice: too late."""
    counts, seen = (
        torch.bincount(torch.tensor(ids, dtype=torch.long), minlength=len(logits))[: len(logits)].to(
            logits.device, logits.dtype
        )
        for ids in ([*written], [*prompt, *written])
    )
    divided = torch.where(logits > 0, logits / repetition, logits * repetition)
    return torch.where(seen > 0, divided, logits) - frequency * counts - presence * (counts > 0)


def _check_loading(vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's VllmConfig
    """Under asynchronous scheduling, vLLM gives the last token only to processors that it was given."""
    if vllm_config.scheduler_config.async_scheduling and not vllm_config.model_config.logits_processors:
        raise ConfigError(
            "vLLM found dewmark through an entry point and schedules asynchronously, so the last token of a "
            "text is not known when the text is marked: pass "
            "--logits-processors dewmark.hosts.engines.vllm:DewLogitsProcessor"
        )
