from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dewmark_desk.thread_pool import BatchingPool, Overloaded


@pytest.fixture
def make():
    made = []

    def pool(**options):
        made.append(BatchingPool(**{"threads": 1, "max_waiting": 8, "batch_size": 4, **options}))
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


def test_waiting_requests_are_batched(make):
    pool, work = make(max_waiting=20), Recorder()

    async def main():
        asked = [asyncio.ensure_future(pool.run(work, [0, 0], group="a"))]
        await asyncio.sleep(0.05)
        asked += [asyncio.ensure_future(pool.run(work, [i, i], group="a")) for i in range(1, 4)]
        asked.append(asyncio.ensure_future(pool.run(work, [9], group="b")))
        await asyncio.sleep(0.05)
        work.gate.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(main()) == [[0, 0], [2, 2], [4, 4], [6, 6], [18]]
    # the first ran alone while the others gathered; a batch has at most four items
    assert work.batches == [[0, 0], [1, 1, 2, 2], [3, 3], [9]]


def test_overload_is_rejected_at_once(make):
    pool, work = make(max_waiting=3), Recorder()

    async def main():
        first = asyncio.ensure_future(pool.run(work, [0]))
        await asyncio.sleep(0.05)
        waiting = [asyncio.ensure_future(pool.run(work, [i])) for i in range(3)]
        await asyncio.sleep(0)
        started = time.monotonic()
        with pytest.raises(Overloaded) as refused:
            await pool.run(work, [4])
        assert time.monotonic() - started < 0.05
        assert refused.value.wait >= 0.0
        work.gate.set()
        await asyncio.gather(first, *waiting)
        assert await pool.run(work, [4]) == [8]

    asyncio.run(main())


def test_request_larger_than_the_queue_is_served_if_nothing_waits(make):
    pool, work = make(max_waiting=3), Recorder()
    work.gate.set()
    assert asyncio.run(pool.run(work, list(range(10)))) == [2 * i for i in range(10)]


def test_failure_does_not_affect_the_rest_of_the_batch(make):
    pool, gate = make(), threading.Event()

    def work(items):
        gate.wait(5)
        return [1 // item for item in items]

    async def main():
        asked = [asyncio.ensure_future(pool.run(work, [i], group="a")) for i in (5, 1, 0, 1)]
        await asyncio.sleep(0.05)
        gate.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(main())
    assert (found[0], found[1], found[3]) == ([0], [1], [1])
    assert isinstance(found[2], ZeroDivisionError)


def test_cancelled_request_is_not_run(make):
    pool, work = make(), Recorder()

    async def main():
        first = asyncio.ensure_future(pool.run(work, [1]))
        gone = asyncio.ensure_future(pool.run(work, [2]))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.sleep(0.05)
        work.gate.set()
        assert await first == [2]
        assert await pool.run(work, [3]) == [6]

    asyncio.run(main())
    assert work.batches == [[1], [3]]
    assert pool.waiting == 0


def test_closing_finishes_accepted_work(make):
    pool, work = make(), Recorder()

    async def main():
        asked = [asyncio.ensure_future(pool.run(work, [i])) for i in range(3)]
        await asyncio.sleep(0.05)
        closer = threading.Thread(target=pool.close)
        closer.start()
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await pool.run(work, [9])
        work.gate.set()
        found = await asyncio.gather(*asked)
        await asyncio.to_thread(closer.join)
        return found

    assert asyncio.run(main()) == [[0], [2], [4]]


def test_background_work_is_never_rejected(make):
    pool, work = make(max_waiting=1), Recorder()
    work.gate.set()
    assert pool.run_background(work, [1, 2, 3]) == [2, 4, 6]


def test_short_requests_overtake_long_ones_which_still_get_their_turn(make):
    pool, work = make(max_waiting=50, batch_size=1), Recorder()

    async def main():
        asked = [asyncio.ensure_future(pool.run(work, [0]))]
        await asyncio.sleep(0.05)
        asked += [asyncio.ensure_future(pool.run(work, [100 + i])) for i in range(2)]
        asked += [asyncio.ensure_future(pool.run(work, [i], group="a")) for i in range(1, 10)]
        await asyncio.sleep(0.05)
        work.gate.set()
        await asyncio.gather(*asked)

    asyncio.run(main())
    assert [items[0] for items in work.batches] == [0, 1, 2, 3, 4, 100, 5, 6, 7, 8, 101, 9]
