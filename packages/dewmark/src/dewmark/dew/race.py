"""The keyed race over the words of a lexicon: from logits to the drawn token.

    next token = argmax(logit + λ tanh(γu) − log(−log Φ(x)))

`dewmark.dew.noise` says what x is. The code compares E/p with E = −log Φ(x), which is the same race without
the outer logarithm. On a CUDA device the step runs as kernels (`dewmark.cuda.word_race`), after a check that
they draw what torch draws.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dewmark.cuda.graphs import Replayed
from dewmark.cuda.word_race import MAX_CANDIDATES, Mixture, draw_words, without_kernels
from dewmark.decoding import Decoding
from dewmark.dew.drafts import STRETCH, DraftScores, Drawn
from dewmark.dew.noise import innovations, keyed_noise, roots, used_candidates
from dewmark.dew.word_step import WordStates, WordTables
from dewmark.sampling import (
    CandidateRace,
    Choice,
    DraftingSession,
    RandomStreams,
    check_logits,
    decoding_options,
    fresh_seeds,
)
from dewmark.types import Seeds

__all__ = ["WordRace", "WordSession"]

_CALLED = 4  # steps before a session captures them, so that short texts do not pay for a capture


# The step


@dataclass(frozen=True)
class WordRace:
    """Draws the next tokens of texts; the ``m`` likeliest tokens of each are candidates for the mark.

    Every step takes the host's logits (batch, vocab), the texts, the key's ``W`` (d_T, d_C) or each row's own
    (batch, d_T, d_C), each row's decoding, and the rows' random states (batch, 1) at this step
    (`RandomStreams.states`).
    """

    mixture: Mixture
    m: int

    def __call__(
        self, scores: Tensor, texts: WordStates, W: Tensor, decodings: Sequence[Decoding], random: Tensor
    ) -> Choice:
        """Draw the next tokens, and count in the texts what room they left."""
        if self.m <= MAX_CANDIDATES and texts.tables.kernels:
            choice = self._checked(scores, texts, W, decodings, random)
            if choice is not None:
                return choice
        return _counted(texts, self.drawn(scores, texts, W, decodings, random))

    def drawn(
        self, scores: Tensor, texts: WordStates, W: Tensor, decodings: Sequence[Decoding], random: Tensor
    ) -> Drawn:
        """What is drawn without kernels, and by what noise."""
        race = CandidateRace(scores, decodings, self.m)
        aligned = texts.align(race.candidates, W)
        y = keyed_noise(aligned, race.uniforms(random), alpha=self.mixture.alpha)
        x = innovations(aligned, y, texts.state, texts.tables.units, alpha=self.mixture.alpha)
        numbers = (-torch.special.log_ndtr(x)).clamp_min_(1e-300)
        if self.mixture.strength:
            gain = self.mixture.strength * torch.tanh(self.mixture.gamma * aligned.u)
            race.values = race.values + gain.to(race.values.dtype)
        best = (race.values - numbers.log()).argmax(dim=1, keepdim=True)
        scale = roots(y.shape[1], alpha=self.mixture.alpha, device=y.device)
        texts.remember(aligned, y, used_candidates(race.values, best), scale)
        tokens, sound = race.winners(numbers)
        held = race.candidates == tokens.unsqueeze(1)
        held_value = race.values.masked_fill(~held, -math.inf).amax(dim=1)
        return Drawn(
            tokens,
            sound,
            noise=torch.where(held, x, 0.0).sum(dim=1),
            log_p=held_value - race.log_totals.squeeze(1),
            marked=(held & (aligned.rows > 0)).any(dim=1),
            begins=~(held & ~aligned.begins).any(dim=1),
            log_share=held_value - race.values.logsumexp(dim=1),
            root=(held * scale).sum(dim=1),
        )

    def _checked(
        self, scores: Tensor, texts: WordStates, W: Tensor, decodings: Sequence[Decoding], random: Tensor
    ) -> Choice | None:
        """Draw by the kernels; None if they fail at their first step here, or draw otherwise than torch."""
        tables, rows = texts.tables, torch.arange(len(scores), device=scores.device)
        new = tables not in _DRAWN and not (scores.is_cuda and torch.cuda.is_current_stream_capturing())
        before = texts.at(rows) if new else texts
        reason: object = None
        try:
            drawn = draw_words(
                tables,
                texts.state,
                W,
                scores,
                random,
                decoding_options(decodings, scores.device),
                filtered=any(decoding.filters for decoding in decodings),
                m=self.m,
                mixture=self.mixture,
            )
            if new:
                expected, sound = self.drawn(scores, before.at(rows), W, decodings, random)[:2]
                differ = int(((drawn[0] != expected) & sound).sum())
                if differ > len(scores) // 32:  # rounding may decide a race now and then
                    reason = f"{differ} of {len(scores)} tokens were drawn differently"
        except Exception as error:
            if not new:
                raise
            reason = error
        if reason is not None:
            tables.kernels = without_kernels(reason)
            texts.put(rows, before)
            return None
        _DRAWN.add(tables)
        return drawn


def _counted(texts: WordStates, drawn: Drawn) -> Choice:
    """What was drawn, whose room is counted in the texts."""
    texts.measure(drawn.log_share, drawn.root, marked=drawn.marked, begins=drawn.begins)
    return drawn.tokens, drawn.sound


_DRAWN: weakref.WeakSet[WordTables] = weakref.WeakSet()  # whose kernels have drawn what torch draws


# Sessions


class WordSession(DraftingSession):
    """Marks a batch of prompts (batch, length), of which it needs the shape alone.

    On a CUDA device the steps are one launch each after a few that are called one by one: from Python a
    step's kernels take ten times as long as on the device, and a host that is called from Python too has no
    time to hide that in.
    """

    stretch = STRETCH
    measures = True

    def __init__(
        self, race: WordRace, texts: WordStates, W: Tensor, prompt_ids: Tensor, *, seeds: Seeds
    ) -> None:
        self.texts = texts
        self._race, self._W = race, W
        self._noise = RandomStreams(fresh_seeds(len(prompt_ids), seeds), device=prompt_ids.device)
        self._start = self._length = prompt_ids.shape[1]  # ids of the prompt, and ids that were read
        self._drafts: DraftScores | None = None
        self._decoding: Decoding | None = None  # of the last steps
        self._steps = 0  # under that decoding
        self._step: Replayed | None = None

    def room(self) -> Tensor:
        return self.texts.room

    def read(self, ids: Tensor) -> WordStates:
        """The texts at ids (batch, length)."""
        self.texts.push(ids[:, self._length :])
        self._length = ids.shape[1]
        return self.texts

    def choose(self, input_ids: Tensor, scores: Tensor, decoding: Decoding) -> Choice:
        """Draw the next id of each row from logits (batch, vocab)."""
        ids, scores, random = self._prepared(input_ids, scores)
        captured = self._captured(ids, scores, decoding, random)
        return captured or self._race(scores, self.read(ids), self._W, [decoding] * len(scores), random)

    def _prepared(self, ids: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        check_logits(scores, self.texts.tables.vocab_size)
        random = self._noise.states(ids.shape[1] - self._start)
        return ids.to(random.device), scores.to(random.device, torch.float32), random

    def _captured(self, ids: Tensor, scores: Tensor, decoding: Decoding, random: Tensor) -> Choice | None:
        """The same from a captured step; None if there is none."""
        if decoding != self._decoding:
            self._decoding, self._steps, self._step = decoding, 0, None
        self._steps += 1
        if self._steps <= _CALLED or ids.shape[1] != self._length + 1 or not self._can_capture(scores):
            return None
        if self._step is None:
            self._step = self._capture(ids[:, -1:], scores, decoding, random)
        tokens, sound = self._step(ids[:, -1:], scores, random)
        self._length = ids.shape[1]
        return tokens, sound

    def _can_capture(self, scores: Tensor) -> bool:
        """Whether there are kernels to capture, and nobody else is capturing them."""
        return self.texts.tables.kernels and scores.is_cuda and not torch.cuda.is_current_stream_capturing()

    def _capture(self, tokens: Tensor, scores: Tensor, decoding: Decoding, random: Tensor) -> Replayed:
        texts, race, W, decodings = self.texts, self._race, self._W, [decoding] * len(scores)
        options = decoding_options(decodings, scores.device)

        def step(
            tokens: Tensor, scores: Tensor, random: Tensor, kept: Tensor = options
        ) -> Choice:  # the graph reads the options, which only a cache holds otherwise
            texts.push(tokens)
            return race(scores, texts, W, decodings, random)

        return Replayed(step, (tokens, scores, random), changed=texts.state)

    # Drafts

    def draw_drafts(self, ids: Tensor, scores: Tensor, decoding: Decoding, live: Tensor) -> Choice:
        """As `choose`, counting what is drawn in the rows that are ``live``."""
        ids, scores, random = self._prepared(ids, scores)
        texts = self.read(ids)
        drawn = self._race.drawn(scores, texts, self._W, [decoding] * len(scores), random)
        _counted(texts, drawn)
        if self._drafts is None:
            self._drafts = DraftScores(len(scores), device=random.device)
        self._drafts.add(drawn, live)
        return drawn.tokens, drawn.sound

    def keep_best(self, drafts: int) -> Tensor:
        """Continue all drafts of each text with the best one; the rows (batch,) that they continue."""
        assert self._drafts is not None
        rows = self._drafts.best(drafts).repeat_interleave(drafts)
        self.texts.put(torch.arange(len(rows), device=rows.device), self.texts.at(rows))
        return rows
