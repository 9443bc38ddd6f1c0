"""Progress on stderr: a bar in a terminal, now and then a plain line elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

__all__ = ["Progress"]

_INTERVAL = 5.0  # seconds between two plain lines of one piece of work
_MANY = 10_000  # totals from here on are bytes or the like: only the percentage is told


class Progress:
    """Call it with (description, done, total); a total of 0 means that nobody knows.

    Used as a context manager it takes its bars away at the end. It fits ``Workspace.progress``.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, float] = {}  # when each piece of work was last told of, monotonic seconds
        self._finished: set[str] = set()

    def __call__(self, description: str, done: int, total: int) -> None:
        """Tell how far a piece of work is."""
        if self._quiet:
            return
        if self._terminal:
            self._draw(description, done, total)
        else:
            self._tell(description, done, total)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the bars off the screen, so that results can be printed; the next call draws them again."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks = {}

    def _draw(self, description: str, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        known = float(total) if total > 0 else None
        if description not in self._tasks:
            self._tasks[description] = self._bars.add_task(description, total=known)
        self._bars.update(self._tasks[description], completed=done, total=known)

    def _tell(self, description: str, done: int, total: int) -> None:
        now, finished = time.monotonic(), 0 < total <= done
        if finished:
            if description in self._finished:
                return
            self._finished.add(description)
        elif now - self._told.get(description, -_INTERVAL) < _INTERVAL:
            return
        self._told[description] = now
        if total <= 0:
            amount = f"{done}" if done else "…"
        elif total >= _MANY:
            amount = f"{100 * done // total}%"
        else:
            amount = f"{done} of {total}"
        sys.stderr.write(f"{description}: {amount}\n")
        sys.stderr.flush()


def _bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        # Results may go to a pipe while bars go to the terminal: the streams must stay apart.
        redirect_stdout=False,
        redirect_stderr=False,
    )
