"""One way for every request that has texts examined: admit, charge, queue in slices, count and log.

A request of at most `SLICE` seconds is one turn of the fast pool, where it may share a batch with others. All
else runs in the slow pool, in turns of a slice: some of its texts, or one text under some of the keys. What
cannot be cut (a search for passages under many keys) takes a longer turn there. Texts that a language model
reads have a pool of their own, so that nobody else waits for it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncIterator, Sequence

import anyio

from dewmark_desk import verdicts
from dewmark_desk.admission import (
    RATE_SECONDS,
    SLICE,
    admitted,
    check_seconds,
    size_of,
    slices,
)
from dewmark_desk.api_tokens import Caller
from dewmark_desk.fair_pool import FairPool
from dewmark_desk.service import Service
from dewmark_desk.verdicts import Answer, Examination, Query


async def examine(
    service: Service,
    caller: Caller,
    request_id: str,
    endpoint: str,
    queries: Sequence[Query],
    how: Examination,
) -> list[Answer]:
    """The answers to a caller's queries."""
    queries = admitted(queries, how, service.settings)
    parts = list(slices(queries, how))
    seconds = sum(cost for _, cost in parts)
    # a reader may run on an accelerator: what its work has taken so far says more
    check_seconds(seconds * (service.reading.pace if how.has_reader else 1.0), service.settings)
    rate = max(len(queries), math.ceil(seconds / RATE_SECONDS))
    size = sum(map(size_of, queries))
    answers: list[Answer] = []
    async with (
        _priced(service, caller, queries) as price,
        service.charged(caller, price, requests=rate, size=size),
    ):
        pool = service.reading if how.has_reader else service.slow if seconds > SLICE else service.fast
        for part, cost in parts:
            answers += await _judge(pool, caller.id, part, how, cost)
    for answer in answers:
        service.metrics.texts.labels(endpoint, answer.said["verdict"]).inc()
    if (log := service.query_log) is not None:
        row = {"request": request_id, "token": caller.id, "endpoint": endpoint}
        texts, said = [query.text for query in queries], [answer.said for answer in answers]
        await service.in_thread(lambda: log.write(**row, texts=texts, answers=said))
    return answers


@contextlib.asynccontextmanager
async def _priced(service: Service, caller: Caller, queries: Sequence[Query]) -> AsyncIterator[int]:
    """How many texts the answers cost: more for the public if they resemble texts asked about before."""
    if caller.sees_all:
        yield len(queries)
        return
    asked = await service.in_thread(service.resemblance.ask, caller, queries)
    try:
        yield asked.price
    except BaseException:
        with anyio.CancelScope(shield=True):
            await service.in_thread(service.resemblance.withdraw, asked)
        raise


async def _judge(
    pool: FairPool, owner: str, part: Sequence[Query], how: Examination, cost: float
) -> list[Answer]:
    """The answers to one part of a request."""
    if cost <= SLICE:
        group = (tuple(each.id for each in how.tenants), how.keys, how.fpr, how.test, how.read, how.passages)
        detect = functools.partial(verdicts.detect, how=how)
        return await pool.run(detect, part, owner=owner, cost=cost, group=group)
    one = cost / len(how.tenants)
    step = max(1, int(SLICE / one))
    columns: list[verdicts.Column] = []
    for start in range(0, len(how.tenants), step):
        keys = range(start, min(start + step, len(how.tenants)))
        score = functools.partial(verdicts.score, part, how)
        columns += await pool.run(score, keys, owner=owner, cost=one * len(keys))
    return await pool.run(lambda some: verdicts.conclude(some, how, columns), part, owner=owner, cost=one)
