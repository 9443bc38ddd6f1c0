r"""The default mark as one of vLLM's own watermarks, in its second model runner.

    DEWMARK_VLLM_WATERMARKER=1 DEWMARK_VLLM_CONFIG=dewmark.toml vllm serve MODEL \
        --watermark-config '{"key": 0, "deduplicate_contexts": "none"}'

vLLM offers no registry of watermarks. `dewmark.hosts.engines.vllm_plugin`, which vLLM calls through its
plugin group ``vllm.general_plugins``, replaces the one function that makes them (`patch_create_watermarker`),
and does so only if that variable is 1. The key of ``--watermark-config`` is then ignored.

vLLM's watermarks have no state: they see the last tokens of an answer, not its prompt
(`dewmark.dew.stateless` says what that costs), with the configuration's default key for every request;
``"watermarking": false`` in a request is vLLM's own switch. Prefer `dewmark.hosts.engines.vllm_runner2`,
which has several keys, members, payloads and an opt-out that the server can forbid.

**Speculative decoding.** Drafts carry the mark. The tokens that replace rejected drafts are drawn in a kernel
that knows vLLM's own hash only, so they carry vLLM's Gumbel mark under a key derived from ours, which our
detector does not read: the share of accepted drafts is the share of the text that is marked.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dewmark.config import cache_dir
from dewmark.core.keys import Key
from dewmark.errors import ConfigError
from dewmark.extras import require
from dewmark.hosts import host_info
from dewmark.hosts.engines.vllm_config import config_from_environment
from dewmark.scheme import Scheme
from dewmark.workspace import Workspace

if TYPE_CHECKING:
    import torch

_CONTEXT = 32  # tokens
_USERS = (
    "vllm.v1.watermarking",
    "vllm.v1.watermarking.factory",
    "vllm.v1.watermarking.spec_decode",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu.spec_decode.speculator",
)
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64)  # SplitMix64's first constant

_vllm = require("vllm.v1.watermarking.watermarker", extra="vllm")


class _Draws(Protocol):
    def draw(self, scores: torch.Tensor, contexts: torch.Tensor, states: torch.Tensor) -> torch.Tensor: ...


@runtime_checkable
class _Stateless(Protocol):
    """A bound scheme that can mark from the last tokens alone."""

    def stateless(self, device: torch.device) -> _Draws: ...


class DewWatermarker(_vllm.Watermarker):  # type: ignore[misc, name-defined]
    """Draws every token with the default mark."""

    def __init__(self, bound: _Stateless) -> None:
        self._bound = bound
        self._marker = functools.cache(bound.stateless)  # by device

    @property
    def context_width(self) -> int:
        """The tokens that vLLM passes as a context."""
        return _CONTEXT

    def sample(
        self,
        logits: torch.Tensor,
        contexts: torch.Tensor,
        random_sampler: Any = None,  # noqa: ANN401 - vLLM's RandomSampler
        skip_mask: torch.Tensor | None = None,
    ) -> Any:  # noqa: ANN401 - vLLM's WatermarkSample
        """Draw ids (rows,) from final logits (rows, vocab); rows of ``skip_mask`` are drawn by vLLM."""
        import torch

        if skip_mask is not None and random_sampler is None:
            raise ValueError("skip_mask requires a random sampler")
        ids = self._marker(logits.device).draw(logits.float(), contexts, _states(random_sampler, logits))
        if skip_mask is not None:
            ids = torch.where(skip_mask, random_sampler(logits), ids)
        return _vllm.WatermarkSample(ids, logits)

    def _sample_watermarked(self, logits: torch.Tensor, contexts: torch.Tensor) -> Any:  # noqa: ANN401
        return self.sample(logits, contexts)


class SpeculativeDewWatermarker(DewWatermarker):
    """The mark on drafts; vLLM's own Gumbel mark on the tokens that replace rejected ones."""

    def __init__(self, bound: _Stateless, key: Key) -> None:
        super().__init__(bound)
        gumbel = require("vllm.v1.watermarking.gumbel", extra="vllm")
        self.draft_watermarker = DewWatermarker(bound)
        number = int.from_bytes(key.subkey("vllm recovered drafts")[:8], "big")
        self.target_watermarker = gumbel.GumbelWatermarker(number)


def _states(random_sampler: Any, logits: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """A number per row (rows, 1) that no other step has: of the request's seed and position, or fresh."""
    import torch

    if random_sampler is None:
        return torch.randint(-(1 << 62), 1 << 62, (len(logits), 1), device=logits.device)
    seeds = random_sampler.seeds[random_sampler.expanded_idx_mapping.clamp_min(0).long()].long()
    z: torch.Tensor = (
        (seeds ^ (seeds >> 31)) * _MIX
        + 2 * random_sampler.positions.long()
        + bool(random_sampler.is_drafting)
    )
    z = (z ^ (z >> 29)) * _MIX
    return (z ^ (z >> 32)).unsqueeze(1)


def create_dew_watermarker(config: Any) -> SpeculativeDewWatermarker:  # noqa: ANN401 - vLLM's WatermarkConfig
    """In place of vLLM's ``create_watermarker``: the default key of dewmark's configuration."""
    found = config_from_environment()
    return _created(found.scheme, found.keys[found.default_key], found.host)


@functools.cache
def _created(scheme: Scheme, key_file: Path, host: str | None) -> SpeculativeDewWatermarker:
    if host is None:
        raise ConfigError(
            "vLLM does not say which model its watermark is for: set host in the file that "
            "DEWMARK_VLLM_CONFIG names"
        )
    key = Key.load(key_file)
    bound = scheme.bind(key, host_info(host), Workspace(cache=cache_dir()))
    if not isinstance(bound, _Stateless):
        raise ConfigError(f"{scheme.name} cannot mark without state: use dew, or the processor")
    return SpeculativeDewWatermarker(bound, key)


def patch_create_watermarker() -> None:
    """Replace ``create_watermarker`` wherever vLLM has imported it."""
    for name in _USERS:
        module = require(name, extra="vllm")
        if hasattr(module, "create_watermarker"):
            module.create_watermarker = create_dew_watermarker  # type: ignore[attr-defined]
