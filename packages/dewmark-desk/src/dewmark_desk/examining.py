"""One way for every request that has texts examined: decide how, admit, charge, queue, count and log.

What the service decides for its callers (`examination`, `seed_of`):

- **Levels.** A caller may ask for a stricter level than the service's own, or one up to ``max_fpr``; public
  tokens get ``public_fpr`` and choose nothing.
- **Keys.** A request names tenants of its token, or has all of them; retired keys belong to their tenant.
  Everything that a caller could have asked for is paid for. The demonstration key is for trying the service
  out: it is looked for when it is named and nothing is signed under it.
- **Members.** The member of a ring that marks a text follows from the seed. Whoever chose it could collect
  texts of one member, so the seed of a text is a keyed hash of everything that was asked for.
- **Payloads** are the caller's, within the bits of the key (`dewmark.core.keys.check_use`).
- **Attribution.** A key is named if its mark was found, or if no other could have been: `names_the_key`.

A request of at most `SLICE` seconds is one turn of the fast pool, where it may share a batch with others. All
else runs in the slow pool, in turns of a slice: some of its texts, or one text under some of the keys. What
cannot be cut (the search of a long text under many keys) takes a longer turn there. Texts that a language
model reads have a pool of their own, so that nobody else waits for it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from dewmark.scheme import check_test
from dewmark_desk import verdicts
from dewmark_desk.admission import RATE_SECONDS, SLICE, admitted, check_seconds, size_of, slices
from dewmark_desk.api_tokens import Caller
from dewmark_desk.fair_pool import FairPool
from dewmark_desk.http_errors import ApiError
from dewmark_desk.service import Service
from dewmark_desk.settings import DEMONSTRATION, Settings
from dewmark_desk.tenants import Tenant
from dewmark_desk.verdicts import Answer, Examination, Query

__all__ = ["Examination", "Query", "examination", "examine", "seed_of"]


def examination(
    service: Service,
    caller: Caller,
    ids: Sequence[str] | None,
    *,
    fpr: float | None,
    test: str | None = None,
    read: bool = True,
    demonstration: bool = False,
) -> Examination:
    """How a caller's texts are examined; ``demonstration`` lets it name that key."""
    if demonstration and ids == [DEMONSTRATION]:
        tenants, keys = [service.demonstration], 1
    else:
        tenants, keys = _chosen_keys(service, caller, ids), len(service.may_use(caller))
    for tenant in tenants:
        check_test(test, tenant.bound.tests)
    roots = None if service.settings.roots is None else Path(service.settings.roots)
    return Examination(tenants, keys, _level(service.settings, caller, fpr), test, read, roots=roots)


def _level(settings: Settings, caller: Caller, asked: float | None) -> float:
    """The level of a caller's verdicts."""
    if not caller.sees_all:
        return min(settings.fpr, settings.public_fpr)
    most = max(settings.fpr, settings.max_fpr)
    if asked is not None and asked > most:
        raise ApiError(422, "invalid_request", f"fpr: this service's verdicts have levels up to {most:g}")
    return asked or settings.fpr


def _chosen_keys(service: Service, caller: Caller, ids: Sequence[str] | None) -> list[Tenant]:
    """The keys that a request names, or all that the caller may use."""
    if ids is None:
        found = service.may_use(caller)
        if not found:
            raise ApiError(404, "not_found", "this token may not use any tenant")
        return found
    return list({key.id: key for id_ in ids for key in service.keys_of(id_, caller)}.values())


def seed_of(secret: bytes, asked: Mapping[str, Any], index: int) -> int:
    """The seed of a text: it can be repeated by asking for the same again, and is not the caller's choice."""
    said = json.dumps([asked, index], sort_keys=True, ensure_ascii=True).encode()
    return int.from_bytes(hmac.new(secret, said, hashlib.sha256).digest()[:7], "big")


async def examine(
    service: Service, caller: Caller, request: str, endpoint: str, queries: Sequence[Query], how: Examination
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
        _priced(service, caller, queries) as due,
        service.charged(caller, due, requests=rate, size=size),
    ):
        pool = service.reading if how.has_reader else service.slow if seconds > SLICE else service.fast
        for part, cost in parts:
            answers += await _judge(pool, caller.id, part, how, cost)
    for answer in answers:
        service.metrics.texts.labels(endpoint, answer.said["verdict"]).inc()
    if (log := service.query_log) is not None:
        row = {"request": request, "token": caller.id, "endpoint": endpoint}
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
        group = (tuple(each.id for each in how.tenants), how.keys, how.fpr, how.test, how.read)
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
