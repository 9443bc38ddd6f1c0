"""A scheme inside vLLM, offline or behind its HTTP server (docs/vllm.md): one name for both model runners.

The runners have different interfaces for processors. `DewLogitsProcessor` implements both as far as vLLM
checks that, and makes the processor of the runner that calls it.

The **first runner** calls processors before penalties, temperature, top-k and top-p. A scheme that needs the
final distribution therefore gets the request's own settings: it applies them, chooses the token with the
request's seed, and leaves only that one finite, so that nothing later can change it.

The **second runner** keeps texts on the device and gives its processors slots instead of lists. The processor
copies one number per row to the host in each step (the token that the model has just read), and a whole text
when it first meets it. It is called after penalties.

**Speculative decoding** (second runner): a request has one row per draft token, each after the drafts before
it. The processor leaves one finite logit in every row, so vLLM accepts a draft exactly if the mark would have
written it, and otherwise writes the mark's choice. A row goes on from the row before it, whose noise it
remembers, so the text is the same as without drafts, token for token.

Boundary: vLLM's batch in, marked logits out. `dewmark.hosts.engines.markers` opens and marks texts,
`dewmark.hosts.engines.vllm_config` reads the options of operators and requests.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from dewmark.errors import ConfigError
from dewmark.extras import require
from dewmark.hosts.engines.markers import Marked, mark_rows, vllm_markers
from dewmark.hosts.engines.vllm_config import MarkRequest, config_from_environment, decoding_of

__all__ = ["DewLogitsProcessor"]

_first = require("vllm.v1.sample.logits_processor", extra="vllm")
_second = require("vllm.v1.worker.gpu.sample.logits_processor", extra="vllm")

_log = logging.getLogger("vllm.dewmark")  # a child of vLLM's logger, with its handlers and level
_PLACEHOLDER = -1  # in vLLM's lists, a token that is still on its way from the device
_PARKED = 64  # texts that left the batch, or whose slot was taken, and may come back

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
            sampling_params.extra_args, decoding=decoding_of(sampling_params)
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
            request = self._markers.wanted(params.extra_args, decoding=decoding_of(params))
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
                if not self._warned:
                    self._warned = True
                    _log.warning(
                        "dewmark leaves tokens unmarked: vLLM passes requests whose last token is not known "
                        "yet; start it with --no-async-scheduling"
                    )
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
            self._markers.ended(gone.text)

    def _penalties(self, params: Any) -> tuple[float, float, float] | None:  # noqa: ANN401 - SamplingParams
        presence, frequency, repetition = (float(getattr(params, name)) for name in _NEUTRAL)
        neutral = (presence, frequency, repetition) == tuple(_NEUTRAL.values())
        needed = self._config.scheme.needs.final_distribution and not neutral
        return (presence, frequency, repetition) if needed else None


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


@dataclasses.dataclass
class _Slot:
    """A request of the second runner: its settings, its committed ids, and its texts after 0, 1, … drafts."""

    mark: MarkRequest
    params: Any
    prompt: int = 0
    ids: list[int] = dataclasses.field(default_factory=list)
    texts: list[Marked] = dataclasses.field(default_factory=list)


class SecondRunnerProcessor(_second.LogitsProcessor):  # type: ignore[misc, name-defined]
    """The processor of vLLM's second model runner."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:  # noqa: ANN401 - vLLM's
        """Read the configuration and build the default key's tables, so that no request waits for them."""
        super().__init__(vllm_config, req_states)
        self._states = req_states
        self._markers = vllm_markers(vllm_config, req_states.device)
        self._requests: dict[int, _Slot] = {}
        self._parked: deque[_Slot] = deque(maxlen=_PARKED)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:  # noqa: ANN401
        """Take the slot's new request; whether it is marked."""
        gone = self._requests.pop(req_idx, None)
        if gone is not None and gone.texts:
            self._parked.append(gone)
            self._markers.ended(gone.texts[-1])
        mark = self._markers.wanted(sampling_params.extra_args, decoding=decoding_of(sampling_params))
        if mark is None:
            return False
        self._requests[req_idx] = _Slot(mark, sampling_params)
        return True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ANN401 - vLLM's LogitsContext
        """Mark logits (rows, vocab); rows of other requests stay as they are."""
        layout = (ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.pos, ctx.input_ids)
        rows = torch.stack([each[: len(logits)].long() for each in layout], dim=1).tolist()  # one wait
        drafted: list[list[tuple[int, _Slot, int]]] = []  # by the number of drafts before a row
        for index, (slot, local, position, token) in enumerate(rows):
            request = self._requests.get(slot)
            if request is None:
                continue
            if local == 0:
                self._catch_up(request, slot, position, token)
            if len(request.ids) >= request.prompt:  # else a part of a prompt, whose sample is discarded
                drafted.extend([] for _ in range(local + 1 - len(drafted)))
                drafted[local].append((index, request, token))
        for local, found in enumerate(drafted):
            texts = {index: self._text(request, local, token) for index, request, token in found}
            logits = mark_rows(texts, logits)
        return logits

    def _catch_up(self, request: _Slot, slot: int, position: int, token: int) -> None:
        """Learn the ids up to ``position``, at which the model has just read ``token``."""
        ids, length = request.ids, position + 1
        if len(ids) == length - 1 and ids:
            ids.append(token)
        elif len(ids) != length or ids[-1] != token:
            # a new request, a resumed one, or several drafts accepted at once
            known = min(len(ids), position) if request.texts else 0
            ids[known:] = self._states.all_token_ids.gpu[slot, known:length].tolist()
        request.prompt = int(self._states.prompt_len.np[slot])

    def _text(self, request: _Slot, local: int, token: int) -> Marked:
        """The text of one row: what is committed, and the drafts up to ``token`` before the row."""
        if local:
            last = request.texts[local - 1]
            written = [*last.row.written, token]
            text = dataclasses.replace(last, row=last.rows.fork(last.row, written, seed=last.row.seed))
        else:
            text = self._committed(request)
            request.texts.clear()
        request.texts.append(text)
        return text

    def _committed(self, request: _Slot) -> Marked:
        """The committed text, which goes on from the last accepted draft."""
        written = request.ids[request.prompt :]
        for text in reversed(request.texts):
            if written[: len(text.row.written)] == text.row.written:
                text.row.written = written
                return text
        others = [*self._parked, *self._requests.values()]  # a preempted request has another slot
        return self._markers.open(
            request.mark,
            request.ids[: request.prompt],
            written,
            seed=request.params.seed,
            decoding=decoding_of(request.params),
            before=[text for other in others if other is not request for text in other.texts],
        )
