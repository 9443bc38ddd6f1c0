from __future__ import annotations

import asyncio
import queue
import threading
import time

import pytest

from dewmark_desk.fair_pool import FairPool, Overloaded


@pytest.fixture
def make():
    made = []

    def pool(**options):
        made.append(FairPool(**{"threads": 1, "waiting_seconds": 8.0, "batch_seconds": 4.0, **options}))
        return made[-1]

    yield pool
    for each in made:
        each.close()


class Recorder:
    """Doubles numbers and records its batches; each waits for ``gate``."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun = threading.Event()
        self.gate = threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.begun.set()
        self.gate.wait(30)
        self.batches.append(items)
        return [2 * item for item in items]


def ask(pool, work, items, *, owner="a", cost=None, group=None):
    """Run items that cost one second each, as estimated."""
    return pool.run(work, items, owner=owner, cost=float(len(items)) if cost is None else cost, group=group)


async def queued(*asked):
    """Tasks of these requests, each of which is in its pool's queue."""
    tasks = [asyncio.ensure_future(each) for each in asked]
    await asyncio.sleep(0)  # each runs until it waits for its results
    return tasks


async def begun(*asked, of):
    """The same, when the first of them runs."""
    tasks = await queued(*asked)
    assert await asyncio.to_thread(of.begun.wait, 30)
    return tasks


async def job(pool, work, item, *, owner="a"):
    """A job's thread whose task of one second is in the queue."""
    submitted, submit = threading.Event(), pool._submit

    def noted(*arguments):
        future = submit(*arguments)
        submitted.set()
        return future

    pool._submit = noted
    thread = threading.Thread(target=lambda: pool.run_job(work, [item], owner=owner, cost=1.0))
    thread.start()
    assert await asyncio.to_thread(submitted.wait, 30)
    pool._submit = submit
    return thread


def test_waiting_requests_are_batched(make):
    pool, work = make(waiting_seconds=20.0), Recorder()

    async def main():
        asked = await begun(ask(pool, work, [0, 0], group="a"), of=work)
        asked += await queued(*(ask(pool, work, [i, i], group="a") for i in range(1, 4)))
        asked += await queued(ask(pool, work, [9], group="b"))
        work.gate.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(main()) == [[0, 0], [2, 2], [4, 4], [6, 6], [18]]
    # the first ran alone while the others gathered; a batch has at most four items
    assert work.batches == [[0, 0], [1, 1, 2, 2], [3, 3], [9]]


def test_overload_is_rejected_at_once(make):
    pool, work = make(waiting_seconds=3.0), Recorder()

    async def main():
        asked = await begun(ask(pool, work, [0]), of=work)
        asked += await queued(*(ask(pool, work, [i]) for i in range(3)))
        with pytest.raises(Overloaded, match="too many requests are waiting") as refused:
            await ask(pool, work, [4])
        assert refused.value.wait == pytest.approx(3.0)  # as estimated: nothing has run so far
        work.gate.set()
        await asyncio.gather(*asked)
        assert await ask(pool, work, [4]) == [8]

    asyncio.run(main())


def test_the_time_to_wait_follows_the_pace_of_the_work(make):
    """Eleven tasks took a hundredth of their estimates, so a queue of three seconds will take about one."""
    pool, work = make(waiting_seconds=3.0), Recorder()

    def fast(items):
        time.sleep(0.01)
        return items

    async def main():
        for i in range(11):
            await ask(pool, fast, [i])
        asked = await begun(ask(pool, work, [0]), of=work)
        asked += await queued(*(ask(pool, work, [i]) for i in range(3)))
        with pytest.raises(Overloaded) as refused:
            await ask(pool, work, [4])
        work.gate.set()
        await asyncio.gather(*asked)
        return refused.value.wait

    assert 3.0 * 0.9**11 < asyncio.run(main()) < 2.0


def test_request_larger_than_the_queue_is_served_if_nothing_waits(make):
    pool, work = make(waiting_seconds=3.0), Recorder()
    work.gate.set()
    assert asyncio.run(ask(pool, work, list(range(10)))) == [2 * i for i in range(10)]


def test_failure_does_not_affect_the_rest_of_the_batch(make):
    pool, first = make(), Recorder()

    def work(items):
        return [1 // item for item in items]

    async def main():
        asked = await begun(ask(pool, first, [0]), of=first)
        asked += await queued(*(ask(pool, work, [i], group="a") for i in (5, 0, 1)))
        first.gate.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(main())
    assert (found[0], found[1], found[3]) == ([0], [0], [1])
    assert isinstance(found[2], ZeroDivisionError)


def test_cancelled_request_is_not_run(make):
    pool, work = make(), Recorder()

    async def main():
        (first,) = await begun(ask(pool, work, [1]), of=work)
        (gone,) = await queued(ask(pool, work, [2]))
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        work.gate.set()
        assert await first == [2]
        assert await ask(pool, work, [3]) == [6]

    asyncio.run(main())
    assert work.batches == [[1], [3]]
    assert pool.waiting == 0


def test_closing_finishes_accepted_work(make):
    pool, work = make(), Recorder()

    async def main():
        asked = await begun(*(ask(pool, work, [i]) for i in range(3)), of=work)
        closing, join = threading.Event(), pool._threads[0].join
        pool._threads[0].join = lambda: (closing.set(), join())  # it closes, and waits for its thread
        closer = threading.Thread(target=pool.close)
        closer.start()
        assert await asyncio.to_thread(closing.wait, 30)
        with pytest.raises(Overloaded, match="too many requests are waiting"):
            await ask(pool, work, [9])
        work.gate.set()
        found = await asyncio.gather(*asked)
        await asyncio.to_thread(closer.join)
        return found

    assert asyncio.run(main()) == [[0], [2], [4]]


def test_jobs_are_never_rejected(make):
    pool, work = make(waiting_seconds=1.0), Recorder()
    work.gate.set()
    assert pool.run_job(work, [1, 2, 3], owner="a", cost=3.0) == [2, 4, 6]


def test_owners_take_turns_by_cost(make):
    pool, work = make(waiting_seconds=500.0, batch_seconds=0.0), Recorder()

    async def main():
        asked = await begun(ask(pool, work, [0]), of=work)
        asked += await queued(*(ask(pool, work, [100 + i], owner="greedy", cost=4.0) for i in range(4)))
        asked += await queued(*(ask(pool, work, [i], owner="modest") for i in range(1, 7)))
        work.gate.set()
        await asyncio.gather(*asked)

    asyncio.run(main())
    # for each task of cost 4 of the one the other has four of cost 1
    assert [items[0] for items in work.batches] == [0, 100, 1, 2, 3, 4, 101, 5, 6, 102, 103]


def test_owner_who_comes_late_has_no_claim_to_the_past(make):
    pool, entered, steps = (
        make(waiting_seconds=500.0, batch_seconds=0.0),
        queue.Queue(),
        threading.Semaphore(0),
    )
    order: list[int] = []

    def work(items):
        order.extend(items)
        entered.put(items)
        assert steps.acquire(timeout=30)
        return items

    async def main():
        asked = await queued(*(ask(pool, work, [i], owner="early") for i in range(10)))
        for _ in range(5):
            await asyncio.to_thread(entered.get, True, 30)
            steps.release()
        await asyncio.to_thread(entered.get, True, 30)  # the sixth runs
        asked += await queued(*(ask(pool, work, [100 + i], owner="late") for i in range(4)))
        for _ in range(10):
            steps.release()
        await asyncio.gather(*asked)

    asyncio.run(main())
    assert order == [0, 1, 2, 3, 4, 5, 100, 6, 101, 7, 102, 8, 103, 9]


def test_jobs_wait_for_requests(make):
    pool, work = make(waiting_seconds=500.0, batch_seconds=0.0), Recorder()

    async def main():
        asked = await begun(ask(pool, work, [0]), of=work)
        jobs = [await job(pool, work, 100 + i) for i in range(2)]
        asked += await queued(*(ask(pool, work, [i], owner=str(i)) for i in range(1, 6)))
        work.gate.set()
        await asyncio.gather(*asked)
        for each in jobs:
            await asyncio.to_thread(each.join, 30)

    asyncio.run(main())
    assert [items[0] for items in work.batches] == [0, 100, 1, 2, 3, 4, 5, 101]


def test_a_job_has_a_fourth_of_what_a_request_has(make):
    pool, work = make(waiting_seconds=500.0, batch_seconds=0.0), Recorder()

    async def main():
        asked = await begun(ask(pool, work, [0]), of=work)
        jobs = [await job(pool, work, 100 + i) for i in range(3)]
        asked += await queued(*(ask(pool, work, [i], owner="b") for i in range(1, 9)))
        work.gate.set()
        await asyncio.gather(*asked)
        for each in jobs:
            await asyncio.to_thread(each.join, 30)

    asyncio.run(main())
    assert [items[0] for items in work.batches] == [0, 100, 1, 2, 3, 4, 101, 5, 6, 7, 8, 102]


def test_full_queue_has_room_for_an_owner_with_less_than_its_share(make):
    pool, work = make(waiting_seconds=4.0), Recorder()

    async def main():
        asked = await begun(ask(pool, work, [0], owner="greedy"), of=work)
        asked += await queued(*(ask(pool, work, [i], owner="greedy") for i in range(1, 4)))
        asked += await queued(*(ask(pool, work, [i], owner="modest") for i in range(2)))
        with pytest.raises(Overloaded, match="too many requests are waiting"):
            await ask(pool, work, [9], owner="greedy")
        work.gate.set()
        await asyncio.gather(*asked)

    asyncio.run(main())


def test_no_owner_has_all_threads(make):
    pool, work = make(threads=2, waiting_seconds=500.0), Recorder()

    async def main():
        greedy = await begun(*(ask(pool, work, [i], owner="greedy") for i in range(3)), of=work)
        other = Recorder()
        other.gate.set()
        assert await ask(pool, other, [9], owner="modest") == [18]
        assert work.batches == []
        work.gate.set()
        await asyncio.gather(*greedy)

    asyncio.run(main())
