"""An attacker's own writing with a stolen mark, in the form that hosts run: a scheme without a key.

`CountsForger` adds (or, to scrub, subtracts) the boosts that `stealing_counts` learned. `Rewriter` makes any
forger rewrite given texts token by token: each place prefers the original's token by ``fidelity`` nats, so
that only tokens which the stolen mark speaks against, or the host finds unlikely, are replaced.

Boundary: neither knows the victim's key, nor detects anything: scoring is the victim's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch

from dewmark.attacks.stealing.counting import StolenBoosts
from dewmark.core.keys import Key
from dewmark.errors import ConfigError, VocabularyError
from dewmark.scheme import BoundScheme, Needs, Scheme, Session, State
from dewmark.types import Detection
from dewmark.workspace import HostInfo, Workspace

__all__ = ["CountsForger", "Rewriter"]


@dataclass(frozen=True)
class Forgery(Scheme):
    """How an attacker writes: what was learned (its hash), how strongly it is used, what is followed."""

    name: ClassVar[str] = "forgery"
    summary: ClassVar[str] = "a stolen mark, written without the key"

    learned: str = ""
    strength: float = 0.0
    fidelity: float = 0.0

    def validate(self) -> None:
        """Every strength will do: a negative one scrubs."""

    def bind(self, key: Key, host: HostInfo, workspace: Workspace) -> NoReturn:
        """A forger has no key."""
        raise ConfigError("a forgery has no key: make one with dewmark.attacks.stealing.attack.steal")

    def restore(self, state: State, host: HostInfo, fingerprint: str, workspace: Workspace) -> NoReturn:
        """Nothing of it is stored."""
        raise ConfigError("a forgery is not stored: make one with dewmark.attacks.stealing.attack.steal")


class Forger(BoundScheme):
    """What all forgers share: they write and do not detect."""

    tests: ClassVar[tuple[str, ...]] = ()

    def detect_batch(
        self,
        texts: Sequence[str],
        *,
        prompts: Sequence[str | None] | None = None,
        fpr: float = 0.01,
        test: str | None = None,
    ) -> list[Detection]:
        """An attacker has no detector."""
        raise ConfigError("a forger has no detector: score its texts with the victim's")

    def state(self) -> State:
        """Nothing of it is stored."""
        raise ConfigError("a forger is not stored")


class CountsForger(Forger):
    """Writes with the boosts that counting gave, times ``strength``."""

    def __init__(self, boosts: StolenBoosts, host: HostInfo, *, strength: float) -> None:
        if boosts.vocab_size != host.vocab_size:
            raise VocabularyError(
                f"the counts are of {boosts.vocab_size} tokens, {host.name} has {host.vocab_size}: "
                "count with the attacker's own tokenizer"
            )
        super().__init__(Forgery(learned=boosts.identity, strength=strength), host, "")
        self._boosts = boosts
        self._strength = strength

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start writing after prompts (batch, length)."""
        return _CountsSession(self._boosts, self._strength)


class _CountsSession(Session):
    def __init__(self, boosts: StolenBoosts, strength: float) -> None:
        self._boosts = boosts
        self._strength = strength

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) plus strength times boost; a context shorter than h gets none."""
        h = self._boosts.rules.h
        if input_ids.shape[1] < h or not self._strength:
            return scores
        boost = self._boosts.after(input_ids[:, -h:].to(scores.device))
        return scores + self._strength * boost.to(scores.dtype)


class Rewriter(Forger):
    """Writes the ``originals`` (token ids, by the row's seed) again, in a forger's way."""

    def __init__(
        self,
        forger: BoundScheme | None,
        originals: Mapping[int, Sequence[int]],
        host: HostInfo,
        *,
        fidelity: float,
    ) -> None:
        learned = "" if forger is None else forger.config_hash
        super().__init__(Forgery(learned=learned, fidelity=fidelity), host, "")
        self._forger = forger
        self._originals = originals
        self._fidelity = fidelity

    @property
    def needs(self) -> Needs:
        """It follows the originals by their logits, so it must see them before they are warped."""
        return Needs()

    def session(
        self,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        seeds: Sequence[int] | None = None,
    ) -> Session:
        """Start rewriting; the rows' seeds say which texts."""
        if seeds is None:
            raise ConfigError("a rewriter finds its originals by the rows' seeds: give them")
        inner = (
            None if self._forger is None else self._forger.session(prompt_ids, attention_mask, seeds=seeds)
        )
        rows = [self._originals[seed] for seed in seeds]
        return _RewriteSession(inner, rows, start=prompt_ids.shape[1], fidelity=self._fidelity)


class _RewriteSession(Session):
    def __init__(
        self, inner: Session | None, originals: Sequence[Sequence[int]], *, start: int, fidelity: float
    ) -> None:
        self._inner = inner
        self._originals = originals
        self._start = start
        self._fidelity = fidelity

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab), marked by the forger, plus ``fidelity`` on each original's next token."""
        if self._inner is not None:
            scores = self._inner(input_ids, scores)
        step = input_ids.shape[1] - self._start
        pairs = [(row, ids[step]) for row, ids in enumerate(self._originals) if step < len(ids)]
        if not pairs:
            return scores
        rows, tokens = torch.tensor(pairs, device=scores.device).unbind(dim=1)
        followed = scores.clone()
        followed[rows, tokens] += self._fidelity
        return followed
