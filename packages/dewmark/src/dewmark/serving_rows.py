"""Rows of serving engines, whose batches change from step to step: rows come and go, and move about.

Boundary: prompt ids, written ids and logits (rows, vocab) in, marked logits out. Which engine asks is not
known here (`dewmark.hosts.engines`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Protocol, runtime_checkable

import torch

from dewmark.decoding import Decoding
from dewmark.errors import ConfigError
from dewmark.room import Room, rooms_of
from dewmark.sampling import RandomStreams, Session, draw, one_hot_logits
from dewmark.scheme import BoundScheme


class Row:
    """One text in an engine: prompt ids, ids written since (the engine extends the list), seed, decoding."""

    def __init__(
        self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding
    ) -> None:
        decoding.check_samples()
        self.prompt, self.written, self.seed, self.decoding = prompt, written, seed, decoding


class Rows(ABC):
    """Marks the rows of a batch that changes from step to step, as serving engines batch.

    Rows come and go, are at different steps, and move about in the batch, so each `Row` carries its own
    state. A row that the engine preempts is opened again with what it has written and reads that first, or
    goes on as a fork of the row that it was. For `dew` only a fork remembers the noise of the last steps
    (`dewmark.dew.noise`), which the ids alone do not tell: it depends on the host's logits.
    """

    kind: ClassVar[type[Row]] = Row

    def open(
        self,
        prompt: Sequence[int],
        written: Sequence[int],
        *,
        seed: int,
        decoding: Decoding,
        member: int | None = None,
        payload: int | None = None,
    ) -> Row:
        """Start following a text; ``written`` may hold tokens already and grows as the engine appends.

        A ``member`` of the key's ring marks it, with a ``payload``, if the scheme reads rings.
        """
        if member is not None or payload is not None:
            raise ConfigError("members and payloads of single texts need the default scheme and its lexicon")
        return self.kind(prompt, written, seed=seed, decoding=decoding)

    def fork(self, row: Row, written: Sequence[int], *, seed: int) -> Row:
        """A row that goes on from another one with ``written``, which begins with what that has written."""
        return self.open(row.prompt, written, seed=seed, decoding=row.decoding)

    def room(self, row: Row) -> Room | None:
        """The room that a text has left to its mark, None if it was not measured; waits for the device.

        What was written before the row was opened is not counted.
        """
        return None

    @abstractmethod
    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """Mark the host's logits (rows, vocab) float32 for each row's next token; same shape.

        A scheme that needs the final distribution applies each row's own decoding, draws with its seed, and
        leaves only the chosen token finite.
        """


class _SessionRow(Row):
    """A row with a session of its own, called once for every step of the text."""

    session: Session | None = None
    steps = 0
    noise: RandomStreams | None = None
    counted: Mapping[int, torch.Tensor] = MappingProxyType({})  # what each step left to the mark, (1, 2)

    def counted_before(self, step: int) -> dict[int, torch.Tensor]:
        """What the steps before this one left to the mark: the others were taken back."""
        return {at: room for at, room in self.counted.items() if at < step}


OpenSession = Callable[[torch.Tensor, int], Session]
"""Opens a session for one prompt (1, length) and its seed."""


class SessionRows(Rows):
    """One session per row: correct for every scheme, and as slow as that many calls."""

    kind = _SessionRow

    def __init__(self, open_session: OpenSession, device: torch.device, *, final: bool) -> None:
        self._open_session, self._device, self._final = open_session, device, final

    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        marked = []
        for i, row in enumerate(rows):
            assert isinstance(row, _SessionRow)
            marked.append(self._mark(row, scores[i : i + 1]))
        return torch.cat(marked)

    def fork(self, row: Row, written: Sequence[int], *, seed: int) -> Row:
        fork = super().fork(row, written, seed=seed)
        assert isinstance(row, _SessionRow)
        assert isinstance(fork, _SessionRow)
        fork.counted = row.counted_before(len(written))
        return fork

    def room(self, row: Row) -> Room | None:
        assert isinstance(row, _SessionRow)
        counted = [torch.zeros(1, 2), *row.counted.values()]
        total = torch.cat([each.to(self._device) for each in counted]).sum(dim=0, keepdim=True)
        return rooms_of(total, 1)[0]

    def _mark(self, row: _SessionRow, scores: torch.Tensor) -> torch.Tensor:
        step, start = len(row.written), len(row.prompt)
        ids = torch.tensor([*row.prompt, *row.written], dtype=torch.long, device=self._device).unsqueeze(0)
        session = row.session
        if session is None or step < row.steps:  # the engine discarded steps: begin again
            session = row.session = self._open_session(ids[:, :start], row.seed)
            row.steps = 0
        for at in range(row.steps, step):  # steps taken elsewhere: its memory depends on the ids alone
            session(ids[:, : start + at], torch.zeros_like(scores))
        row.steps = step + 1
        before = session.room()
        if self._final:
            if row.noise is None:
                row.noise = RandomStreams([row.seed], device=self._device)
            choice = draw(scores, row.decoding, row.noise, step, session=session, input_ids=ids, final=True)
            marked = one_hot_logits(scores, choice)
        else:
            marked = session(ids, scores)
        counted = session.room()
        if counted is None:
            counted = scores.new_full((1, 2), math.nan)
        elif before is not None:
            counted = counted - before
        row.counted = {**row.counted_before(step), step: counted}
        return marked


@runtime_checkable
class MarksRows(Protocol):
    """A bound scheme that marks all texts of an engine's changing batch together."""

    def rows(self, device: torch.device) -> Rows:
        """Mark the rows of a changing batch."""


def open_rows(bound: BoundScheme, device: torch.device) -> Rows:
    """Mark for engines whose batches change: all rows together if the scheme can, else each by a session."""
    return bound.rows(device) if isinstance(bound, MarksRows) else session_rows(bound, device)


def session_rows(bound: BoundScheme, device: torch.device) -> Rows:
    """Mark each row by a session of its own."""

    def open_session(prompt: torch.Tensor, seed: int) -> Session:
        return bound.session(prompt, torch.ones_like(prompt), seeds=[seed])

    return SessionRows(open_session, device, final=bound.needs.final_distribution)
