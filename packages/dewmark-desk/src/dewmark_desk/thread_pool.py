"""A bounded pool of threads that batches requests.

Requests of the same ``group`` that wait at the same time are handled as one batch. Nothing waits for a batch
to fill up: the next batch gathers while the current one runs. Requests with a group are short and go before
those without one, which get every fifth turn at least. A request that would have to wait too long is rejected
at once (`Overloaded`), so that the queue stays short. Background work shares the threads, in small pieces,
and is never rejected.

Boundary: it runs functions of lists in threads, and knows nothing about what they do.
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

Handler = Callable[[list[Any]], Sequence[Any]]
_SHORT_TURNS = 4  # of short tasks in a row, while a long one waits
_DECAY = 0.9  # of the moving average of seconds per item


class Overloaded(Exception):  # noqa: N818 - a state, not a fault
    """Too many items are waiting; ``wait`` is the number of seconds after which to retry."""

    def __init__(self, wait: float) -> None:
        super().__init__("too many requests are waiting")
        self.wait = wait


@dataclass(frozen=True)
class _Task:
    group: Hashable | None  # None: never batched with others
    handler: Handler
    items: list[Any]
    future: Future[list[Any]]
    background: bool


class BatchingPool:
    """``threads`` threads; at most ``max_waiting`` items wait, and a batch has at most ``batch_size``."""

    def __init__(self, *, threads: int, max_waiting: int, batch_size: int) -> None:
        self._max_waiting, self._batch_size = max_waiting, batch_size
        self._tasks: deque[_Task] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._busy = 0
        self._turns = 0  # of short tasks since the last long one
        self._seconds = 0.02  # per item, moving average
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"pool-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """The number of waiting items."""
        return self._waiting

    @property
    def busy(self) -> int:
        """The number of busy threads."""
        return self._busy

    async def run(
        self, handler: Handler, items: Sequence[Any], *, group: Hashable | None = None
    ) -> list[Any]:
        """The results of ``handler`` for the items; one call may handle items of other requests, too.

        If the caller is cancelled before its turn, its items are not handled.
        """
        return await asyncio.wrap_future(self._submit(handler, items, group, background=False))

    def run_background(self, handler: Handler, items: Sequence[Any]) -> list[Any]:
        """The same for a caller in its own thread, which blocks; never rejected for overload."""
        return self._submit(handler, items, None, background=True).result()

    def close(self) -> None:
        """Finish accepted work, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _submit(
        self, handler: Handler, items: Sequence[Any], group: Hashable | None, *, background: bool
    ) -> Future[list[Any]]:
        task = _Task(group, handler, list(items), Future(), background)
        with self._changed:
            if self._closing:
                raise Overloaded(1.0)
            if not background:
                if self._waiting and self._waiting + len(task.items) > self._max_waiting:
                    raise Overloaded(self._waiting * self._seconds / len(self._threads))
                self._waiting += len(task.items)
            self._tasks.append(task)
            self._changed.notify()
        return task.future

    def _work(self) -> None:
        while tasks := self._take():
            started = time.monotonic()
            items = [item for task in tasks for item in task.items]
            try:
                results = list(tasks[0].handler(items))
            except BaseException as error:  # noqa: BLE001 - goes to the caller
                if len(tasks) == 1:
                    tasks[0].future.set_exception(error)
                else:
                    for task in tasks:  # one of them is at fault; the others get their results
                        _run_alone(task)
            else:
                for task in tasks:
                    task.future.set_result(results[: len(task.items)])
                    del results[: len(task.items)]
            spent = (time.monotonic() - started) / max(1, len(items))
            with self._changed:
                self._busy -= 1
                self._seconds = _DECAY * self._seconds + (1.0 - _DECAY) * spent

    def _take(self) -> list[_Task]:
        """The next task and those to batch with it; empty once the pool has closed."""
        with self._changed:
            while True:
                while not self._tasks:
                    if self._closing:
                        return []
                    self._changed.wait()
                first = self._pop(self._next())
                if first is None:
                    continue
                self._turns = self._turns + 1 if first.group is not None else 0
                taken, size = [first], len(first.items)
                place = 0
                while first.group is not None and place < len(self._tasks) and size < self._batch_size:
                    other = self._tasks[place]
                    if other.group == first.group and size + len(other.items) <= self._batch_size:
                        if (task := self._pop(place)) is not None:
                            taken.append(task)
                            size += len(task.items)
                    else:
                        place += 1
                self._busy += 1
                return taken

    def _next(self) -> int:
        """The place of the next task in the queue."""
        short = self._turns < _SHORT_TURNS
        return next((i for i, task in enumerate(self._tasks) if (task.group is not None) == short), 0)

    def _pop(self, place: int) -> _Task | None:
        """Remove a task from the queue; None if its caller has been cancelled."""
        task = self._tasks[place]
        del self._tasks[place]
        self._waiting -= 0 if task.background else len(task.items)
        return task if task.future.set_running_or_notify_cancel() else None


def _run_alone(task: _Task) -> None:
    try:
        task.future.set_result(list(task.handler(task.items)))
    except BaseException as error:  # noqa: BLE001 - goes to the caller
        task.future.set_exception(error)
