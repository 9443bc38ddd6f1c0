"""A scheme as transformers' own ``watermarking_config``.

    model.generate(**inputs, do_sample=True, watermarking_config=WatermarkingConfig(scheme))

There the scheme sees the logits after temperature, top-k and top-p; a logits processor sees them before. A
scheme that needs this final distribution draws the token itself and leaves no other, so that greedy decoding
takes what was drawn, too. Beam search exchanges its rows and is rejected. Texts without a seed of their own
draw it from torch, so `torch.manual_seed` repeats them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
from transformers.generation.configuration_utils import BaseWatermarkingConfig
from transformers.generation.logits_process import LogitsProcessor

from dewmark.errors import ConfigError, VocabularyError
from dewmark.sampling import Session
from dewmark.scheme import BoundScheme

__all__ = ["WatermarkingConfig"]


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

    def __init__(self, scheme: BoundScheme) -> None:
        self.scheme = scheme
        self._session: Session | None = None
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits of the same shape."""
        if input_ids.dim() == 1:
            raise ConfigError("continuous batching does not say whose token is marked: use model.generate")
        if self._session is None:
            # from torch's generator, so that `torch.manual_seed` repeats a text
            seeds = torch.randint(2**63 - 1, (len(input_ids),)).tolist()
            self._session = self.scheme.session(input_ids, seeds=seeds)
        if self.scheme.needs.final_distribution:
            if self._last is not None and not torch.equal(input_ids[:, :-1], self._last):
                raise ConfigError(
                    f"the rows were exchanged, as by beam search, and {self.scheme.scheme.name} puts its "
                    "mark in the sampling of each token: use num_beams=1 and do_sample=True"
                )
            self._last = input_ids
        return self._session(input_ids, scores)
