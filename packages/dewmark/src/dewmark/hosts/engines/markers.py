"""The marks of one serving engine: for each request the rows of its key, member and payload.

Engines differ in how they describe their batch; what they share is here. `Markers` binds keys when a request
first needs them and opens a text's `Row`; `mark_rows` marks logits whose rows belong to different keys.
"""

from __future__ import annotations

import functools
import logging
import random
import secrets
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dewmark.capabilities import KeepsRecords
from dewmark.config import cache_dir
from dewmark.core.keys import Key
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, VocabularyError
from dewmark.hosts import host_info, load_host
from dewmark.hosts.engines.vllm_config import EngineConfig, MarkRequest, config_from_environment
from dewmark.mark import Row, Rows
from dewmark.policy import Exemptions
from dewmark.scheme import BoundScheme
from dewmark.workspace import HostInfo, Workspace

if TYPE_CHECKING:
    import torch

_vllm_log = logging.getLogger("vllm.dewmark")  # a child of vLLM's logger, with its handlers and level


@dataclass(frozen=True)
class Marked:
    """A text in the engine, and what marks it."""

    request: MarkRequest
    rows: Rows[Any]
    row: Row
    exemptions: Exemptions | None = None


class Markers:
    """Binds keys to the served model and opens texts under them.

    ``seeds`` gives seeds to requests without one; ``log`` is the engine's own logger.
    """

    def __init__(
        self,
        config: EngineConfig,
        host: HostInfo,
        device: torch.device,
        *,
        seeds: random.Random,
        log: logging.Logger,
    ) -> None:
        if config.scheme.needs.drafts:
            raise ConfigError(
                f"{config.scheme.name} chooses between drafts of sentences, which serving engines do not "
                "write: run it in transformers, or use a scheme that marks token by token"
            )
        self._config, self._host, self._device = config, host, device
        self._seeds, self._log = seeds, log
        self._bound: dict[str, BoundScheme] = {}
        self._rows: dict[str, Rows[Any]] = {}
        self._ended: weakref.WeakKeyDictionary[Row, str] = weakref.WeakKeyDictionary()
        self.counts: Counter[str] = Counter()
        """Texts that ended, ``marked`` or by the reason why they are not (`dewmark.room`)."""
        self._warm()

    def wanted(self, extra_args: Mapping[str, Any] | None, *, decoding: Decoding) -> MarkRequest | None:
        """What to mark a request with; None for no mark, which is logged where nobody asked for none."""
        found = self._config.mark_request(extra_args, decoding=decoding)
        if found is None and self._config.key_id(extra_args) is not None:
            option = decoding.takes_likeliest
            self._log.info("dewmark leaves a request at %s without a mark: there is no choice", option)
        return found

    def open(
        self,
        request: MarkRequest,
        prompt: Sequence[int],
        written: Sequence[int],
        *,
        seed: int | None,
        decoding: Decoding,
        before: Iterable[Marked] = (),
    ) -> Marked:
        """Start following a text; ``written`` may grow.

        A request that an engine preempted comes back with what it has written. If its text is among
        ``before``, it goes on from there, with the noise of its last steps.
        """
        own = self._seeds.getrandbits(63) if seed is None else seed % (1 << 64)
        known = [
            text
            for text in before
            if (text.request, text.row.prompt, text.row.decoding) == (request, prompt, decoding)
            if seed is None or text.row.seed == own
            if (start := text.row.written) and written[: len(start)] == start
        ]
        if known:
            last = max(known, key=lambda text: len(text.row.written))
            if (counted := self._ended.pop(last.row, None)) is not None:
                self.counts[counted] -= 1  # it was only preempted
            return replace(last, row=last.rows.fork(last.row, written, seed=own))
        if request.key_id not in self._rows:
            self._rows[request.key_id] = self.bound(request.key_id).rows(self._device)
        rows = self._rows[request.key_id]
        row = rows.open(
            prompt, written, seed=own, decoding=decoding, member=request.member, payload=request.payload
        )
        policy = self._config.policy
        exemptions = None if policy is None else policy.exemptions([prompt], self._host)
        return Marked(request, rows, row, exemptions)

    def ended(self, text: Marked) -> None:
        """Count a text that left the batch, and log it if its decoding left no room to its mark."""
        bound, room = self.bound(text.request.key_id), text.rows.room(text.row)
        reason = bound.unmarked_reason(room)
        self._ended[text.row] = reason or "marked"
        self.counts[reason or "marked"] += 1
        if room is not None and reason is not None:
            self._log.info(
                "dewmark counts a text as unmarked: no room (z %.1f to be expected from %d steps that could "
                "carry the mark); so far %s",
                room.z,
                room.steps,
                ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items())),
            )

    def bound(self, key_id: str) -> BoundScheme:
        """The scheme under a key; its tables are built for the first request that uses it."""
        if key_id not in self._bound:
            bound = self._bound[key_id] = self._bind(Key.load(self._config.keys[key_id]))
            self._log.info(
                "dewmark marks with %s, key id %s, key fingerprint %s, policy %s",
                bound.scheme.name,
                key_id,
                bound.fingerprint,
                self._config.policy.version if self._config.policy else "none",
            )
        return self._bound[key_id]

    def _bind(self, key: Key) -> BoundScheme:
        workspace = Workspace(
            cache=cache_dir(),
            find_host=host_info,
            open_host=functools.cache(lambda name: load_host(name or self._host.name)),
        )
        self._config.scheme.check_key(key)
        bound = self._config.scheme.bind(key, self._host, workspace)
        if isinstance(bound, KeepsRecords):
            raise ConfigError(
                f"{bound.scheme.name} keeps a record of every finished text, which serving engines do not "
                "pass on: run it in transformers, or use another scheme"
            )
        return bound

    def _warm(self) -> None:
        """Build the default key's tables, so that no request waits for them."""
        import torch

        text = self.open(MarkRequest(self._config.default_key), [], [], seed=0, decoding=Decoding())
        text.rows.mark([text.row], torch.zeros((1, self._host.vocab_size), device=self._device))


def mark_rows(texts: Mapping[int, Marked], logits: torch.Tensor) -> torch.Tensor:
    """Mark the rows of logits (batch, vocab) that have a text; the others stay as they are.

    So does a row whose next token a policy spares: the engine draws it, and the text goes on from there.
    """
    groups: dict[int, list[int]] = {}
    for index in sorted(texts):
        text = texts[index]
        if text.exemptions is not None and text.exemptions.spares([text.row.written])[0]:
            continue
        groups.setdefault(id(text.rows), []).append(index)
    for indices in groups.values():
        rows = texts[indices[0]].rows
        mine = [texts[index].row for index in indices]
        whole_batch = len(indices) == len(logits)
        marked = rows.mark(mine, logits if whole_batch else logits[indices])
        if whole_batch:
            return marked
        logits[indices] = marked
    return logits


def served_host(model: str, width: int, config: EngineConfig) -> HostInfo:
    """The model that an engine serves with ``width`` logits, as schemes see it."""
    info = host_info(config.host or model)
    if width != info.vocab_size:
        raise VocabularyError(
            f"the engine serves a model of {width} ids and {info.name} has {info.vocab_size}: set host in "
            "the configuration to the model that is served"
        )
    return info


def vllm_markers(vllm_config: Any, device: torch.device) -> Markers:  # noqa: ANN401 - vLLM's VllmConfig
    """The marks that the environment configures, on the model that vLLM serves."""
    config, model = config_from_environment(), vllm_config.model_config
    # ranks that share the work need the same seeds, and all see the same requests in the same order
    together = int(vllm_config.parallel_config.world_size) > 1
    seeds = random.Random(model.seed if together else secrets.randbits(64))
    host = served_host(model.model, int(model.get_vocab_size()), config)
    return Markers(config, host, device, seeds=seeds, log=_vllm_log)
