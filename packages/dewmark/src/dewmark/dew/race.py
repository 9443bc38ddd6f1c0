"""The keyed race over the words of a lexicon: from logits to the drawn token, and the texts that race.

    next token = argmax(logit + λ tanh(γu) − log(−log Φ(x)))

`dewmark.dew.noise` says what x is. The code compares E/p with E = −log Φ(x), which is the same race without
the outer logarithm. On a CUDA device the step runs as kernels (`dewmark.cuda.word_race`), after a check that
they draw what torch draws.

`WordSession` marks a batch of texts that stay, and `WordRows` the texts of an engine: both keep the texts'
states (`dewmark.dew.word_step`) on the device and take a step by appending what was written and racing.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dewmark.cuda.graphs import Replayed
from dewmark.cuda.word_race import MAX_CANDIDATES, Mixture, draw_words, without_kernels
from dewmark.decoding import Decoding
from dewmark.dew.drafts import STRETCH, DraftScores, Drawn
from dewmark.dew.noise import innovations, keyed_noise, roots, used_candidates
from dewmark.dew.word_step import KeyTensors, WordStates, WordTables
from dewmark.mark import DraftingSession, Row, Rows
from dewmark.room import Room
from dewmark.sampling import (
    CandidateRace,
    Choice,
    RandomStreams,
    RowOptions,
    check_logits,
    decoding_options,
    fresh_seeds,
    one_hot_logits,
)
from dewmark.types import Seeds

__all__ = ["WordRace", "WordRows", "WordSession"]

_CALLED = 4  # steps before a session captures them, so that short texts do not pay for a capture
_CPU = torch.device("cpu")
_SLOTS = 16  # states that there is room for at first, two for each text

KeyOf = Callable[[int, int | None, int | None], KeyTensors | None]
"""A text's numbers by its seed, member and payload; None for the key's own."""


# The step


@dataclass(frozen=True)
class WordRace:
    """Draws the next tokens of texts; the ``m`` likeliest tokens of each are candidates for the mark.

    Every step takes the host's logits (batch, vocab), the texts, the numbers of the key or of each row, each
    row's decoding, and the rows' random states (batch, 1) at this step (`RandomStreams.states`).
    """

    mixture: Mixture
    m: int

    def __call__(
        self,
        scores: Tensor,
        texts: WordStates,
        key: KeyTensors,
        decodings: Sequence[Decoding],
        random: Tensor,
    ) -> Choice:
        """Draw the next tokens, and count in the texts what room they left."""
        if self.m <= MAX_CANDIDATES and texts.tables.kernels:
            choice = self._checked(scores, texts, key, decodings, random)
            if choice is not None:
                return choice
        return self.drawn(scores, texts, key, decodings, random)[:2]

    def drawn(
        self,
        scores: Tensor,
        texts: WordStates,
        key: KeyTensors,
        decodings: Sequence[Decoding],
        random: Tensor,
    ) -> Drawn:
        """Draw without kernels, and say by what noise."""
        # 1. Logits are warped, and the m likeliest tokens are candidates
        race = CandidateRace(scores, decodings, self.m)
        if scores.device.type == "cpu":
            race.narrow()
        able = torch.isfinite(race.values)
        free = able.sum(dim=1) > 1  # a step without a choice says nothing of the key
        # 2. Keyed noise says how each fits the words before it, less what the text has revealed
        aligned = texts.align(race.candidates, key.W, able=able)
        shares = roots(aligned, self.mixture)
        y = keyed_noise(aligned, race.uniforms(random), key.form, shares)
        x = y
        if able.shape[1] > 1:
            x = innovations(aligned, y, texts.state, texts.tables.units, shares, mixture=self.mixture)
        # 3. The candidates race with that noise, and all other tokens with unkeyed numbers
        numbers = (-torch.special.log_ndtr(x)).clamp_min_(1e-300)
        if self.mixture.strength:
            gain = self.mixture.strength * torch.tanh(self.mixture.gamma * aligned.u)
            race.values = race.values + gain.to(race.values.dtype)
        best = (race.values - numbers.log()).argmax(dim=1, keepdim=True)
        texts.remember(aligned, y, used_candidates(y.shape[1], best), shares, free=free)
        tokens, sound = race.winners(numbers)
        # 4. What the winners say of the step
        held = race.candidates == tokens.unsqueeze(1)
        held_value = race.values.masked_fill(~held, -math.inf).amax(dim=1)
        marked = (held & (aligned.pairs != 0)).any(dim=1)
        begins = ~(held & ~aligned.begins).any(dim=1)
        log_share = held_value - race.values.logsumexp(dim=1)
        own = torch.stack([(held * root).sum(dim=1) for root in shares], dim=1)
        texts.measure(log_share, own, marked=marked, begins=begins)
        noise = torch.where(held, x, 0.0).sum(dim=1)
        return Drawn(tokens, sound, noise, held_value - race.log_totals.squeeze(1), marked & free, begins)

    def _checked(
        self,
        scores: Tensor,
        texts: WordStates,
        key: KeyTensors,
        decodings: Sequence[Decoding],
        random: Tensor,
    ) -> Choice | None:
        """Draw by the kernels; None if they fail at their first step here, or draw otherwise than torch."""
        tables, rows = texts.tables, torch.arange(len(scores), device=scores.device)
        options = decoding_options(decodings, scores.device)
        new = tables not in _DRAWN and not (scores.is_cuda and torch.cuda.is_current_stream_capturing())
        before = texts.at(rows) if new else texts
        reason: object = None
        try:
            drawn = draw_words(
                tables,
                texts.state,
                key.W,
                key.form,
                scores,
                random,
                options.values,
                filtered=bool(options.filters.any()),
                m=self.m,
                mixture=self.mixture,
            )
            if new:
                expected, sound = self.drawn(scores, before.at(rows), key, decodings, random)[:2]
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


_DRAWN: weakref.WeakSet[WordTables] = weakref.WeakSet()  # whose kernels have drawn what torch draws


# Rows that stay


class WordSession(DraftingSession):
    """Marks a batch of prompts (batch, length), of which it needs the shape alone.

    On a CUDA device the steps are one launch each after a few that are called one by one: from Python a
    step's kernels take ten times as long as on the device, and a host that is called from Python too has no
    time to hide that in.
    """

    stretch = STRETCH

    def __init__(
        self, race: WordRace, texts: WordStates, key: KeyTensors, prompt_ids: Tensor, *, seeds: Sequence[int]
    ) -> None:
        self.texts = texts
        self._race, self._key = race, key
        self._noise = RandomStreams(seeds, device=prompt_ids.device)
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
        if decoding != self._decoding:
            self._decoding, self._steps, self._step = decoding, 0, None
        self._steps += 1
        if self._steps > _CALLED and ids.shape[1] == self._length + 1 and self._can_capture(scores):
            if self._step is None:
                self._step = self._capture(ids[:, -1:], scores, decoding, random)
            tokens, sound = self._step(ids[:, -1:], scores, random)
            self._length = ids.shape[1]
            return tokens, sound
        return self._race(scores, self.read(ids), self._key, [decoding] * len(scores), random)

    def _prepared(self, ids: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        check_logits(scores, self.texts.tables.vocab_size)
        random = self._noise.states(ids.shape[1] - self._start)
        return ids.to(random.device), scores.to(random.device, torch.float32), random

    def _can_capture(self, scores: Tensor) -> bool:
        """Whether there are kernels to capture, and nobody else is capturing them."""
        return self.texts.tables.kernels and scores.is_cuda and not torch.cuda.is_current_stream_capturing()

    def _capture(self, tokens: Tensor, scores: Tensor, decoding: Decoding, random: Tensor) -> Replayed:
        texts, race, key, decodings = self.texts, self._race, self._key, [decoding] * len(scores)
        options = decoding_options(decodings, scores.device)

        def step(
            tokens: Tensor, scores: Tensor, random: Tensor, kept: RowOptions = options
        ) -> Choice:  # the graph reads the options, which only a cache holds otherwise
            texts.push(tokens)
            return race(scores, texts, key, decodings, random)

        return Replayed(step, (tokens, scores, random), changed=texts.state)

    def draw_drafts(self, ids: Tensor, scores: Tensor, decoding: Decoding, live: Tensor) -> Choice:
        ids, scores, random = self._prepared(ids, scores)
        texts = self.read(ids)
        drawn = self._race.drawn(scores, texts, self._key, [decoding] * len(scores), random)
        if self._drafts is None:
            self._drafts = DraftScores(len(scores), device=random.device)
        self._drafts.add(drawn, live)
        return drawn.tokens, drawn.sound

    def keep_best(self, drafts: int) -> Tensor:
        assert self._drafts is not None
        rows = self._drafts.best(drafts).repeat_interleave(drafts)
        self.texts.put(torch.arange(len(rows), device=rows.device), self.texts.at(rows))
        return rows


# Rows that change


@dataclass(eq=False)
class _WordRow(Row):
    """A text in an engine: its rows among the states, and how far it has been read."""

    key: KeyTensors | None = None  # its own numbers, if not the key's
    slots: tuple[int, int] = (-1, -1)  # its state before the last draw and after it, which may be discarded
    read: int = -1  # -1: its slots still hold another text

    def __post_init__(self) -> None:
        super().__post_init__()
        self.noise = RandomStreams([self.seed], device=_CPU)

    @property
    def unread(self) -> Sequence[int]:
        """The tokens written since the last step."""
        return self.written[self.read :]


class WordRows(Rows[_WordRow]):
    """Marks rows of different prompts, steps, seeds and decoding options; all states are on the device.

    ``key_of`` gives the numbers of a text, by its seed and the member and payload that were asked for, if
    they are not the key's ``own``.
    """

    def __init__(self, race: WordRace, tables: WordTables, own: KeyTensors, *, k: int, key_of: KeyOf) -> None:
        self._race, self._tables, self._own, self._k = race, tables, own, k
        self._key_of = key_of
        self._states = WordStates(tables, 0, k=k)
        self._free: list[int] = []

    def open(
        self,
        prompt: Sequence[int],
        written: Sequence[int],
        *,
        seed: int,
        decoding: Decoding,
        member: int | None = None,
        payload: int | None = None,
    ) -> _WordRow:
        key = self._key_of(seed, member, payload)
        return self._placed(_WordRow(prompt, written, key, seed=seed, decoding=decoding))

    def fork(self, row: _WordRow, written: Sequence[int], *, seed: int) -> _WordRow:
        """A row that goes on from another one, with its numbers and the noise that it remembers."""
        new = _WordRow(row.prompt, written, row.key, seed=seed, decoding=row.decoding)
        self._placed(new).read = row.read
        device = self._tables.device
        self._states.put(_sent(new.slots, device), self._states.at(_sent(row.slots, device)))
        return new

    def room(self, row: _WordRow) -> Room | None:
        return Room(*self._states.room[row.slots[1]].tolist())

    def mark(self, rows: Sequence[_WordRow], scores: Tensor) -> Tensor:
        check_logits(scores, self._tables.vocab_size)
        states = self._caught_up(rows, scores.device)
        random = torch.cat([row.noise.states(len(row.written)) for row in rows])
        random = random.to(scores.device, non_blocking=True)
        key = self._keys([row.key for row in rows])
        drawn = self._race(scores, states, key, [row.decoding for row in rows], random)
        self._states.put(_sent([row.slots[1] for row in rows], scores.device), states)
        return one_hot_logits(scores, drawn)

    def stay(self, prompt_ids: Tensor, *, seeds: Seeds) -> WordSession:
        """Mark a batch of prompts (batch, length) whose rows stay together until they end."""
        drawn = fresh_seeds(len(prompt_ids), seeds)
        key = self._keys([self._key_of(seed, None, None) for seed in drawn])
        texts = WordStates(self._tables, len(drawn), k=self._k)
        return WordSession(self._race, texts, key, prompt_ids, seeds=drawn)

    def _keys(self, rows: Sequence[KeyTensors | None]) -> KeyTensors:
        """The numbers of the key, or of each row if any has its own."""
        if all(key is None for key in rows):
            return self._own
        return KeyTensors(*map(torch.stack, zip(*(key or self._own for key in rows), strict=True)))

    def _placed(self, row: _WordRow) -> _WordRow:
        """The row with two free slots."""
        if not self._free:
            size = len(self._states)
            grown = WordStates(self._tables, max(2 * size, _SLOTS), k=self._k)
            grown.put(torch.arange(size, device=self._tables.device), self._states)
            self._free.extend(range(size, len(grown)))  # rows that end give their slots back to this list
            self._states = grown
        row.slots = (self._free.pop(), self._free.pop())
        weakref.finalize(row, self._free.extend, row.slots)
        return row

    def _caught_up(self, rows: Sequence[_WordRow], device: torch.device) -> WordStates:
        """A copy of the rows' states after all that they have written, which are stored too."""
        new = [row for row in rows if not 0 <= row.read <= len(row.written)]  # or the engine took tokens back
        if new:
            begun = WordStates(self._tables, 2 * len(new), k=self._k)
            self._states.put(_sent([slot for row in new for slot in row.slots], device), begun)
            for row in new:
                row.read = 0
        states = self._states.at(_sent([row.slots[bool(row.unread)] for row in rows], device))
        unread = [row.unread for row in rows]
        most = max(map(len, unread))
        if most:
            states.push(_sent([[*tokens, *[-1] * (most - len(tokens))] for tokens in unread], device))
        self._states.put(_sent([row.slots[0] for row in rows], device), states)
        for row in rows:
            row.read = len(row.written)
        return states


def _sent(values: Sequence[object], device: torch.device) -> Tensor:
    """Integers as a tensor on the device, which is not waited for."""
    return torch.tensor(values, dtype=torch.long).to(device, non_blocking=True)
