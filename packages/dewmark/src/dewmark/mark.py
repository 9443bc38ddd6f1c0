"""Marking, from the host's logits to a token and from tokens to texts: read it from top to bottom.

    logits → warp → candidates → keyed noise → token

*Final* logits are those after temperature and filters; the keyed noise is in `dewmark.dew.race`.

1. **A step** without a mark is `draw`: logits are warped (temperature, min-p, top-k, top-p), and the tokens
   that are left race with numbers from each row's seed (`dewmark.sampling`).
2. **A scheme** adds its mark by a `Session`, which shifts the logits, before they are warped or after
   (`dewmark.scheme.Needs`). A `ChoosingSession`, such as the default scheme's, draws the token itself,
   because its mark lies in the numbers of the race.
3. **Rows that stay**: a `Writer` takes the steps of one batch of texts. It leaves out what a policy says.
4. **Rows that change**: `Rows` are the texts of a serving engine, which come, go, fork and have steps taken
   back. `WriterRows` follow any scheme with a writer per text.

Boundary: ids, logits and seeds in, ids or logits out. No model; which host or engine asks is not known here.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from dewmark.cuda.word_race import draw_plain, usable
from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.policy import Exemptions
from dewmark.room import Room, gain, log_probability, rooms_of
from dewmark.sampling import Choice, RandomStreams, one_hot_logits, race, race_of_few, race_of_top_k, warp

__all__ = ["ChoosingSession", "DraftingSession", "Row", "Rows", "Session", "Writer", "draw"]

R = TypeVar("R", bound="Row")

_SPARED = 2  # the purpose of `RandomStreams` for unkeyed draws under a policy; sessions have 0 and 1


# 1. A step


def draw(scores: Tensor, decoding: Decoding, noise: RandomStreams, step: int) -> Choice:
    """Draw each row's next id from the host's logits (batch, vocab), without a mark."""
    if decoding.temperature == 0.0:
        best, ids = scores.max(dim=-1)
        return ids, torch.isfinite(best)
    few = None
    if not usable(noise.device.type):
        few = race_of_top_k(scores.to(noise.device), decoding, noise.states(step))
    return few or _raced(warp(scores, decoding), decoding, noise, step)


def _raced(scores: Tensor, decoding: Decoding, noise: RandomStreams, step: int) -> Choice:
    """The winners among tokens with final logits (batch, vocab)."""
    if usable(noise.device.type):
        return draw_plain(scores, noise.states(step))
    scores = scores.to(noise.device)
    few = race_of_few(scores, noise.states(step)) if decoding.filters else None
    return few or race(scores, noise.exponentials(step, scores.shape[1]))


# 2. What a scheme adds


class Session(ABC):
    """Marks one batch of texts while they grow and ends with it, so nothing leaks from text to text."""

    @abstractmethod
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return marked logits, same shape; called once per step.

        ``input_ids`` (batch, length) holds the prompts and the tokens written so far, padded on the left;
        ``scores`` (batch, vocab) holds the host's logits for the next token, before temperature and filters
        or after them, as the scheme's `Needs` say. The signature is that of a transformers logits processor.
        """

    unbiased: bool = True
    """False if a bias shifts the final distribution, so that the tokens cannot be used to measure room."""

    _room: Tensor | None = None

    def room(self) -> Tensor | None:
        """The numbers of `Room`, (batch, 4); NaN in a row of which nothing is known, None if in none."""
        return self._room

    def measure(self, log_p: Tensor, carries: Tensor | None = None) -> None:
        """Add g(p) of each drawn token (α = 1) by its log p (batch,); only rows where ``carries`` is true."""
        left = gain(log_p)
        new = torch.stack((left, torch.ones_like(left), *[torch.zeros_like(left)] * 2), dim=1)
        if carries is not None:
            new = new * carries.to(new.device).unsqueeze(1)
        self._room = new if self._room is None else self._room + new


class ChoosingSession(Session):
    """A session that draws the token itself, because its mark lies in the randomness of the draw."""

    @abstractmethod
    def choose(self, input_ids: Tensor, scores: Tensor, decoding: Decoding) -> Choice:
        """Draw the next id of each row from the host's logits (batch, vocab), and record the room."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Draw from final logits (batch, vocab); return logits in which only the chosen token is finite."""
        return one_hot_logits(scores, self.choose(input_ids, scores, Decoding()))


class DraftingSession(ChoosingSession):
    """A session that keeps the best of a text's drafts, whose rows lie together, every ``stretch`` tokens."""

    stretch: int

    @abstractmethod
    def draw_drafts(self, ids: Tensor, scores: Tensor, decoding: Decoding, live: Tensor) -> Choice:
        """As `choose`, counting what is drawn in the rows (batch,) that are ``live``: not ended yet."""

    @abstractmethod
    def keep_best(self, drafts: int) -> Tensor:
        """Continue all drafts of each text with the best one; returns which row each row now copies."""


# 3. Rows that stay


class Writer:
    """Takes the steps of one batch of texts, marked by ``session`` or, if that is None, without a mark.

    ``final`` says that the session marks logits after temperature and filters. Where ``exemptions`` spare a
    token, the row's unkeyed numbers draw it. That draw also decides whether the next token is one that is
    never marked; the mark chooses among the others only, so the distribution stays what it was.
    """

    def __init__(
        self,
        session: Session | None,
        prompt_ids: Tensor,
        *,
        seeds: Sequence[int],
        final: bool = False,
        exemptions: Exemptions | None = None,
    ) -> None:
        self._session, self._final, self._exemptions = session, final, exemptions
        self._rows, self._start = prompt_ids.shape
        self._noise = RandomStreams(seeds, device=prompt_ids.device, purpose=_SPARED if exemptions else 0)
        self._counted = torch.zeros((self._rows, 4), device=self._noise.device)  # under a policy

    def draw(self, ids: Tensor, scores: Tensor, decoding: Decoding) -> Choice:
        """Draw each row's next id from the host's logits (batch, vocab), after ``ids`` (batch, length)."""
        step = ids.shape[1] - self._start
        if self._session is None:
            return draw(scores, decoding, self._noise, step)
        if self._exemptions is None:
            return self._marked(self._session, ids, scores, decoding)
        # 1. An unkeyed draw, which stands where the policy spares the token
        plain, sound = draw(scores, decoding, self._noise, step)
        if self._exemptions.exempts(decoding):
            return plain, sound
        spared = torch.tensor(self._exemptions.spares(ids[:, self._start :].tolist()), device=plain.device)
        # 2. It also decides on tokens that are never marked; only final logits can be limited to the others
        if self._final and self._exemptions.unmarked_ids:
            unmarked = torch.tensor(self._exemptions.unmarked_ids, device=plain.device)
            spared |= torch.isin(plain, unmarked)
            scores = warp(scores, decoding).index_fill(1, unmarked.to(scores.device), -math.inf)
            decoding = dataclasses.replace(decoding, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        if bool(spared.all()):
            return plain, sound
        # 3. The mark draws the others; spared rows get flat logits, so that it cannot fail on them
        scores = torch.where(spared.to(scores.device)[:, None], torch.zeros_like(scores), scores)
        before = self._session.room()
        marked, marked_sound = self._marked(self._session, ids, scores, decoding)
        new = _added(self._session.room(), before, self._rows).to(spared.device)
        self._counted = self._counted + new.masked_fill(spared[:, None], 0.0)
        chosen = torch.where(spared, plain, marked.to(plain.device))
        return chosen, torch.where(spared, sound, marked_sound.to(sound.device))

    def _marked(self, session: Session, ids: Tensor, scores: Tensor, decoding: Decoding) -> Choice:
        if isinstance(session, ChoosingSession):
            return session.choose(ids, scores, decoding)
        step = ids.shape[1] - self._start
        if not self._final:
            return draw(session(ids, scores), decoding, self._noise, step)
        scores = warp(scores, decoding)
        chosen, sound = _raced(session(ids, scores), decoding, self._noise, step)
        if session.unbiased:
            session.measure(log_probability(scores, chosen))
        return chosen, sound

    def logits(self, ids: Tensor, scores: Tensor, decoding: Decoding | None) -> Tensor:
        """Marked logits (batch, vocab), for hosts that draw.

        The token is drawn here, and it alone is finite, if the mark needs final logits, if its session draws,
        or under a policy. Without a ``decoding`` the logits are final already.
        """
        session, must_draw = self._session, self._final and decoding is not None
        if session is None:
            return scores
        if self._exemptions is None and not must_draw and not isinstance(session, ChoosingSession):
            return session(ids, scores)
        if len(ids) != self._rows:
            raise ConfigError(
                f"the processor was made for {self._rows} prompts but is called with {len(ids)} rows: each "
                "draws its own, so use num_beams=1, and for num_return_sequences repeat the prompts yourself"
            )
        return one_hot_logits(scores, self.draw(ids, scores.float(), decoding or Decoding()))

    def catch_up(self, ids: Tensor, steps: range, scores: Tensor) -> None:
        """Let the session see steps that were taken elsewhere; not that of `dew`, whose rows fork instead."""
        for step in steps:
            if self._session is not None:
                self._session(ids[:, : self._start + step], torch.zeros_like(scores))

    def room(self) -> Tensor | None:
        """What the texts so far left to the mark, as `Session.room` gives it."""
        if self._exemptions is not None:
            return self._counted
        return None if self._session is None else self._session.room()

    @property
    def drafting(self) -> DraftingSession | None:
        """The session, if it can choose between drafts; not under a policy, which draws token by token."""
        session = self._session if self._exemptions is None else None
        return session if isinstance(session, DraftingSession) else None


def _added(after: Tensor | None, before: Tensor | None, rows: int) -> Tensor:
    """What a step added to a session's room (rows, 4); NaN if it counts nothing."""
    if after is None:
        return torch.full((rows, 4), math.nan)
    return after if before is None else after - before


# 4. Rows that change


@dataclass(eq=False)
class Row:
    """One text in an engine: prompt ids, ids written since (the engine extends the list), seed, decoding."""

    prompt: Sequence[int]
    written: Sequence[int]
    seed: int = field(kw_only=True)
    decoding: Decoding = field(kw_only=True)

    def __post_init__(self) -> None:
        self.decoding.check_samples()


class Rows(ABC, Generic[R]):
    """Marks the rows of a batch that changes from step to step, as serving engines batch.

    Rows come and go, are at different steps, and move about in the batch, so each `Row` carries its own
    state. A row that the engine preempts is opened again with what it has written, which it reads first, or
    is forked from its former self. With `dew`, only a fork remembers the noise of the last steps
    (`dewmark.dew.noise`): it depends on the host's logits, so the ids alone do not tell it.
    """

    @abstractmethod
    def open(
        self,
        prompt: Sequence[int],
        written: Sequence[int],
        *,
        seed: int,
        decoding: Decoding,
        member: int | None = None,
        payload: int | None = None,
    ) -> R:
        """Start following a text; ``written`` may hold tokens already and grows as the engine appends.

        A ``member`` of a ring (`dewmark.dew.ring`) marks it, with a ``payload``, if the scheme has them.
        """

    @abstractmethod
    def fork(self, row: R, written: Sequence[int], *, seed: int) -> R:
        """A row that goes on from another one with ``written``, which begins with that row's tokens."""

    @abstractmethod
    def mark(self, rows: Sequence[R], scores: Tensor) -> Tensor:
        """Mark the host's logits (rows, vocab) float32 for each row's next token; same shape.

        A scheme that needs the final distribution applies each row's own decoding, draws with its seed, and
        leaves only the chosen token finite.
        """

    @abstractmethod
    def room(self, row: R) -> Room | None:
        """The room that a text left since its row was opened, None if unknown; waits for the device."""


@dataclass(eq=False)
class _WriterRow(Row):
    """A row with a writer of its own, which takes every step of the text."""

    writer: Writer | None = None
    steps: int = 0  # taken
    counted: dict[int, Tensor] = field(default_factory=dict)  # what each step left to the mark, (1, 4)

    def counted_before(self, step: int) -> dict[int, Tensor]:
        """What the steps before this one left to the mark: the others were taken back."""
        return {at: room for at, room in self.counted.items() if at < step}


class WriterRows(Rows[_WriterRow]):
    """A writer per row, by its prompt (1, length) and seed: right for every scheme, and slow."""

    def __init__(self, open_writer: Callable[[Tensor, int], Writer], device: torch.device) -> None:
        self._open_writer, self._device = open_writer, device

    def open(
        self,
        prompt: Sequence[int],
        written: Sequence[int],
        *,
        seed: int,
        decoding: Decoding,
        member: int | None = None,
        payload: int | None = None,
    ) -> _WriterRow:
        if member is not None or payload is not None:
            raise ConfigError("members and payloads of single texts need the default scheme and its lexicon")
        return _WriterRow(prompt, written, seed=seed, decoding=decoding)

    def fork(self, row: _WriterRow, written: Sequence[int], *, seed: int) -> _WriterRow:
        fork = self.open(row.prompt, written, seed=seed, decoding=row.decoding)
        fork.counted = row.counted_before(len(written))
        return fork

    def mark(self, rows: Sequence[_WriterRow], scores: Tensor) -> Tensor:
        marked = []
        for i, row in enumerate(rows):
            row_scores, step, start = scores[i : i + 1], len(row.written), len(row.prompt)
            ids = torch.tensor([[*row.prompt, *row.written]], dtype=torch.long, device=self._device)
            if row.writer is None or step < row.steps:  # the engine took steps back: begin again
                row.writer, row.steps = self._open_writer(ids[:, :start], row.seed), 0
            row.writer.catch_up(ids, range(row.steps, step), row_scores)
            row.steps, before = step + 1, row.writer.room()
            marked.append(row.writer.logits(ids, row_scores, row.decoding))
            row.counted = {**row.counted_before(step), step: _added(row.writer.room(), before, 1)}
        return torch.cat(marked)

    def room(self, row: _WriterRow) -> Room | None:
        counted = [torch.zeros(1, 4), *row.counted.values()]
        return rooms_of(torch.cat([step.to(self._device) for step in counted]).sum(dim=0, keepdim=True), 1)[0]
