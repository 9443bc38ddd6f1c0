"""The words of a lexicon in serving engines, whose batches change from step to step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import cast

import torch

from dewmark.decoding import Decoding
from dewmark.dew.race import WordRace
from dewmark.dew.word_step import WordStates, WordTables
from dewmark.room import Room
from dewmark.sampling import RandomStreams, check_logits, one_hot_logits
from dewmark.serving_rows import Row, Rows

_CPU = torch.device("cpu")
_SLOTS = 16  # states that there is room for at first, two for each text

MatrixOf = Callable[[int, int | None, int | None], torch.Tensor | None]
"""A text's matrix by its seed, member and payload; None for the key's own W."""


class _LexiconRow(Row):
    """A text in an engine: its rows among the states, and how far it has been read."""

    slots = (-1, -1)  # its state before the last draw and after it; an engine may discard the draw
    read = -1  # -1: its slots still hold another text
    W: torch.Tensor | None = None  # its own matrix (d_T, d_C), if not the key's

    def __init__(
        self, prompt: Sequence[int], written: Sequence[int], *, seed: int, decoding: Decoding
    ) -> None:
        super().__init__(prompt, written, seed=seed, decoding=decoding)
        self.noise = RandomStreams([seed], device=_CPU)

    @property
    def unread(self) -> Sequence[int]:
        """The tokens written since the last step."""
        return self.written[self.read :]


class LexiconRows(Rows):
    """Marks rows of different prompts, steps, seeds and decoding options; all states are on the device.

    ``matrix_of`` gives the matrix of a text, by its seed and the member and payload that were asked for, if
    it is not ``W``.
    """

    def __init__(
        self, race: WordRace, tables: WordTables, W: torch.Tensor, *, k: int, matrix_of: MatrixOf
    ) -> None:
        self._race, self._tables, self._W, self._k = race, tables, W, k
        self._matrix_of = matrix_of
        self._states = self._begin(_SLOTS)
        self._free = list(range(_SLOTS))

    def _begin(self, size: int) -> WordStates:
        return WordStates(self._tables, size, k=self._k)

    def open(
        self,
        prompt: Sequence[int],
        written: Sequence[int],
        *,
        seed: int,
        decoding: Decoding,
        member: int | None = None,
        payload: int | None = None,
    ) -> _LexiconRow:
        """Start following a text that a member of the key's ring marks, with a payload."""
        row = _LexiconRow(prompt, written, seed=seed, decoding=decoding)
        row.W = self._matrix_of(seed, member, payload)
        return self._placed(row)

    def fork(self, row: Row, written: Sequence[int], *, seed: int) -> _LexiconRow:
        """A row that goes on from another one, with its matrix and the noise that it remembers."""
        old, device = cast("_LexiconRow", row), self._tables.device
        new = _LexiconRow(old.prompt, written, seed=seed, decoding=old.decoding)
        new.W, new.read = old.W, old.read
        self._placed(new)
        self._states.put(_sent(new.slots, device), self._states.at(_sent(old.slots, device)))
        return new

    def _placed(self, row: _LexiconRow) -> _LexiconRow:
        """The row with two free slots."""
        if not self._free:
            size = len(self._states)
            grown = self._begin(2 * size)
            grown.put(torch.arange(size, device=self._tables.device), self._states)
            self._states = grown
            self._free.extend(range(size, 2 * size))  # rows that end give their slots back to this list
        row.slots = (self._free.pop(), self._free.pop())
        weakref.finalize(row, self._free.extend, row.slots)
        return row

    def room(self, row: Row) -> Room | None:
        """The room that a text has left to its mark; waits for the device."""
        return Room(*self._states.room[cast("_LexiconRow", row).slots[1]].tolist())

    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) float32 to marked ones, same shape."""
        check_logits(scores, self._tables.vocab_size)
        mine = cast("Sequence[_LexiconRow]", rows)
        states, W = self._caught_up(mine, scores.device), self._W
        if any(row.W is not None for row in mine):
            W = torch.stack([W if row.W is None else row.W for row in mine])
        random = torch.cat([row.noise.states(len(row.written)) for row in mine])
        random = random.to(scores.device, non_blocking=True)
        drawn = self._race(scores, states, W, [row.decoding for row in mine], random)
        self._states.put(_sent([row.slots[1] for row in mine], scores.device), states)
        return one_hot_logits(scores, drawn)

    def _caught_up(self, rows: Sequence[_LexiconRow], device: torch.device) -> WordStates:
        """A copy of the rows' states after all that they have written, which are stored too."""
        new = [row for row in rows if not 0 <= row.read <= len(row.written)]  # or the engine took tokens back
        if new:
            begun = self._begin(2 * len(new))
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


def _sent(values: Sequence[object], device: torch.device) -> torch.Tensor:
    """Integers as a tensor on the device, which is not waited for."""
    return torch.tensor(values, dtype=torch.long).to(device, non_blocking=True)
