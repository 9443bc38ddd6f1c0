"""A scheme inside vLLM's second model runner, with or without speculative decoding.

That runner keeps texts on the device and gives its processors slots instead of lists. The processor copies
one number per row to the host in each step (the token that the model has just read), and a whole text when
it first meets it. It is called after penalties.

**Speculative decoding.** A request has one row per draft token, each after the drafts before it. The
processor leaves one finite logit in every row, so vLLM accepts a draft exactly if the mark would have
written it, and otherwise writes the mark's choice. A row goes on from the row before it, whose noise it
remembers, so the text is the same as without drafts, token for token; the rows of a request are therefore
marked one after another. If drafts are single guesses (n-grams, greedy draft models), they are accepted as
often as without a mark.

Boundary: vLLM's slots and rows in, marked logits out; `dewmark.hosts.engines.markers` does the rest.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any

from dewmark.extras import require
from dewmark.hosts.engines.markers import Marked, decoding_of, mark_rows, vllm_markers
from dewmark.hosts.engines.vllm_config import MarkRequest

if TYPE_CHECKING:
    import torch

_vllm = require("vllm.v1.worker.gpu.sample.logits_processor", extra="vllm")
_PARKED = 64  # requests whose slots were taken, which may come back


@dataclasses.dataclass
class _Request:
    """A request in a slot: its settings, its committed ids, and its texts after 0, 1, … drafts."""

    mark: MarkRequest
    params: Any
    prompt: int = 0
    ids: list[int] = dataclasses.field(default_factory=list)
    texts: list[Marked] = dataclasses.field(default_factory=list)


class SecondRunnerProcessor(_vllm.LogitsProcessor):  # type: ignore[misc, name-defined]
    """The processor of vLLM's second model runner."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:  # noqa: ANN401 - vLLM's
        """Read the configuration and build the default key's tables, so that no request waits for them."""
        super().__init__(vllm_config, req_states)
        self._states = req_states
        self._markers = vllm_markers(vllm_config, req_states.device)
        self._requests: dict[int, _Request] = {}
        self._parked: deque[_Request] = deque(maxlen=_PARKED)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:  # noqa: ANN401
        """Take the slot's new request; whether it is marked."""
        gone = self._requests.pop(req_idx, None)
        if gone is not None and gone.texts:
            self._parked.append(gone)
        mark = self._markers.wanted(sampling_params.extra_args, temperature=sampling_params.temperature)
        if mark is None:
            return False
        self._requests[req_idx] = _Request(mark, sampling_params)
        return True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ANN401 - vLLM's LogitsContext
        """Mark logits (rows, vocab); rows of other requests stay as they are."""
        import torch

        layout = (ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.pos, ctx.input_ids)
        rows = torch.stack([each[: len(logits)].long() for each in layout], dim=1).tolist()  # one wait
        drafted: list[list[tuple[int, _Request, int]]] = []  # by the number of drafts before a row
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

    def _catch_up(self, request: _Request, slot: int, position: int, token: int) -> None:
        """Learn the ids up to ``position``, at which the model has just read ``token``."""
        ids, length = request.ids, position + 1
        if len(ids) == length - 1 and ids:
            ids.append(token)
        elif len(ids) != length or ids[-1] != token:
            # a new request, a resumed one, or several drafts accepted at once
            known = min(len(ids), position) if request.texts else 0
            ids[known:] = self._states.all_token_ids.gpu[slot, known:length].tolist()
        request.prompt = int(self._states.prompt_len.np[slot])

    def _text(self, request: _Request, local: int, token: int) -> Marked:
        """The text of one row: what is committed, and the drafts up to ``token`` before the row."""
        if local:
            last = request.texts[local - 1]
            row = last.rows.fork(last.row, [*last.row.written, token], seed=last.row.seed)
            text = last._replace(row=row)
        else:
            text = self._committed(request)
            request.texts.clear()
        request.texts.append(text)
        return text

    def _committed(self, request: _Request) -> Marked:
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
