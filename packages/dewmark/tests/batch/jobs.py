"""Jobs for the tests of runners, in a module of their own because other processes import them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dewmark.errors import InputError

BAD, BROKEN, DEADLY = -1, -2, -3


@dataclass(frozen=True)
class Opener:
    """Opens workers that square numbers and note in ``folder`` who began and who opened what.

    The first worker that begins ``dies_at`` kills itself; whoever begins DEADLY does, always. Later jobs than
    ``dies_at`` wait until ``openings`` workers were opened, so that none is left for a late replacement.
    """

    folder: Path
    dies_at: int | None = None
    seconds: float = 0.0
    openings: int = 0

    def __call__(self) -> Callable[[int], tuple[int, int]]:
        (self.folder / f"opened-{os.getpid()}").touch(exist_ok=False)
        return self.work

    def work(self, number: int) -> tuple[int, int]:
        """(number squared, process id)."""
        if number == DEADLY or (number == self.dies_at and self._first()):
            os.kill(os.getpid(), signal.SIGKILL)
        if number == BAD:
            raise InputError("row 7 is bad: mend it")
        if number == BROKEN:
            raise ZeroDivisionError("by nought")
        if self.dies_at is not None and number > self.dies_at:
            end = time.monotonic() + 60.0
            while self.opened() < self.openings and time.monotonic() < end:
                time.sleep(0.01)
        time.sleep(self.seconds)
        return number**2, os.getpid()

    def _first(self) -> bool:
        try:
            (self.folder / "died").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def opened(self) -> int:
        """How many workers were opened."""
        return len(list(self.folder.glob("opened-*")))
