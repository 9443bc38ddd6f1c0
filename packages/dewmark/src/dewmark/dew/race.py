"""The keyed race over the words of a lexicon: from logits to the drawn token.

    next token = argmax(logit + λ tanh(γu) − log(−log Φ(x)))

`dewmark.dew.noise` says what x is. The code compares E/p with E = −log Φ(x), which is the same race without
the outer logarithm. On a CUDA device the step runs as kernels (`dewmark.cuda.word_race`), after a check that
they draw what torch draws.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dewmark.arrays import F32
from dewmark.cuda.graphs import Replayed
from dewmark.cuda.word_race import GAMMA, MOST, Mixture, draw_words, without_kernels
from dewmark.decoding import Decoding
from dewmark.dew.drafts import STRETCH, DraftScores, Drawn
from dewmark.dew.noise import innovations, keyed_noise, roots, used_candidates
from dewmark.dew.sessions import Batch, KeyedSession, Texts
from dewmark.dew.word_step import Aligned, WordStates, WordTables
from dewmark.sampling import (
    CandidateRace,
    Choice,
    DraftingSession,
    check_logits,
    decoding_options,
)

__all__ = ["LexiconBatch"]

_CALLED = 4  # steps before a session captures them, so that short texts do not pay for a capture


# Texts


class LexiconAligner:
    """Scores the words of a lexicon under one key, on one device."""

    def __init__(self, tables: WordTables, W: F32, *, k: int) -> None:
        self.tables = tables
        self.k = k
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


class LexiconBatch(Batch[LexiconTexts]):
    """Follows the words of a session's texts on the device; prompts (batch, length) do not matter.

    ``W`` (batch, d_T, d_C) are the rows' own matrices, if they are not all the aligner's.
    """

    def __init__(
        self, aligner: LexiconAligner, prompt_ids: torch.Tensor, *, W: torch.Tensor | None = None
    ) -> None:
        self.current = LexiconTexts(aligner, aligner.begin(len(prompt_ids)), aligner.W if W is None else W)
        self.length = prompt_ids.shape[1]  # ids that were read

    def texts(self, ids: torch.Tensor) -> LexiconTexts:
        """The texts at ids (batch, length)."""
        self.current.states.push(ids[:, self.length :])
        self.length = ids.shape[1]
        return self.current


# The step


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
        return self.drawn(scores, texts, decodings, states)[:2]

    def drawn(
        self, scores: torch.Tensor, texts: LexiconTexts, decodings: Sequence[Decoding], states: torch.Tensor
    ) -> Drawn:
        """What is drawn without kernels, and by what noise."""
        race, state = CandidateRace(scores, decodings, self.m), texts.states.state
        aligned = texts.align(race.candidates)
        y = keyed_noise(aligned, race.uniforms(states), alpha=self.mixture.alpha)
        x = innovations(aligned, y, state, texts.aligner.tables.units, alpha=self.mixture.alpha)
        numbers = (-torch.special.log_ndtr(x)).clamp_min_(1e-300)
        if self.mixture.strength:
            gain = self.mixture.strength * torch.tanh(GAMMA * aligned.u)
            race.values = race.values + gain.to(race.values.dtype)
        best = (race.values - numbers.log()).argmax(dim=1, keepdim=True)
        scale = roots(y.shape[1], alpha=self.mixture.alpha, device=y.device)
        texts.states.remember(aligned, y, used_candidates(race.values, best), scale)
        tokens, sound = race.winners(numbers)
        held = race.candidates == tokens.unsqueeze(1)
        log_p = race.values.masked_fill(~held, -math.inf).amax(dim=1) - race.log_totals.squeeze(1)
        return Drawn(
            tokens,
            sound,
            noise=torch.where(held, x, 0.0).sum(dim=1),
            log_p=log_p,
            marked=(held & (aligned.rows > 0)).any(dim=1),
            begins=~(held & ~aligned.begins).any(dim=1),
        )

    def _checked(
        self, scores: torch.Tensor, texts: LexiconTexts, decodings: Sequence[Decoding], states: torch.Tensor
    ) -> Choice | None:
        """Draw by the kernels; None if they fail at their first step here, or draw otherwise than torch."""
        tables = texts.aligner.tables
        new = tables not in _DRAWN and not (scores.is_cuda and torch.cuda.is_current_stream_capturing())
        before = texts.states.at(torch.arange(len(scores), device=scores.device)) if new else texts.states
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
                again = dataclasses.replace(texts, states=before)
                expected, sound = self.in_torch(scores, again, decodings, states)
                differ = int(((drawn[0] != expected) & sound).sum())
        except Exception as error:
            if not new:
                raise
            tables.kernels = without_kernels(error)
            texts.states.put(torch.arange(len(scores), device=scores.device), before)
            return None
        if new and differ > len(scores) // 32:  # rounding may decide a race now and then
            tables.kernels = without_kernels(f"{differ} of {len(scores)} tokens were drawn differently")
            texts.states.put(torch.arange(len(scores), device=scores.device), before)
            return None
        _DRAWN.add(tables)
        return drawn


_DRAWN: weakref.WeakSet[WordTables] = weakref.WeakSet()  # whose kernels have drawn what torch draws


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


class LexiconSession(KeyedSession[LexiconTexts], DraftingSession):
    """Draws each row's token by the race, from a captured step where there is one."""

    stretch = STRETCH

    def __init__(
        self,
        race: WordRace,
        batch: LexiconBatch,
        *,
        vocab_size: int,
        prompt_ids: torch.Tensor,
        seeds: Sequence[int] | None,
    ) -> None:
        super().__init__(race, batch, vocab_size=vocab_size, prompt_ids=prompt_ids, seeds=seeds)
        self._words, self._texts = race, batch.current
        self._drafts: DraftScores | None = None
        self._captured = CapturedRace(race, batch)

    def draw(
        self, ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding, states: torch.Tensor
    ) -> Choice:
        """Draw the ids that follow ids (batch, length)."""
        captured = self._captured.choose(ids, scores, decoding, states)
        return captured or super().draw(ids, scores, decoding, states)

    # Drafts

    def draw_drafts(
        self, ids: torch.Tensor, scores: torch.Tensor, decoding: Decoding, live: torch.Tensor
    ) -> Choice:
        """As `choose`, counting what is drawn in the rows that are ``live``."""
        check_logits(scores, self._vocab_size)
        states = self._noise.states(ids.shape[1] - self._start)
        scores = scores.to(states.device, torch.float32)
        texts = self._batch.texts(ids.to(states.device))
        drawn = self._words.drawn(scores, texts, [decoding] * len(scores), states)
        if self._drafts is None:
            self._drafts = DraftScores(len(scores), device=states.device)
        self._drafts.add(drawn, live)
        return drawn.tokens, drawn.sound

    def keep_best(self, drafts: int) -> torch.Tensor:
        """Continue all drafts of each text with the best one; the rows (batch,) that they continue."""
        assert self._drafts is not None
        rows = self._drafts.best(drafts).repeat_interleave(drafts)
        states = self._texts.states
        states.put(torch.arange(len(rows), device=rows.device), states.at(rows))
        return rows
