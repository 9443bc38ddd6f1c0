"""Sessions and engine rows of the schemes that score each candidate on its own: `open` and `paper`.

*Texts* say what the next tokens of a batch depend on. They come from a `Batch`, which follows the texts of a
session, or from single texts, which an engine's rows follow. `KeyedRace` then draws the next tokens.

The noise of Gumbel-max sampling comes partly from the key. Over keys u is standard normal, so with fresh
r ~ N(0, 1) the mixture x = √α u + √(1−α) r is too, E = −log Φ(x) is Exp(1), and the token with the largest
p_i / E_i is, averaged over keys, a draw from p. α is the share of the randomness that is keyed: as α → 0 the
text becomes the unmarked one of the same seed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from dewmark.decoding import Decoding
from dewmark.sampling import (
    CandidateRace,
    Choice,
    ChoosingSession,
    RandomStreams,
    check_logits,
    fresh_seeds,
    one_hot_logits,
)
from dewmark.serving_rows import Row, Rows

__all__ = ["Batch", "Texts"]

_CPU = torch.device("cpu")

TextsT = TypeVar("TextsT")
TextsT_co = TypeVar("TextsT_co", covariant=True)
Race = Callable[[torch.Tensor, TextsT, Sequence[Decoding], torch.Tensor], Choice]
"""Logits (batch, vocab), texts, the rows' decodings and random states (batch, 1) to the drawn tokens."""


class Texts(ABC):
    """What the next tokens of a batch of texts depend on, at one step."""

    @abstractmethod
    def alignments(
        self, candidates: torch.Tensor, values: torch.Tensor, log_totals: torch.Tensor
    ) -> torch.Tensor:
        """u of the candidates (batch, m), float32; an exact 0 is a candidate or context without a mark.

        ``values`` (batch, m) are their logits, ``log_totals`` (batch, 1) the log-sum-exp of all logits.
        """

    @abstractmethod
    def repeated(self) -> torch.Tensor:
        """Whether each text's context has occurred before in that text, (batch, 1)."""


class Batch(ABC, Generic[TextsT_co]):
    """Follows the texts of one session while they grow."""

    @abstractmethod
    def texts(self, ids: torch.Tensor) -> TextsT_co:
        """The texts at ids (batch, length); called once per step."""


class Text(Protocol):
    """One text while it grows."""

    def push(self, token: int) -> None:
        """Append one token."""


T = TypeVar("T", bound=Text)


class Aligner(ABC, Generic[T]):
    """Scores candidates under one key on one device; all sessions there share it."""

    @abstractmethod
    def begin(self, prompt: Sequence[int]) -> T:
        """Start following a text."""

    @abstractmethod
    def together(self, texts: Sequence[T]) -> Texts:
        """Single texts as those of one step."""

    @abstractmethod
    def batch(self, prompt_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> Batch[Texts]:
        """The texts of a session that begins with prompts (batch, length)."""


@dataclass(frozen=True)
class KeyedRace:
    """Keyed Gumbel sampling among the m likeliest tokens, with a bias of strength λ and saturation γ."""

    alpha: float
    strength: float
    gamma: float
    m: int

    def __call__(
        self, scores: torch.Tensor, texts: Texts, decodings: Sequence[Decoding], states: torch.Tensor
    ) -> Choice:
        """Draw from the host's logits (batch, vocab), each row under its own decoding.

        ``states`` (batch, 1) are the rows' random states at this step (`RandomStreams.states`).
        """
        race = CandidateRace(scores, decodings, self.m)
        u = texts.alignments(race.candidates, race.values, race.log_totals).double()
        u = u.masked_fill(texts.repeated(), 0.0)
        numbers = keyed_exponentials(u, race.uniforms(states), alpha=self.alpha)
        if self.strength:
            race.values = race.values + self.strength * torch.tanh(self.gamma * u).to(race.values.dtype)
        return race.winners(numbers)


def keyed_exponentials(u: torch.Tensor, uniforms: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """E = −log Φ(√α u + √(1−α) Φ⁻¹(uniforms)), all (batch, m) float64: Exp(1) over keys and seeds.

    Where u is exactly 0, the candidate or its context carries no mark and the noise stays fresh:
    −log(uniforms).
    """
    keyed = math.sqrt(alpha) * u + math.sqrt(1.0 - alpha) * torch.special.ndtri(uniforms)
    numbers = torch.where(u != 0.0, -torch.special.log_ndtr(keyed), -uniforms.log())
    return numbers.clamp_min_(1e-300)


class KeyedSession(ChoosingSession, Generic[TextsT]):
    """Draws each row's token by a race whose noise comes partly from the key."""

    def __init__(
        self,
        race: Race[TextsT],
        batch: Batch[TextsT],
        *,
        vocab_size: int,
        prompt_ids: torch.Tensor,
        seeds: Sequence[int] | None,
    ) -> None:
        self._race = race
        self._batch = batch
        self._vocab_size = vocab_size
        self._noise = RandomStreams(fresh_seeds(len(prompt_ids), seeds), device=prompt_ids.device)
        self._start = prompt_ids.shape[1]

    def choose(self, input_ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding) -> Choice:
        """Draw the next id of each row from logits (batch, vocab)."""
        check_logits(scores, self._vocab_size)
        states = self._noise.states(input_ids.shape[1] - self._start)
        scores = scores.to(states.device, torch.float32)
        return self.draw(input_ids.to(states.device), scores, decoding, states)

    def draw(
        self, ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding, states: torch.Tensor
    ) -> Choice:
        """Draw the ids that follow ids (batch, length)."""
        return self._race(scores, self._batch.texts(ids), [decoding] * len(scores), states)


# Rows of serving engines: a batch that changes from step to step


class FollowedRow(Row, Generic[T]):
    """A text in an engine: how far it has been read, and its random numbers."""

    def __init__(
        self,
        aligner: Aligner[T],
        prompt: Sequence[int],
        written: Sequence[int],
        *,
        seed: int,
        decoding: Decoding,
    ) -> None:
        super().__init__(prompt, written, seed=seed, decoding=decoding)
        self._aligner = aligner
        self._read = 0
        self.text = aligner.begin(prompt)
        self.noise = RandomStreams([seed], device=_CPU)

    def catch_up(self) -> None:
        """Read what was written since the last step."""
        if len(self.written) < self._read:  # the engine took tokens back
            self.text, self._read = self._aligner.begin(self.prompt), 0
        for token in self.written[self._read :]:
            self.text.push(token)
        self._read = len(self.written)


class DrawnRow(Protocol):
    """What drawing needs of an engine's row."""

    written: Sequence[int]
    decoding: Decoding
    noise: RandomStreams


Mark = Callable[[torch.Tensor, Texts, Sequence[DrawnRow]], torch.Tensor]
"""Logits (rows, vocab) to marked ones."""


class FollowedRows(Rows, Generic[T]):
    """Marks rows of different prompts, steps, seeds and decoding options together."""

    def __init__(self, aligner: Aligner[T], mark: Mark, *, vocab_size: int) -> None:
        self._aligner = aligner
        self._mark = mark
        self._vocab_size = vocab_size

    def open(
        self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding
    ) -> FollowedRow[T]:
        """Start following a text."""
        return FollowedRow(self._aligner, prompt, written, seed=seed, decoding=decoding)

    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) float32 to marked ones, same shape."""
        check_logits(scores, self._vocab_size)
        mine: list[FollowedRow[T]] = [row for row in rows if isinstance(row, FollowedRow)]
        assert len(mine) == len(scores)
        for row in mine:
            row.catch_up()
        return self._mark(scores, self._aligner.together([row.text for row in mine]), mine)


def drawn(race: Race[TextsT], scores: torch.Tensor, texts: TextsT, rows: Sequence[DrawnRow]) -> torch.Tensor:
    """Logits (rows, vocab) in which only the token that a race draws is finite."""
    states = torch.cat([row.noise.states(len(row.written)) for row in rows])
    states = states.to(scores.device, non_blocking=True)
    return one_hot_logits(scores, race(scores, texts, [row.decoding for row in rows], states))


def draw_rows(race: KeyedRace) -> Mark:
    """Rows are marked by drawing their tokens."""
    return lambda scores, texts, rows: drawn(race, scores, texts, rows)
