"""Decoding options: how a text's next token is chosen, and when the text ends.

The one description that hosts, logits processors, serving engines and experiments share. Boundary: values and
their checks; `dewmark.sampling` applies them to logits.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import TypedDict

from dewmark.arguments import checked
from dewmark.errors import ConfigError

__all__ = ["CHAT_DECODING", "Decoding", "DecodingOptions", "check_int"]

_GREEDY = 1e-5  # below this temperature engines take the likeliest token
_SURE = 1e-6  # a share that the likeliest token always reaches: no vocabulary has a million ids


@functools.partial(checked, types=False)  # its own checks say the range, too
@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How the next token is chosen.

    ``temperature`` comes first (0 is greedy), then ``min_p``, ``top_k`` and ``top_p``, which at 0, 0 and 1
    filter nothing. ``no_repeat_ngram`` n > 0 forbids every n-gram that the prompt or the completion already
    contains. No text ends before ``min_new_tokens``. Every stretch of a marked text is written ``drafts``
    times, and the draft that carries the mark best is kept.
    """

    max_new_tokens: int = 200
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    no_repeat_ngram: int = 0
    min_new_tokens: int = 0
    drafts: int = 1

    def __post_init__(self) -> None:
        check_int("max_new_tokens", self.max_new_tokens, least=1)
        check_int("min_new_tokens", self.min_new_tokens, least=0)
        if self.min_new_tokens > self.max_new_tokens:
            most = f"max_new_tokens = {self.max_new_tokens}"
            raise ConfigError(f"min_new_tokens must not exceed {most}, got {self.min_new_tokens}")
        check_int("top_k", self.top_k, least=0)
        check_int("drafts", self.drafts, least=1)
        check_int("no_repeat_ngram", self.no_repeat_ngram, least=0)
        if not (_is_number(self.temperature) and 0.0 <= self.temperature < math.inf):
            raise ConfigError(f"temperature must be a number of at least 0, got {self.temperature}")
        if not (_is_number(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise ConfigError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not (_is_number(self.min_p) and 0.0 <= self.min_p <= 1.0):
            raise ConfigError(f"min_p must lie in [0, 1], got {self.min_p}")

    @property
    def filters(self) -> bool:
        """Whether any token can be filtered out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def takes_likeliest(self) -> str | None:
        """The option that always takes the likeliest token, such as ``top_k 1``; None if there is a choice.

        Every door decides by this which requests cannot be marked. What others leave is measured while the
        text is written (`dewmark.room`).
        """
        sure = {
            "temperature": self.temperature < _GREEDY,
            "top_k": self.top_k == 1,
            "top_p": self.top_p <= _SURE,
            "min_p": self.min_p >= 1.0,
        }
        return next((f"{name} {getattr(self, name):g}" for name, alone in sure.items() if alone), None)

    def check_samples(self, scheme: str = "the scheme", *, otherwise: str = "") -> None:
        """Raise `ConfigError` if there is never a choice between tokens into which to put a mark."""
        option = self.takes_likeliest
        if option is not None:
            cold = option.startswith("temperature")
            least = f"of at least {_GREEDY:g}" if self.temperature else "above 0"
            remedy = f"use a temperature {least}" if cold else f"leave out {option.split()[0]}"
            raise ConfigError(
                f"{option} always takes the likeliest token, and {scheme} puts its mark in "
                f"the choice between tokens: {remedy}{otherwise}"
            )

    def to_dict(self) -> dict[str, int | float]:
        """Plain JSON values; ``min_p`` and ``drafts`` are left out where they change nothing."""
        values = dataclasses.asdict(self)
        if not self.min_p:
            del values["min_p"]
        if self.drafts == 1:
            del values["drafts"]
        return values


class DecodingOptions(TypedDict, total=False):
    """The fields of `Decoding` as keyword arguments."""

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    no_repeat_ngram: int
    min_new_tokens: int
    drafts: int


def check_int(name: str, value: object, *, least: int) -> None:
    """Raise `ConfigError` unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


# What chat products use, for hosts whose generation_config states nothing.
CHAT_DECODING = Decoding(temperature=0.7, top_p=0.9)
