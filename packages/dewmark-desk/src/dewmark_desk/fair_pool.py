"""A bounded pool of threads that is fair to its owners, and batches small requests.

Every task says what it will cost, in estimated seconds (`admission`). Owners (tokens) take turns by cost: the
next task is that of the owner who has had the least work so far, counted from when it last had something
waiting (start-time fair queueing). A job counts four times. So no number of tasks of one owner delays another
owner by more than the tasks that are running, and of several threads no owner has all. Tasks of one
``group``, whoever owns them, are handled as one batch; nothing waits for a batch to fill up. A task is
rejected at once (`Overloaded`) if the queue is full and its owner has its share of it.

Boundary: it runs functions of lists in threads, and knows nothing about what they do.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

Handler = Callable[[list[Any]], Sequence[Any]]
JOB_WEIGHT = 0.25
_DECAY = 0.9  # of the moving average of seconds per estimated second


class Overloaded(Exception):  # noqa: N818 - a state, not a fault
    """Too much work is waiting; ``wait`` is the number of seconds after which to retry."""

    def __init__(self, wait: float) -> None:
        super().__init__("too many requests are waiting")
        self.wait = wait


@dataclass(frozen=True, eq=False)
class _Task:
    owner: str
    group: Hashable | None  # None: never batched with others
    handler: Handler
    items: list[Any]
    cost: float
    turn: float  # the owner's work before it; the smallest is next
    future: Future[list[Any]]


class FairPool:
    """Threads, for which ``waiting_seconds`` of work may wait; a batch costs at most ``batch_seconds``."""

    def __init__(self, *, threads: int, waiting_seconds: float, batch_seconds: float = 0.0) -> None:
        self._limit, self._batch = waiting_seconds, batch_seconds
        self._tasks: list[_Task] = []
        self._had: dict[str, float] = {}  # the work that owners with waiting tasks have had or wait for
        self._now = 0.0  # the turn of the latest task
        self._running: Counter[str] = Counter()  # threads by owner
        self._most = max(1, threads - 1)  # of one owner
        self._changed = threading.Condition()
        self.pace = 1.0
        """Seconds per estimated second, moving average."""
        self._closing = False
        names = (f"pool-{i}" for i in range(threads))
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """The number of waiting items."""
        return sum(len(task.items) for task in list(self._tasks))

    async def run(
        self, handler: Handler, items: Sequence[Any], *, owner: str, cost: float, group: Hashable = None
    ) -> list[Any]:
        """The results of ``handler`` for the items; one call may handle items of other requests, too.

        If the caller is cancelled before its turn, its items are not handled.
        """
        return await asyncio.wrap_future(self._submit(handler, items, owner, cost, group, 1.0))

    def run_job(self, handler: Handler, items: Sequence[Any], *, owner: str, cost: float) -> list[Any]:
        """The same for a job in its own thread, which blocks; never rejected for overload."""
        return self._submit(handler, items, f"job {owner}", cost, None, JOB_WEIGHT).result()

    def close(self) -> None:
        """Finish accepted work, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _submit(
        self, handler: Handler, items: Sequence[Any], owner: str, cost: float, group: Hashable, weight: float
    ) -> Future[list[Any]]:
        with self._changed:
            if self._closing:
                raise Overloaded(1.0)
            if weight == 1.0:
                self._check(owner, cost)
            turn = max(self._now, self._had.get(owner, 0.0))
            self._had[owner] = turn + cost / weight
            task = _Task(owner, group, handler, list(items), cost, turn, Future())
            self._tasks.append(task)
            self._changed.notify()
        return task.future

    def _check(self, owner: str, cost: float) -> None:
        """Raise `Overloaded` if the queue is full, and the owner has its share of it."""
        waiting = sum(task.cost for task in self._tasks)
        own = sum(task.cost for task in self._tasks if task.owner == owner)
        owners = len({owner, *(task.owner for task in self._tasks)})
        if own and waiting + cost > self._limit and own + cost > self._limit / owners:
            raise Overloaded(waiting * self.pace / len(self._threads))

    def _work(self) -> None:
        while tasks := self._take():
            started = time.monotonic()
            _run(tasks)
            cost = max(sum(task.cost for task in tasks), 1e-3)
            self.pace = _DECAY * self.pace + (1.0 - _DECAY) * (time.monotonic() - started) / cost
            with self._changed:
                self._running[tasks[0].owner] -= 1
                self._changed.notify_all()

    def _take(self) -> list[_Task]:
        """The next task and those to batch with it; empty once the pool has closed."""
        with self._changed:
            while True:
                while not self._tasks:
                    self._had.clear()
                    self._now = 0.0
                    if self._closing:
                        return []
                    self._changed.wait()
                free = [task for task in self._tasks if self._running[task.owner] < self._most]
                if not free:  # one thread is for other owners
                    self._changed.wait()
                    continue
                order = sorted(free, key=lambda task: task.turn)
                first = order[0]
                self._now = first.turn
                taken: list[_Task] = []
                cost = 0.0
                for task in order:
                    alike = task is first or (first.group is not None and task.group == first.group)
                    if alike and (not taken or cost + task.cost <= self._batch):
                        self._tasks.remove(task)
                        if task.future.set_running_or_notify_cancel():
                            taken.append(task)
                            cost += task.cost
                if taken:
                    self._running[taken[0].owner] += 1
                    return taken


def _run(tasks: list[_Task]) -> None:
    """Run tasks as one batch; if it fails, each alone: one is at fault, and the others get their results."""
    try:
        results = list(tasks[0].handler([item for task in tasks for item in task.items]))
    except BaseException as error:  # noqa: BLE001 - goes to the caller
        if len(tasks) == 1:
            tasks[0].future.set_exception(error)
        else:
            for task in tasks:
                _run([task])
        return
    for task in tasks:
        task.future.set_result(results[: len(task.items)])
        del results[: len(task.items)]
