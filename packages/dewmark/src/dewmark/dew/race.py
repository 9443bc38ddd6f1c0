"""The keyed race over the words of a lexicon: from logits to the drawn token.

    y = √α u + √(1−α) r,    x = A^(−1/2) y,    A = αK + (1−α)I,    K_ij = (t_i · t_j)(c_i · c_j)
    next token = argmax(logit + λ tanh(γu) − log(−log Φ(x)))

The code compares E/p with E = −log Φ(x), which is the same race without the outer logarithm. On a CUDA device
the step runs as kernels (`dewmark.cuda.word_race`), after a check that they draw what torch draws.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dewmark.arrays import F32
from dewmark.cuda.graphs import Replayed
from dewmark.cuda.word_race import MOST, Mixture, draw_words, without_kernels
from dewmark.decoding import Decoding
from dewmark.dew.inverse_root import InverseRoot
from dewmark.dew.sessions import Batch, Texts
from dewmark.dew.word_step import Aligned, WordStates, WordTables
from dewmark.sampling import (
    CandidateRace,
    Choice,
    ChoosingSession,
    RandomStreams,
    check_logits,
    decoding_options,
    fresh_seeds,
    left_padding,
)

__all__ = ["LexiconBatch"]

_CALLED = 4  # steps before a session captures them, so that short texts do not pay for a capture


# Texts


class LexiconAligner:
    """Scores the words of a lexicon under one key, on one device."""

    def __init__(self, tables: WordTables, W: F32, *, k: int, pad_id: int | None) -> None:
        self.tables = tables
        self.k = k
        self.pad_id = pad_id
        self.W = torch.from_numpy(W).to(tables.device)

    def begin(self, size: int) -> WordStates:
        """Start following texts."""
        return WordStates(self.tables, size, k=self.k)


@dataclass(frozen=True)
class LexiconTexts(Texts):
    """Texts as states of the lexicon's trie."""

    aligner: LexiconAligner
    states: WordStates
    W: torch.Tensor  # (d_T, d_C), or (batch, d_T, d_C)

    @property
    def units(self) -> torch.Tensor:
        """ê_T of the lexicon's words, (R + 1, d_T)."""
        return self.aligner.tables.units

    def align(self, candidates: torch.Tensor) -> Aligned:
        """u of the candidates (batch, m), and their words."""
        return self.states.align(candidates, self.W)

    def alignments(
        self, candidates: torch.Tensor, values: torch.Tensor, log_totals: torch.Tensor
    ) -> torch.Tensor:
        """u of the candidates (batch, m)."""
        return self.align(candidates).u

    def repeated(self) -> torch.Tensor:
        """Nothing: `align` looks at repeated contexts itself."""
        return torch.zeros((1, 1), dtype=torch.bool, device=self.aligner.tables.device)


class LexiconBatch(Batch):
    """Follows the words of a session's texts on the device.

    ``W`` (batch, d_T, d_C) are the rows' own matrices, if they are not all the aligner's.
    """

    def __init__(
        self,
        aligner: LexiconAligner,
        prompt_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        W: torch.Tensor | None = None,
    ) -> None:
        self.current = LexiconTexts(aligner, aligner.begin(len(prompt_ids)), aligner.W if W is None else W)
        padding = left_padding(prompt_ids, attention_mask, pad_id=aligner.pad_id)
        self.current.states.read_prompts(prompt_ids, padding)
        self.length = prompt_ids.shape[1]  # ids that were read

    def texts(self, ids: torch.Tensor) -> LexiconTexts:
        """The texts at ids (batch, length)."""
        self.current.states.push(ids[:, self.length :])
        self.length = ids.shape[1]
        return self.current


# The step


_inverse_root = functools.cache(InverseRoot.of)


def mixture_of(*, alpha: float, strength: float, gamma: float, independent: int) -> Mixture:
    """How keyed and fresh noise are mixed, where ``independent`` candidates get independent noise."""
    root = _inverse_root(alpha, max(independent, 1))
    return Mixture(alpha, strength, gamma, independent, root.scale, root.least, root.rounds)


@dataclass(frozen=True)
class WordRace:
    """Draws the next tokens of texts; the ``m`` likeliest tokens of each are candidates for the mark."""

    mixture: Mixture
    m: int

    def __call__(
        self, scores: torch.Tensor, texts: LexiconTexts, decodings: Sequence[Decoding], states: torch.Tensor
    ) -> Choice:
        """Draw from the host's logits (batch, vocab), each row under its own decoding.

        ``states`` (batch, 1) are the rows' random states at this step (`RandomStreams.states`).
        """
        if self.m <= MOST and texts.aligner.tables.kernels:
            drawn = self._checked(scores, texts, decodings, states)
            if drawn is not None:
                return drawn
        return self.in_torch(scores, texts, decodings, states)

    def in_torch(
        self, scores: torch.Tensor, texts: LexiconTexts, decodings: Sequence[Decoding], states: torch.Tensor
    ) -> Choice:
        """The same without kernels."""
        race = CandidateRace(scores, decodings, self.m)
        aligned = texts.align(race.candidates)
        numbers = decorrelated_exponentials(texts, aligned, race.uniforms(states), self.mixture)
        if self.mixture.strength:
            gain = self.mixture.strength * torch.tanh(self.mixture.gamma * aligned.u)
            race.values = race.values + gain.to(race.values.dtype)
        return race.winners(numbers)

    def _checked(
        self, scores: torch.Tensor, texts: LexiconTexts, decodings: Sequence[Decoding], states: torch.Tensor
    ) -> Choice | None:
        """Draw by the kernels; None if they fail at their first step here, or draw otherwise than torch."""
        tables = texts.aligner.tables
        new = tables not in _DRAWN and not (scores.is_cuda and torch.cuda.is_current_stream_capturing())
        try:
            drawn = draw_words(
                tables,
                texts.states.state,
                texts.W,
                scores,
                states,
                decoding_options(decodings, scores.device),
                filtered=any(decoding.filters for decoding in decodings),
                m=self.m,
                mixture=self.mixture,
            )
            if new:
                expected, sound = self.in_torch(scores, texts, decodings, states)
                differ = int(((drawn[0] != expected) & sound).sum())
        except Exception as error:
            if not new:
                raise
            tables.kernels = without_kernels(error)
            return None
        if new and differ > len(scores) // 32:  # rounding may decide a race now and then
            tables.kernels = without_kernels(f"{differ} of {len(scores)} tokens were drawn differently")
            return None
        _DRAWN.add(tables)
        return drawn


_DRAWN: weakref.WeakSet[WordTables] = weakref.WeakSet()  # whose kernels have drawn what torch draws


def decorrelated_exponentials(
    texts: LexiconTexts, aligned: Aligned, uniforms: torch.Tensor, mixture: Mixture
) -> torch.Tensor:
    """Exp(1) numbers (batch, m), independent over keys and seeds for the likeliest candidates.

    y = √α u + √(1−α) r has the covariance A = αK + (1−α)I over keys and seeds, where K_ij is the product of
    the cosines between words and between contexts. So x = A^(−1/2) y is standard normal.
    """
    alpha = mixture.alpha
    marked = aligned.u != 0.0
    fresh = torch.special.ndtri(uniforms)
    y = torch.where(marked, math.sqrt(alpha) * aligned.u + math.sqrt(1.0 - alpha) * fresh, fresh)
    n = min(mixture.n, y.shape[1])
    if n:
        units = torch.nn.functional.embedding(aligned.rows[:, :n], texts.units).float()
        same = aligned.begins[:, :n].unsqueeze(1) == aligned.begins[:, :n].unsqueeze(2)
        K = torch.bmm(units, units.transpose(1, 2).contiguous())  # much faster than without, on an ARM core
        A = alpha * K * torch.where(same, 1.0, aligned.likeness.unsqueeze(2))
        A = A * (marked[:, :n].unsqueeze(1) & marked[:, :n].unsqueeze(2))
        A.diagonal(dim1=1, dim2=2).fill_(1.0)
        x = _inverse_root(alpha, n)(A, y[:, :n].float())
        y = torch.cat((x.double(), y[:, n:]), dim=1)
    numbers: torch.Tensor = -torch.special.log_ndtr(y)
    return numbers.clamp_min_(1e-300)


# Sessions


class CapturedRace:
    """A session's steps as one launch each, on a CUDA device, after a few that are called one by one.

    From Python a step's kernels take ten times as long as on the device; a host that is called from Python
    too has no time to hide that in.
    """

    def __init__(self, race: WordRace, batch: LexiconBatch) -> None:
        self._race = race
        self._batch = batch
        self._decoding: Decoding | None = None  # of the last steps
        self._steps = 0  # under that decoding
        self._step: Replayed | None = None

    def choose(
        self, ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding, states: torch.Tensor
    ) -> Choice | None:
        """As the race, after ids (batch, length); None if the step is not captured."""
        if decoding != self._decoding:
            self._decoding, self._steps, self._step = decoding, 0, None
        self._steps += 1
        if self._steps <= _CALLED or ids.shape[1] != self._batch.length + 1 or not self._can(scores):
            return None
        if self._step is None:
            self._step = self._capture(ids[:, -1:], scores, decoding, states)
        tokens, sound = self._step(ids[:, -1:], scores, states)
        self._batch.length = ids.shape[1]
        return tokens, sound

    def _can(self, scores: torch.Tensor) -> bool:
        """Whether there are kernels to capture, and nobody else is capturing them."""
        kernels = self._batch.current.aligner.tables.kernels
        return kernels and scores.is_cuda and not torch.cuda.is_current_stream_capturing()

    def _capture(
        self, tokens: torch.Tensor, scores: torch.Tensor, decoding: Decoding, states: torch.Tensor
    ) -> Replayed:
        texts, race, decodings = self._batch.current, self._race, [decoding] * len(scores)
        options = decoding_options(decodings, scores.device)

        def step(
            tokens: torch.Tensor, scores: torch.Tensor, states: torch.Tensor, kept: torch.Tensor = options
        ) -> Choice:  # the graph reads the options, which only a cache holds otherwise
            texts.states.push(tokens)
            return race(scores, texts, decodings, states)

        return Replayed(step, (tokens, scores, states), changed=texts.states.state)


class LexiconSession(ChoosingSession):
    """Draws each row's token by the race."""

    def __init__(
        self,
        race: WordRace,
        batch: LexiconBatch,
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
        self._captured = CapturedRace(race, batch)

    def choose(self, input_ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding) -> Choice:
        """Draw the next id of each row from logits (batch, vocab)."""
        check_logits(scores, self._vocab_size)
        states = self._noise.states(input_ids.shape[1] - self._start)
        scores = scores.to(states.device, torch.float32)
        ids = input_ids.to(states.device)
        drawn = self._captured.choose(ids, scores, decoding, states)
        if drawn:
            return drawn
        return self._race(scores, self._batch.texts(ids), [decoding] * len(scores), states)
