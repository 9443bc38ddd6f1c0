"""One way for every request that has texts examined: decide how, admit, charge, queue, count and log.

What the service decides for its callers (`examination`, `seeds_of`):

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
cannot be cut (the search of a long text under many keys) takes a longer turn there, and above
``request_seconds`` in a pool of its own, as do texts that a language model reads: nobody else waits for them.
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
from dewmark_desk.admission import (
    RATE_SECONDS,
    SLICE,
    admitted,
    check_seconds,
    seconds_of_sketch,
    size_of,
    slices,
)
from dewmark_desk.api_tokens import Caller
from dewmark_desk.fair_pool import FairPool
from dewmark_desk.http_errors import ApiError
from dewmark_desk.service import Service
from dewmark_desk.settings import DEMONSTRATION, Settings
from dewmark_desk.tenants import Tenant
from dewmark_desk.verdicts import Answer, Examination, Query

__all__ = ["Examination", "Query", "examination", "examine", "seeds_of"]

_SHORT = 20_000  # characters, which are planned in less time than a thread takes over
_PLANNING = 3e-7  # seconds for a character


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


def seeds_of(secret: bytes, asked: Mapping[str, Any], count: int) -> list[int]:
    """The seeds of a request's texts: they repeat if the same is asked for again, and are nobody's choice."""
    said = hmac.new(secret, f"[{json.dumps(asked, sort_keys=True)}".encode(), hashlib.sha256)
    seeds = []
    for index in range(count):
        own = said.copy()
        own.update(f", {index}]".encode())
        seeds.append(int.from_bytes(own.digest()[:7], "big"))
    return seeds


async def examine(
    service: Service, caller: Caller, request: str, endpoint: str, queries: Sequence[Query], how: Examination
) -> list[Answer]:
    """The answers to a caller's queries."""
    if len(queries) > 1:  # one was checked before the body was read
        await service.check_limits(caller, len(queries))
    plan = functools.partial(_planned, how=how, settings=service.settings, sketched=not caller.sees_all)
    if (characters := sum(len(query.text) for query in queries)) <= _SHORT:
        ((queries, parts, sketching),) = plan(queries)
    else:  # in turns: many threads that count words would keep the interpreter from all others
        ((queries, parts, sketching),) = await service.slow.run(
            plan, queries, owner=caller.id, cost=_PLANNING * characters
        )
    seconds = sum(cost for _, cost in parts)
    if how.has_reader:  # it may run on an accelerator: what its work has taken so far says more
        check_seconds(seconds * service.reading.pace, service.settings.request_seconds)
    else:  # others have their turn between the parts
        check_seconds(max(cost for _, cost in parts), service.settings.text_seconds)
    rate = max(len(queries), math.ceil((seconds + sketching) / RATE_SECONDS))
    size = sum(map(size_of, queries))
    answers: list[Answer] = []
    async with (
        service.charged(caller, len(queries), requests=rate, size=size),
        _priced(service, caller, queries, sketching),
    ):
        for part, cost in parts:
            pool = service.slow if seconds > SLICE else service.fast
            if cost > service.settings.request_seconds:
                pool = service.searching
            if how.has_reader:
                pool = service.reading
            answers += await _judge(pool, caller.id, part, how, cost)
    for answer in answers:
        service.metrics.texts.labels(endpoint, answer.said["verdict"]).inc()
    if (log := service.query_log) is not None:
        row = {"request": request, "token": caller.id, "endpoint": endpoint}
        texts, said = [query.text for query in queries], [answer.said for answer in answers]
        await service.in_thread(lambda: log.write(**row, texts=texts, answers=said))
    return answers


def _planned(
    queries: Sequence[Query], how: Examination, settings: Settings, *, sketched: bool
) -> list[tuple[list[Query], list[tuple[list[Query], float]], float]]:
    """The admitted queries, their parts with estimated seconds, and the seconds of comparing them."""
    queries = admitted(queries, how, settings)
    return [(queries, list(slices(queries, how)), sum(map(seconds_of_sketch, queries)) if sketched else 0.0)]


@contextlib.asynccontextmanager
async def _priced(
    service: Service, caller: Caller, queries: Sequence[Query], seconds: float
) -> AsyncIterator[None]:
    """Charge the public what its answers cost beyond one text each, if they resemble earlier ones.

    One text each and the rate are charged before, and the comparison takes its turn in a pool: whoever
    cannot pay for an answer would otherwise have texts compared for nothing.
    """
    if caller.sees_all:
        yield
        return
    pool = service.slow if seconds > SLICE else service.fast
    (asked,) = await pool.run(
        lambda some: [service.resemblance.ask(caller, some)], queries, owner=caller.id, cost=seconds
    )
    try:
        async with service.charged(caller, asked.price - len(queries), requests=0):
            yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await service.in_thread(service.resemblance.withdraw, asked)
        raise


async def _judge(
    pool: FairPool, owner: str, part: Sequence[Query], how: Examination, cost: float
) -> list[Answer]:
    """The answers to one part of a request."""
    group = (tuple(each.id for each in how.tenants), how.keys, how.fpr, how.test, how.read)
    detect = functools.partial(verdicts.detect, how=how)
    return await pool.run(detect, part, owner=owner, cost=cost, group=group if cost <= SLICE else None)
