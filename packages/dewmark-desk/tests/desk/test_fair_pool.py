from __future__ import annotations

import asyncio
import threading

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
        self.gate = threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.gate.wait(5)
        self.batches.append(items)
        return [2 * item for item in items]


def ask(pool, work, items, *, owner="a", cost=None, group=None):
    """Run items that cost one second each, as estimated."""
    return pool.run(work, items, owner=owner, cost=float(len(items)) if cost is None else cost, group=group)


def test_waiting_requests_are_batched(make):
    pool, work = make(waiting_seconds=20.0), Recorder()

    async def main():
        asked = [asyncio.ensure_future(ask(pool, work, [0, 0], group="a"))]
        await asyncio.sleep(0.05)
        asked += [asyncio.ensure_future(ask(pool, work, [i, i], group="a")) for i in range(1, 4)]
        asked.append(asyncio.ensure_future(ask(pool, work, [9], group="b")))
        await asyncio.sleep(0.05)
        work.gate.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(main()) == [[0, 0], [2, 2], [4, 4], [6, 6], [18]]
    # the first ran alone while the others gathered; a batch has at most four items
    assert work.batches == [[0, 0], [1, 1, 2, 2], [3, 3], [9]]


def test_overload_is_rejected_at_once(make):
    pool, work = make(waiting_seconds=3.0), Recorder()

    async def main():
        first = asyncio.ensure_future(ask(pool, work, [0]))
        await asyncio.sleep(0.05)
        waiting = [asyncio.ensure_future(ask(pool, work, [i])) for i in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await ask(pool, work, [4])
        assert refused.value.wait >= 0.0
        work.gate.set()
        await asyncio.gather(first, *waiting)
        assert await ask(pool, work, [4]) == [8]

    asyncio.run(main())


def test_request_larger_than_the_queue_is_served_if_nothing_waits(make):
    pool, work = make(waiting_seconds=3.0), Recorder()
    work.gate.set()
    assert asyncio.run(ask(pool, work, list(range(10)))) == [2 * i for i in range(10)]


def test_failure_does_not_affect_the_rest_of_the_batch(make):
    pool, gate = make(), threading.Event()

    def work(items):
        gate.wait(5)
        return [1 // item for item in items]

    async def main():
        asked = [asyncio.ensure_future(ask(pool, work, [i], group="a")) for i in (5, 1, 0, 1)]
        await asyncio.sleep(0.05)
        gate.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(main())
    assert (found[0], found[1], found[3]) == ([0], [1], [1])
    assert isinstance(found[2], ZeroDivisionError)


def test_cancelled_request_is_not_run(make):
    pool, work = make(), Recorder()

    async def main():
        first = asyncio.ensure_future(ask(pool, work, [1]))
        gone = asyncio.ensure_future(ask(pool, work, [2]))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.sleep(0.05)
        work.gate.set()
        assert await first == [2]
        assert await ask(pool, work, [3]) == [6]

    asyncio.run(main())
    assert work.batches == [[1], [3]]
    assert pool.waiting == 0


def test_closing_finishes_accepted_work(make):
    pool, work = make(), Recorder()

    async def main():
        asked = [asyncio.ensure_future(ask(pool, work, [i])) for i in range(3)]
        await asyncio.sleep(0.05)
        closer = threading.Thread(target=pool.close)
        closer.start()
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
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
        asked = [asyncio.ensure_future(ask(pool, work, [0]))]
        await asyncio.sleep(0.05)
        asked += [
            asyncio.ensure_future(ask(pool, work, [100 + i], owner="greedy", cost=4.0)) for i in range(4)
        ]
        asked += [asyncio.ensure_future(ask(pool, work, [i], owner="modest")) for i in range(1, 7)]
        await asyncio.sleep(0.05)
        work.gate.set()
        await asyncio.gather(*asked)

    asyncio.run(main())
    # for each task of cost 4 of the one the other has four of cost 1
    assert [items[0] for items in work.batches] == [0, 100, 1, 2, 3, 4, 101, 5, 6, 102, 103]


def test_jobs_wait_for_requests(make):
    pool, work = make(waiting_seconds=500.0, batch_seconds=0.0), Recorder()

    async def main():
        asked = [asyncio.ensure_future(ask(pool, work, [0]))]
        await asyncio.sleep(0.05)
        job = threading.Thread(
            target=lambda: [pool.run_job(work, [100 + i], owner="a", cost=1.0) for i in range(2)]
        )
        job.start()
        await asyncio.sleep(0.05)
        asked += [asyncio.ensure_future(ask(pool, work, [i], owner=str(i))) for i in range(1, 6)]
        await asyncio.sleep(0.05)
        work.gate.set()
        await asyncio.gather(*asked)
        job.join()

    asyncio.run(main())
    assert [items[0] for items in work.batches] == [0, 100, 1, 2, 3, 4, 5, 101]


def test_full_queue_has_room_for_an_owner_with_less_than_its_share(make):
    pool, work = make(waiting_seconds=4.0), Recorder()

    async def main():
        asked = [asyncio.ensure_future(ask(pool, work, [i], owner="greedy")) for i in range(4)]
        await asyncio.sleep(0.05)
        asked += [asyncio.ensure_future(ask(pool, work, [i], owner="modest")) for i in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await ask(pool, work, [9], owner="greedy")
        work.gate.set()
        await asyncio.gather(*asked)

    asyncio.run(main())


def test_no_owner_has_all_threads(make):
    pool, work = make(threads=2, waiting_seconds=500.0), Recorder()

    async def main():
        greedy = [asyncio.ensure_future(ask(pool, work, [i], owner="greedy")) for i in range(3)]
        await asyncio.sleep(0.05)
        other = Recorder()
        other.gate.set()
        assert await ask(pool, other, [9], owner="modest") == [18]
        assert work.batches == []
        work.gate.set()
        await asyncio.gather(*greedy)

    asyncio.run(main())
