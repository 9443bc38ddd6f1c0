"""Schemes whose detection weighs each token by what the host thought of its place.

The host runs once over each text, batched, after its prompt where that is known. Under H0 the text, and so
its weights, do not depend on the key: given the weights the law of the scores over keys is what it was.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dewmark.arrays import F64
from dewmark.baselines.green.lists import GreenBound
from dewmark.baselines.token_schemes import HostReadingScheme, Place, TokenBound, check
from dewmark.errors import ConfigError
from dewmark.scheme import Needs
from dewmark.workspace import HostInfo, LanguageModel, Tokenized, Workspace

if TYPE_CHECKING:
    import torch


__all__ = ["EntropyBound", "EntropyScheme", "GreenEntropyScheme", "WeighedBound"]


_ROWS_AT_ONCE = 8  # what fits a cache: a few times as fast as all places of a text at once


class EntropyScheme(HostReadingScheme):
    """A scheme that asks the host at detection."""

    @abstractmethod
    def join(self, secret: bytes, host: HostInfo, fingerprint: str, workspace: Workspace) -> WeighedBound:
        """The scheme with a secret of 32 bytes and a host's vocabulary."""


@dataclass(frozen=True)
class GreenEntropyScheme(EntropyScheme):
    """Green lists by the hash of the ids before a token, and the host's opinion on top of them."""

    needs: ClassVar[Needs] = Needs(host_at_detection=True)

    gamma: float = 0.5
    """Share γ of the vocabulary that is green."""
    delta: float = 2.0
    """What is added to green logits, δ."""
    prefix: int = 1
    """Context width h: how many ids before a token decide its green list."""

    def validate(self) -> None:
        """Refuse values out of range."""
        check(
            (0.0 < self.gamma < 1.0, "gamma", "lie in (0, 1)", self.gamma),
            (self.delta > 0.0, "delta", "be positive", self.delta),
            (self.prefix >= 1, "prefix", "be at least 1", self.prefix),
        )


class WeighedBound(TokenBound):
    """Such a scheme with its secret and a vocabulary; the host is opened when it is first needed.

    ``known`` holds weights that need no second look at the text; by default nothing is kept.
    """

    known: dict[Place, F64] | None = None
    measure: str | None = None  # the model that is asked, if it is not the host itself
    _workspace: Workspace

    @abstractmethod
    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) of the host for n places to their weights (n,), none negative."""

    def position_weights(
        self, texts: Sequence[Tokenized], prompts: Sequence[Tokenized]
    ) -> Iterator[F64 | None]:
        """For each text the weights (L,) of its tokens."""
        known = {} if self.known is None else self.known
        places = [(prompt.text, text.ids) for text, prompt in zip(texts, prompts, strict=True)]
        new = [place for place in dict.fromkeys(places) if place not in known]
        if new:
            rows = self._model().next_logits([prompt for prompt, _ in new], [ids for _, ids in new])
            known.update(zip(new, map(self._weights, rows), strict=True))
        for place in places:
            yield known[place]

    def _weights(self, logits: torch.Tensor) -> F64:
        weights = [
            self.weigh(logits[i : i + _ROWS_AT_ONCE].float()).cpu().numpy()
            for i in range(0, len(logits), _ROWS_AT_ONCE)
        ]
        return np.concatenate(weights).astype(np.float64) if weights else np.zeros(0)

    def _model(self) -> LanguageModel:
        if self._workspace.open_host is None:
            raise ConfigError(
                f"{self.scheme.name} runs the host to detect, and here is none: "
                "load the scheme with dewmark.load_scheme, or choose one that detects without"
            )
        return self._workspace.open_host(self.measure)


class EntropyBound(WeighedBound, GreenBound):
    """A green list of this kind."""

    def __init__(
        self,
        scheme: EntropyScheme,
        host: HostInfo,
        fingerprint: str,
        *,
        secret: bytes,
        gamma: float,
        width: int,
        workspace: Workspace,
    ) -> None:
        super().__init__(scheme, host, fingerprint, secret=secret, gamma=gamma, width=width)
        self._workspace = workspace
