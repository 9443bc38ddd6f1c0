r"""A scheme inside vLLM: a logits processor for its V1 engine, offline or behind its HTTP server.

    DEWMARK_KEY_FILE=acme.key vllm serve MODEL \
        --logits-processors dewmark.hosts.engines.vllm:DewLogitsProcessor

It sees logits before vLLM's penalties, temperature, top-k and top-p. A scheme that needs the final
distribution therefore gets the request's own settings: it applies them, chooses the token with the request's
seed, and leaves only that one finite, so that nothing later can change it.

Boundary: vLLM's batch in (`BatchUpdate`), marked logits out. `dewmark.sampling` marks a changing batch,
`dewmark.hosts.engines.vllm_config` reads the options of operators and requests.
"""

from __future__ import annotations

import functools
import logging
import random
import secrets
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark.config import cache_dir
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, VocabularyError
from dewmark.extras import require
from dewmark.hosts import host_info, load_host
from dewmark.hosts.engines.vllm_config import EngineConfig, asked_of, config_from_environment
from dewmark.sampling import Row, Rows
from dewmark.scheme import BoundScheme
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

__all__ = ["DewLogitsProcessor"]

_vllm = require("vllm.v1.sample.logits_processor", extra="vllm")

_log = logging.getLogger("vllm.dewmark")  # a child of vLLM's logger, with its handlers and level
_GREEDY = 1e-5  # below this temperature vLLM takes the likeliest token
_PLACEHOLDER = -1  # in vLLM's lists, a token that is still on its way from the device

_NEUTRAL = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


class DewLogitsProcessor(_vllm.LogitsProcessor):  # type: ignore[misc, name-defined]
    """Marks the requests of vLLM's batch, each with its own key."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: ANN401
        """Read the configuration and build the default key's tables, so that no request waits for them."""
        self._config = config_from_environment()
        self._device = device
        _check_scheme(self._config)
        _check_loading(vllm_config)
        self._host = _host(vllm_config, self._config)
        self._markers: dict[str, Rows] = {}
        self._batch: dict[int, tuple[str, Row]] = {}
        self._warned = False
        # ranks that share the work need the same seeds, and all see the same requests in the same order
        together = int(vllm_config.parallel_config.world_size) > 1
        self._seeds = random.Random(vllm_config.model_config.seed if together else secrets.randbits(64))
        self._warm()

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:  # noqa: ANN401 - vLLM's SamplingParams
        """Reject a request that cannot be marked with its settings; vLLM answers it with HTTP 400."""
        config = config_from_environment()
        key_id = config.key_id(sampling_params.extra_args)
        if key_id is None:
            return
        asked = asked_of(sampling_params.extra_args)
        if any(value is not None for value in asked.values()):
            if not config.scheme.reads_rings:
                raise ConfigError(f"{config.scheme.name} carries neither members nor payloads: use dew")
            _load_key(config.keys[key_id]).check_use(**asked)
        name, needs = config.scheme.name, config.scheme.needs_as_set
        remedy = 'or send {"dewmark": false}'
        if needs.sampling and sampling_params.temperature < _GREEDY:
            raise ConfigError(
                f"temperature 0 always takes the likeliest token, and {name} puts its mark in the choice "
                f"between tokens: use a temperature above 0, {remedy}"
            )
        for field, neutral in _NEUTRAL.items():
            value = getattr(sampling_params, field)
            if needs.final and value != neutral:
                raise ConfigError(
                    f"{field}={value:g} would apply after {name} has chosen the token: "
                    f"leave it at {neutral:g}, {remedy}"
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
            key_id = self._config.key_id(params.extra_args)
            if key_id is not None:
                batch[index] = (key_id, self._open(key_id, params, prompt or [], written))
        for source, target, direction in batch_update.moved:
            moved, replaced = batch.pop(source, None), batch.pop(target, None)
            if moved is not None:
                batch[target] = moved
            if replaced is not None and direction == _vllm.MoveDirectionality.SWAP:
                batch[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mark logits (batch, vocab)."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, (key_id, row) in sorted(self._batch.items()):
            if row.written and row.written[-1] == _PLACEHOLDER:
                self._warn()
            else:
                groups[key_id].append(index)
        for key_id, indices in groups.items():
            rows = [self._batch[index][1] for index in indices]
            whole_batch = len(indices) == len(logits)
            marked = self._marker(key_id).mark(rows, logits if whole_batch else logits[indices])
            if whole_batch:
                return marked
            logits[indices] = marked
        return logits

    def _open(self, key_id: str, params: Any, prompt: list[int], written: list[int]) -> Row:  # noqa: ANN401
        decoding = Decoding(
            temperature=max(params.temperature, _GREEDY),
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
        )
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed % (1 << 64)
        return self._marker(key_id).open_as(
            prompt, written, seed=seed, decoding=decoding, **asked_of(params.extra_args)
        )

    def _marker(self, key_id: str) -> Rows:
        """The marker for a key; its tables are built for the first request that uses it."""
        if key_id not in self._markers:
            bound = self._bind(_load_key(self._config.keys[key_id]))
            self._markers[key_id] = bound.rows(self._device)
            _log.info(
                "dewmark marks with %s, key id %s, key fingerprint %s",
                bound.scheme.name,
                key_id,
                bound.fingerprint,
            )
        return self._markers[key_id]

    def _bind(self, key: Key) -> BoundScheme:
        workspace = Workspace(
            cache=cache_dir(),
            find_host=host_info,
            open_host=functools.cache(lambda name: load_host(name or self._host.name)),
        )
        self._config.scheme.check_key(key)
        bound = self._config.scheme.bind(key, self._host, workspace)
        if type(bound).finished is not BoundScheme.finished:
            raise ConfigError(
                f"{bound.scheme.name} keeps a record of every finished text, which vLLM does not pass to its "
                "processors: run it in transformers, or use another scheme"
            )
        return bound

    def _warm(self) -> None:
        import torch

        marker = self._marker(self._config.default_key)
        row = marker.open([], [], seed=0, decoding=Decoding())
        marker.mark([row], torch.zeros((1, self._host.vocab_size), device=self._device))

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "dewmark leaves tokens unmarked: vLLM passes requests whose last token is not known yet; "
                "start it with --no-async-scheduling"
            )


@functools.cache
def _load_key(path: Path) -> Key:
    return Key.load(path)


def _check_scheme(config: EngineConfig) -> None:
    if config.scheme.needs.drafts:
        raise ConfigError(
            f"{config.scheme.name} chooses between drafts of sentences, which vLLM does not write: "
            "run it in transformers, or use a scheme that marks token by token"
        )


def _check_loading(vllm_config: Any) -> None:  # noqa: ANN401 - vLLM's VllmConfig
    """Under asynchronous scheduling, vLLM gives the last token only to processors that it was given."""
    if vllm_config.scheduler_config.async_scheduling and not vllm_config.model_config.logits_processors:
        raise ConfigError(
            "vLLM found dewmark through an entry point and schedules asynchronously, so the last token of a "
            "text is not known when the text is marked: pass "
            "--logits-processors dewmark.hosts.engines.vllm:DewLogitsProcessor"
        )


def _host(vllm_config: Any, config: EngineConfig) -> HostInfo:  # noqa: ANN401 - vLLM's VllmConfig
    info = host_info(config.host or vllm_config.model_config.model)
    width = int(vllm_config.model_config.get_vocab_size())
    if width != info.vocab_size:
        raise VocabularyError(
            f"vLLM serves a model of {width} ids and {info.name} has {info.vocab_size}: set host in the "
            "configuration to the model that is served"
        )
    return info
