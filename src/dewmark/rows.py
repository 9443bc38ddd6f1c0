"""Marking the rows of a batch that changes from step to step, as serving engines batch.

An engine's rows come and go, stand at different steps, and move about in the batch. So a row's state belongs
to the row: a `Row` follows one text through the engine's own list of what was written, and `Rows.mark`
takes whichever rows the batch holds now, in their order. A row that an engine drops and takes up again
(preemption) is opened anew with what it has written: it reads that first, and goes on as if it had stayed.

`SessionRows` serves every scheme, with one session a row; a scheme that can mark rows together does better
(`dewmark.dew.rows`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dewmark.errors import ConfigError
from dewmark.sampling import RandomStreams, race, warp

if TYPE_CHECKING:
    from dewmark.scheme import BoundScheme, Session

__all__ = ["Row", "Rows", "SessionRows", "Warping"]

_MINUS_INF = -float("inf")


@dataclass(frozen=True, slots=True)
class Warping:
    """How a text's next token is drawn: temperature, then min-p, top-k, top-p (0, 0 and 1 filter nothing)."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature > 0.0:
            raise ConfigError(
                "the mark is in the choice between tokens: temperature must be positive, "
                f"got {self.temperature:g}"
            )

    @property
    def filters(self) -> bool:
        """Whether it takes tokens out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def __call__(self, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) after temperature and filters."""
        return self.filtered(scores / self.temperature)

    def filtered(self, scores: torch.Tensor) -> torch.Tensor:
        """Logits (batch, vocab) that have seen the temperature, after the filters."""
        if self.min_p > 0.0:
            below_top = scores - scores.amax(dim=-1, keepdim=True)
            scores = scores.masked_fill(below_top.exp() < self.min_p, _MINUS_INF)
        return warp(scores, temperature=1.0, top_k=self.top_k, top_p=self.top_p)


class Row:
    """One text: the ids it began with, those written since (the engine extends that list), and its seed."""

    def __init__(self, prompt: Sequence[int], written: Sequence[int], *, seed: int, warping: Warping) -> None:
        self.prompt = prompt
        self.written = written
        self.seed = seed
        self.warping = warping


class Rows(ABC):
    """Marks for one bound scheme on one device."""

    @abstractmethod
    def open(self, prompt: Sequence[int], written: Sequence[int], *, seed: int, warping: Warping) -> Row:
        """Begin to follow a text; ``written`` may hold tokens already, and grows under the engine's hand."""

    @abstractmethod
    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """The host's logits (rows, vocab) float32 for the next token of each row to marked ones, same shape.

        A scheme that needs the final distribution warps by each row's own settings, draws by its seed, and
        leaves only the chosen token finite.
        """


class _SessionRow(Row):
    """Has a session, called once for every step of the text."""

    session: Session | None = None
    steps = 0
    noise: RandomStreams | None = None


class SessionRows(Rows):
    """A session for every row: right for any scheme, and as slow as so many calls."""

    def __init__(self, bound: BoundScheme, device: torch.device) -> None:
        self._bound = bound
        self._device = device

    def open(
        self, prompt: Sequence[int], written: Sequence[int], *, seed: int, warping: Warping
    ) -> _SessionRow:
        """Begin to follow a text."""
        return _SessionRow(prompt, written, seed=seed, warping=warping)

    def mark(self, rows: Sequence[Row], scores: torch.Tensor) -> torch.Tensor:
        """Logits (rows, vocab) to marked ones, same shape."""
        marked = []
        for i, row in enumerate(rows):
            assert isinstance(row, _SessionRow)
            marked.append(self._mark(row, scores[i : i + 1]))
        return torch.cat(marked)

    def _mark(self, row: _SessionRow, scores: torch.Tensor) -> torch.Tensor:
        step, start = len(row.written), len(row.prompt)
        ids = torch.tensor([*row.prompt, *row.written], dtype=torch.long, device=self._device).unsqueeze(0)
        session = row.session
        if session is None or step < row.steps:  # a step done again: what came of it was thrown away
            prompt = ids[:, :start]
            session = self._bound.session(prompt, torch.ones_like(prompt), seeds=[row.seed])
            row.session, row.steps = session, 0
        while row.steps < step:  # steps done elsewhere: what a session remembers depends on the ids alone
            session(ids[:, : start + row.steps], torch.zeros_like(scores))
            row.steps += 1
        row.steps += 1
        if not self._bound.needs.final:
            return session(ids, scores)
        if row.noise is None:
            row.noise = RandomStreams([row.seed], device=self._device)
        final = session(ids, row.warping(scores)).to(row.noise.device)
        chosen, sound = race(final, row.noise.exponentials(step, scores.shape[1]))
        only = torch.full_like(scores, _MINUS_INF).scatter_(1, chosen.to(scores.device).unsqueeze(1), 0.0)
        # a row that leaves nothing to choose goes back as it came: the engine says so
        return torch.where(sound.to(scores.device).unsqueeze(1), only, scores)
