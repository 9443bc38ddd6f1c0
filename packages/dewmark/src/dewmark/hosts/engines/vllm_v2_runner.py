r"""A scheme inside vLLM's second model runner, with or without speculative decoding.

    DEWMARK_KEY_FILE=acme.key vllm serve MODEL \
        --logits-processors dewmark.hosts.engines.vllm_v2_runner:DewLogitsProcessor

That runner keeps texts on the device and gives its processors slots instead of lists. The processor copies
one number per row to the host in each step (the token that the model has just read), and a whole text when
it first meets it.

**Speculative decoding.** A request has one row per draft token, each after the drafts before it. The
processor leaves one finite logit in every row, so vLLM accepts a draft exactly if the mark would have
written it, and otherwise writes the mark's choice: the text is the same as without drafts. If drafts are
single guesses (n-grams, greedy draft models), they are accepted as often as without a mark.

Boundary: vLLM's slots and rows in, marked logits out; `dewmark.hosts.engines.markers` does the rest.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from dewmark.extras import require
from dewmark.hosts.engines.markers import Marked, check_sampling, decoding_of, mark_rows, vllm_markers
from dewmark.hosts.engines.vllm_config import MarkRequest, config_from_environment

if TYPE_CHECKING:
    import torch

_vllm = require("vllm.v1.worker.gpu.sample.logits_processor", extra="vllm")


@dataclasses.dataclass
class _Request:
    """A request in a slot: its settings, its committed ids, and one text per row that it had at once."""

    mark: MarkRequest
    params: Any
    seed: int
    prompt: int = 0
    ids: list[int] = dataclasses.field(default_factory=list)
    texts: dict[int, Marked] = dataclasses.field(default_factory=dict)


class DewLogitsProcessor(_vllm.LogitsProcessor):  # type: ignore[misc, name-defined]
    """Marks the requests of vLLM's batch, each with its own key, member and payload."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:  # noqa: ANN401 - vLLM's
        """Read the configuration and build the default key's tables, so that no request waits for them."""
        super().__init__(vllm_config, req_states)
        self._config = config_from_environment()
        self._states = req_states
        self._markers = vllm_markers(vllm_config, req_states.device)
        self._requests: dict[int, _Request] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:  # noqa: ANN401 - vLLM's SamplingParams
        """Reject a request that cannot be marked with its settings; vLLM answers it with HTTP 400."""
        config = config_from_environment()
        if config.mark_request(sampling_params.extra_args) is not None:
            check_sampling(config, sampling_params.temperature)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:  # noqa: ANN401
        """Take the slot's new request; whether it is marked."""
        self._requests.pop(req_idx, None)
        mark = self._config.mark_request(sampling_params.extra_args)
        if mark is None:
            return False
        seed = self._markers.seed() if sampling_params.seed is None else sampling_params.seed
        self._requests[req_idx] = _Request(mark, sampling_params, seed)
        return True

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:  # noqa: ANN401 - vLLM's LogitsContext
        """Mark logits (rows, vocab); rows of other requests stay as they are."""
        import torch

        layout = (ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.pos, ctx.input_ids)
        rows = torch.stack([each[: len(logits)].long() for each in layout], dim=1).tolist()  # one wait
        texts: dict[int, Marked] = {}
        drafts: list[int] = []
        for index, (slot, local, position, token) in enumerate(rows):
            request = self._requests.get(slot)
            if request is None:
                continue
            if local == 0:
                drafts = []
                self._catch_up(request, slot, position, token)
            else:
                drafts.append(token)
            if len(request.ids) >= request.prompt:  # else a part of a prompt, whose sample is discarded
                texts[index] = self._text(request, local, drafts)
        return mark_rows(texts, logits)

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

    def _text(self, request: _Request, local: int, drafts: list[int]) -> Marked:
        """The text of one row: what is committed, and the drafts before the row."""
        written = request.ids[request.prompt :] + drafts
        text = request.texts.get(local)
        if text is not None:
            known = text.row.written
            assert isinstance(known, list)
            if written[: len(known)] == known:
                known.extend(written[len(known) :])
                return text
        text = request.texts[local] = self._markers.open(  # or a draft was rejected: read again
            request.mark,
            request.ids[: request.prompt],
            written,
            seed=request.seed,
            decoding=decoding_of(request.params),
        )
        return text
