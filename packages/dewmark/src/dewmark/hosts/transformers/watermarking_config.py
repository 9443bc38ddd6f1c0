"""A scheme as transformers' own ``watermarking_config``.

    model.generate(**inputs, do_sample=True, watermarking_config=WatermarkingConfig(scheme))

There the scheme sees the logits after temperature, top-k and top-p; a logits processor sees them before. A
scheme that needs this final distribution draws the token itself and leaves no other. So it needs a call that
samples: greedy texts stay unmarked, with a warning, or are refused; beam search and assisted generation,
which exchange rows and take tokens back, are rejected. Texts without a seed of their own draw it from torch,
so `torch.manual_seed` repeats them.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import BaseWatermarkingConfig, GenerationMode
from transformers.generation.logits_process import LogitsProcessor

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError, VocabularyError
from dewmark.mark import Writer
from dewmark.scheme import BoundScheme

__all__ = ["WatermarkingConfig"]


_ASSISTED = (
    "assisted generation writes tokens ahead and takes them back",
    "leave out prompt_lookup_num_tokens and assistant models",
)
_LEAVE_A_CHOICE = "use do_sample=True, and options that leave a choice"
_SAMPLE = "use num_beams=1 and do_sample=True"


class WatermarkingConfig(BaseWatermarkingConfig):
    """Marks what ``model.generate`` writes; one object serves any number of calls.

    ``greedy`` says whether a call that does not sample writes ``unmarked`` text, with a warning, or is
    refused (``refuse``), if the scheme puts its mark in the draw.
    """

    def __init__(self, scheme: BoundScheme, *, greedy: Literal["unmarked", "refuse"] = "unmarked") -> None:
        self.scheme, self.greedy = scheme, greedy

    def validate(self) -> None:
        """Raise `ConfigError` unless the scheme is bound; transformers calls this before it generates."""
        if self.greedy not in ("unmarked", "refuse"):
            raise ConfigError(f"greedy must be 'unmarked' or 'refuse', got {self.greedy!r}")
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
        # transformers does not pass the options of the call, which its own function has at hand
        options = sys._getframe(1).f_locals.get("generation_config")
        if self.scheme.needs.final_distribution and isinstance(options, GenerationConfig):
            mode = options.get_generation_mode()
            if mode is GenerationMode.ASSISTED_GENERATION:
                raise _not_drawn(self.scheme, *_ASSISTED)
            given = {name: getattr(options, name) for name in ("temperature", "top_p", "top_k", "min_p")}
            sampling = Decoding(**{name: value for name, value in given.items() if value is not None})
            greedy = mode is GenerationMode.GREEDY_SEARCH
            if option := "do_sample=False" if greedy else sampling.takes_likeliest:
                said = f"{option} always takes the likeliest token, and {_in_the_draw(self.scheme)}"
                if self.greedy == "refuse":
                    raise ConfigError(f"{said}: {_LEAVE_A_CHOICE}")
                warnings.warn(f"this text carries no mark: {said}; {_LEAVE_A_CHOICE}", stacklevel=5)
                return _Unmarked()
            if mode is not GenerationMode.SAMPLE:
                name = str(mode.value).replace("_", " ")
                raise _not_drawn(self.scheme, f"{name} does not sample token by token", _SAMPLE)
        return _Marking(self.scheme)

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


def _in_the_draw(scheme: BoundScheme) -> str:
    return f"{scheme.scheme.name} puts its mark in the sampling of each token"


def _not_drawn(scheme: BoundScheme, why: str, remedy: str) -> ConfigError:
    return ConfigError(f"{why}, and {_in_the_draw(scheme)}: {remedy}")


class _Unmarked(LogitsProcessor):
    """Changes nothing."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


class _Marking(LogitsProcessor):
    """Starts writing at its first call, whose ids (batch, length) are the prompts."""

    def __init__(self, scheme: BoundScheme) -> None:
        self.scheme = scheme
        self._writer: Writer | None = None
        self._last: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) to marked logits of the same shape."""
        if input_ids.dim() == 1:
            raise ConfigError("continuous batching does not say whose token is marked: use model.generate")
        if self._writer is None:
            # from torch's generator, so that `torch.manual_seed` repeats a text
            seeds = torch.randint(2**63 - 1, (len(input_ids),)).tolist()
            self._writer = self.scheme.writer(input_ids, seeds=seeds)
        if self.scheme.needs.final_distribution:
            if (last := self._last) is not None:
                if input_ids.shape != (len(last), last.shape[1] + 1):
                    raise _not_drawn(self.scheme, *_ASSISTED)  # by a model, which is not among the options
                if not torch.equal(input_ids[:, :-1], last):
                    raise _not_drawn(self.scheme, "the rows were exchanged, as by beam search", _SAMPLE)
            self._last = input_ids
        return self._writer.logits(input_ids, scores, None)
