r"""A scheme inside vLLM: a logits processor for its V1 engine, offline or behind its HTTP server.

    DEWMARK_KEY_FILE=acme.key vllm serve MODEL \
        --logits-processors dewmark.hosts.engines.vllm:DewLogitsProcessor

It sees logits before vLLM's penalties, temperature, top-k and top-p. A scheme that needs the final
distribution therefore gets the request's own settings: it applies them, chooses the token with the request's
seed, and leaves only that one finite, so that nothing later can change it.

Boundary: vLLM's batch in (`BatchUpdate`), marked logits out. `dewmark.serving_rows` marks a changing batch,
`dewmark.hosts.engines.vllm_config` reads the options of operators and requests.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dewmark.errors import ConfigError
from dewmark.extras import require
from dewmark.hosts.engines.markers import (
    Marked,
    check_sampling,
    decoding_of,
    mark_rows,
    vllm_markers,
)
from dewmark.hosts.engines.vllm_config import config_from_environment

if TYPE_CHECKING:
    import torch

__all__ = ["DewLogitsProcessor"]

_vllm = require("vllm.v1.sample.logits_processor", extra="vllm")

_log = logging.getLogger("vllm.dewmark")  # a child of vLLM's logger, with its handlers and level
_PLACEHOLDER = -1  # in vLLM's lists, a token that is still on its way from the device

_NEUTRAL = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


class DewLogitsProcessor(_vllm.LogitsProcessor):  # type: ignore[misc, name-defined]
    """Marks the requests of vLLM's batch, each with its own key."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ANN401
        """Read the configuration and build the default key's tables, so that no request waits for them."""
        _check_loading(vllm_config)
        self._config = config_from_environment()
        self._markers = vllm_markers(vllm_config, device)
        self._batch: dict[int, Marked] = {}
        self._warned = False

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:  # noqa: ANN401 - vLLM's SamplingParams
        """Reject a request that cannot be marked with its settings; vLLM answers it with HTTP 400."""
        config = config_from_environment()
        if config.mark_request(sampling_params.extra_args) is None:
            return
        check_sampling(config, sampling_params.temperature)
        name, needs = config.scheme.name, config.scheme.needs_as_set
        for field, neutral in _NEUTRAL.items():
            value = getattr(sampling_params, field)
            if needs.final_distribution and value != neutral:
                raise ConfigError(
                    f"{field}={value:g} would apply after {name} has chosen the token: "
                    f'leave it at {neutral:g}, or send {{"dewmark": false}}'
                )

    def is_argmax_invariant(self) -> bool:
        """False: a mark changes which token is likeliest."""
        return False

    def update_state(self, batch_update: Any) -> None:  # noqa: ANN401 - vLLM's BatchUpdate
        """Follow vLLM's batch: requests removed, added and moved, in this order."""
        if batch_update is None:
            return
        batch = self._batch
        for index in batch_update.removed:
            batch.pop(index, None)
        for index, params, prompt, written in batch_update.added:
            batch.pop(index, None)
            request = self._config.mark_request(params.extra_args)
            if request is not None:
                batch[index] = self._markers.open(
                    request, prompt or [], written, seed=params.seed, decoding=decoding_of(params)
                )
        for source, target, direction in batch_update.moved:
            moved, replaced = batch.pop(source, None), batch.pop(target, None)
            if moved is not None:
                batch[target] = moved
            if replaced is not None and direction == _vllm.MoveDirectionality.SWAP:
                batch[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mark logits (batch, vocab)."""
        known = {}
        for index, text in self._batch.items():
            if text.row.written and text.row.written[-1] == _PLACEHOLDER:
                self._warn()
            else:
                known[index] = text
        return mark_rows(known, logits)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "dewmark leaves tokens unmarked: vLLM passes requests whose last token is not known yet; "
                "start it with --no-async-scheduling"
            )


def _check_loading(vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's VllmConfig
    """Under asynchronous scheduling, vLLM gives the last token only to processors that it was given."""
    if vllm_config.scheduler_config.async_scheduling and not vllm_config.model_config.logits_processors:
        raise ConfigError(
            "vLLM found dewmark through an entry point and schedules asynchronously, so the last token of a "
            "text is not known when the text is marked: pass "
            "--logits-processors dewmark.hosts.engines.vllm:DewLogitsProcessor"
        )
