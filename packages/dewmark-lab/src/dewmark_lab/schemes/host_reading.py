"""Schemes whose detection runs a language model, the host or a surrogate, over the text.

The model runs once over each text, after its prompt if that is known. `HostReadings` keeps a small summary of
its logits (a weight or a few masses per position), which many keys can share.

Validity: under H0 the text, and with it the summary, does not depend on the key. Given the summary, the
scores have the same distribution over keys as before. A wrong model or prompt costs power, never validity.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dewmark.arrays import F64, I64
from dewmark.core.keys import Key
from dewmark.errors import ConfigError
from dewmark.workspace import HostInfo, LanguageModel, Texts, Workspace
from dewmark_lab.schemes.token_schemes import TokenBound, TokenScheme

_TextAfterPrompt = tuple[str, tuple[int, ...]]  # a prompt's text and the ids after it

_ROWS_AT_ONCE = 8  # fits in cache: a few times as fast as all positions of a text at once


class ReadingScheme(TokenScheme):
    """The configuration of such a scheme."""

    def bind_keys(self, keys: Sequence[Key], host: HostInfo, workspace: Workspace) -> Iterator[TokenBound]:
        """Bind the scheme to several keys; the model runs once for all of them."""
        known: dict[_TextAfterPrompt, NDArray[Any]] = {}
        for key in keys:
            bound = self.bind(key, host, workspace)
            assert isinstance(bound, HostReadingBound)
            bound.readings.known = known
            yield bound


class HostReadingBound(TokenBound):
    """Such a scheme, bound. Subclasses set ``readings``."""

    readings: HostReadings


class HostReadings:
    """Runs a language model over texts and keeps a summary of its logits over each.

    ``model`` opens the model when it is first needed. ``known`` keeps the summaries for later calls; by
    default nothing is kept.
    """

    def __init__(self, model: Callable[[], LanguageModel]) -> None:
        self.model = model
        self.known: dict[_TextAfterPrompt, NDArray[Any]] | None = None

    def __call__(
        self, texts: Texts, prompts: Texts, summarize: Callable[[torch.Tensor], NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """The summary of each text after its prompt; ``summarize`` makes it from logits (L, vocab)."""
        known = {} if self.known is None else self.known
        asked = [(prompt.text, text.ids) for text, prompt in zip(texts, prompts, strict=True)]
        new = [each for each in dict.fromkeys(asked) if each not in known]
        if new:
            logits = self.model().next_logits([prompt for prompt, _ in new], [ids for _, ids in new])
            known.update(zip(new, map(summarize, logits), strict=True))
        return [known[each] for each in asked]


class WeightedBound(HostReadingBound):
    """A scheme that weights each token by the model's distribution at its position."""

    @abstractmethod
    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits (n, vocab) at n positions to their weights (n,), none negative."""

    def position_weights(self, texts: Texts, prompts: Texts) -> Iterator[F64 | None]:
        yield from self.readings(texts, prompts, self._weights)

    def _weights(self, logits: torch.Tensor) -> F64:
        weights = [
            self.weigh(logits[i : i + _ROWS_AT_ONCE].float()).cpu().numpy()
            for i in range(0, len(logits), _ROWS_AT_ONCE)
        ]
        return np.concatenate(weights).astype(np.float64) if weights else np.zeros(0)


def open_model(
    workspace: Workspace, name: str | None, *, scheme: str, instead: str = "choose another scheme"
) -> Callable[[], LanguageModel]:
    """A function that opens the named model, or the host itself if ``name`` is None, when it is needed."""

    def open_now() -> LanguageModel:
        if workspace.open_host is None:
            raise ConfigError(
                f"{scheme} runs a language model to detect, and none can be opened here: "
                f"bind the scheme with dewmark.load_scheme, or {instead}"
            )
        return workspace.open_host(name)

    return open_now


def entropy(logits: torch.Tensor) -> torch.Tensor:
    """The entropy in nats of the softmax of logits (n, vocab), some of which may be -inf: (n,)."""
    below_top = (logits.float() - logits.amax(dim=-1, keepdim=True)).clamp_(min=-1e4)
    shares = below_top.exp()
    total = shares.sum(dim=-1)
    return total.log() - below_top.mul_(shares).sum(dim=-1) / total


def weighted_bernoulli_pmf(levels: I64, chances: F64) -> F64:
    """The probabilities of Σ n_i B_i = 0, 1, …, Σ n_i, with integers n_i and B_i ~ Bernoulli(q_i), (N,)."""
    pmf = np.zeros(int(levels.sum()) + 1)
    pmf[0], top = 1.0, 0
    for n, q in zip(levels.tolist(), chances.tolist(), strict=True):
        raised = q * pmf[: top + 1]
        pmf[: top + 1] *= 1.0 - q
        pmf[n : n + top + 1] += raised
        top += n
    return pmf
