"""A bounded pool of threads in which requests share their work.

Requests that ask for the same thing (``group``) and wait at the same time are handed over as one batch:
nobody waits for a batch to fill, but while one runs the next one gathers. What would wait too long is refused
at once (`Overloaded`), so that a crowd of requests never piles up. Background work goes through the same
threads, a small piece at a time, and is never refused.

Boundary: functions of lists, run in threads; what they do is not known here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

__all__ = ["Overloaded", "Pool"]

Handler = Callable[[list[Any]], Sequence[Any]]
_HISTORY = 0.9  # weight of the past in the mean time per item


class Overloaded(Exception):  # noqa: N818 - a state, not a fault
    """More waits than can be served soon; ``wait`` is after how many seconds it is worth trying again."""

    def __init__(self, wait: float) -> None:
        super().__init__("too much is waiting")
        self.wait = wait


@dataclass(frozen=True)
class _Task:
    group: Hashable | None  # None: shared with nobody
    handler: Handler
    items: list[Any]
    future: Future[list[Any]]
    counted: bool


class Pool:
    """``threads`` threads; at most ``waiting`` items wait, at most ``batch`` are handled together."""

    def __init__(self, *, threads: int, waiting: int, batch: int, name: str = "pool") -> None:
        self._most, self._batch = waiting, batch
        self._threads_wanted, self._name = threads, name
        self._tasks: deque[_Task] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._busy = 0
        self._seconds = 0.02  # per item, as measured lately
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait for a thread."""
        return self._waiting

    @property
    def busy(self) -> int:
        """How many threads are at work."""
        return self._busy

    async def run(
        self, handler: Handler, items: Sequence[Any], *, group: Hashable | None = None
    ) -> list[Any]:
        """Results of ``handler`` for the items; it may be called with those of other requests beside them.

        A caller that goes away before its turn costs nothing.
        """
        return await asyncio.wrap_future(self._submit(handler, items, group, counted=True))

    def run_background(self, handler: Handler, items: Sequence[Any]) -> list[Any]:
        """The same from a thread of one's own, waiting for the results; never refused for overload."""
        return self._submit(handler, items, None, counted=False).result()

    def close(self) -> None:
        """Finish what was taken, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _submit(
        self, handler: Handler, items: Sequence[Any], group: Hashable | None, *, counted: bool
    ) -> Future[list[Any]]:
        task = _Task(group, handler, list(items), Future(), counted)
        with self._changed:
            if self._closing:
                raise Overloaded(1.0)
            if counted and self._waiting and self._waiting + len(task.items) > self._most:
                raise Overloaded(self._waiting * self._seconds / len(self._threads))
            self._waiting += len(task.items) if counted else 0
            self._tasks.append(task)
            self._changed.notify()
        return task.future

    def _work(self) -> None:
        while tasks := self._take():
            started = time.monotonic()
            items = [item for task in tasks for item in task.items]
            try:
                results = list(tasks[0].handler(items))
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                if len(tasks) == 1:
                    tasks[0].future.set_exception(error)
                else:
                    for task in tasks:  # one of them is to blame, the others get their results
                        _run_alone(task)
            else:
                for task in tasks:
                    task.future.set_result(results[: len(task.items)])
                    del results[: len(task.items)]
            spent = (time.monotonic() - started) / max(1, len(items))
            with self._changed:
                self._busy -= 1
                self._seconds = _HISTORY * self._seconds + (1.0 - _HISTORY) * spent

    def _take(self) -> list[_Task]:
        """The next task and all that can be done with it; nothing when the pool has closed."""
        with self._changed:
            while True:
                while not self._tasks:
                    if self._closing:
                        return []
                    self._changed.wait()
                first = self._pop(0)
                if first is None:
                    continue
                taken, size = [first], len(first.items)
                place = 0
                while first.group is not None and place < len(self._tasks) and size < self._batch:
                    other = self._tasks[place]
                    if other.group == first.group and size + len(other.items) <= self._batch:
                        if (task := self._pop(place)) is not None:
                            taken.append(task)
                            size += len(task.items)
                    else:
                        place += 1
                self._busy += 1
                return taken

    def _pop(self, place: int) -> _Task | None:
        """Take a task out; None if its caller has gone away."""
        task = self._tasks[place]
        del self._tasks[place]
        self._waiting -= len(task.items) if task.counted else 0
        return task if task.future.set_running_or_notify_cancel() else None


def _run_alone(task: _Task) -> None:
    try:
        task.future.set_result(list(task.handler(task.items)))
    except BaseException as error:  # noqa: BLE001 - whoever waits gets it
        task.future.set_exception(error)
