"""The parts of one worker process, opened together and closed in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import anyio
import sqlalchemy as sa

from dewmark_desk import limited_child
from dewmark_desk.admission import SLICE
from dewmark_desk.api_tokens import OPEN, Caller, Tokens
from dewmark_desk.fair_pool import FairPool
from dewmark_desk.http_errors import ApiError
from dewmark_desk.job_runner import JobRunner
from dewmark_desk.jobs import Jobs
from dewmark_desk.monitoring import Metrics
from dewmark_desk.query_log import QueryLog
from dewmark_desk.resemblance import Resemblance
from dewmark_desk.settings import Settings
from dewmark_desk.signing import SigningKey
from dewmark_desk.store import Store
from dewmark_desk.tenants import Tenant, open_demonstration
from dewmark_desk.text_manifest import Provider

if TYPE_CHECKING:
    from dewmark_desk.generation import TextGenerator  # which needs torch

_CHECK_SECONDS = 1.0  # for which an answer about the store holds
_LARGE_AT_ONCE = 2  # large requests of one token

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Service:
    """Everything that the routes use."""

    def __init__(
        self, settings: Settings, tenants: Mapping[str, Tenant], *, generator: TextGenerator | None = None
    ) -> None:
        self.settings, self.tenants, self.generator = settings, dict(tenants), generator
        self.may_be_open = settings.may_be_open
        self.store = Store(settings.store, identity=settings.store_id)
        self.tokens = Tokens(self.store)
        self.jobs = Jobs(self.store, lease=settings.lease_seconds)
        self.query_log = QueryLog(self.store) if settings.log_queries else None
        self.resemblance = Resemblance(self.store, remember=not settings.zero_retention)
        self.metrics = Metrics()
        waiting = settings.waiting_seconds
        self.fast = FairPool(threads=settings.threads, waiting_seconds=waiting, batch_seconds=0.4 * SLICE)
        """For requests that take a moment."""
        self.slow = FairPool(threads=1, waiting_seconds=3.0 * waiting)
        """For all else, jobs included."""
        self.reading = FairPool(threads=1, waiting_seconds=3.0 * waiting)
        """For what a language model reads, which takes seconds and cannot be cut."""
        self.searching = FairPool(threads=1, waiting_seconds=3.0 * waiting)
        """For single texts whose search may take longer than all that others may ask for at once."""
        self.uploads = FairPool(threads=2, waiting_seconds=waiting)
        """For children that read files and compile schemas."""
        self.rewriting = FairPool(threads=2, waiting_seconds=30.0 * waiting)
        """For children that rewrite texts: two tokens' at a time, and one of each."""
        self.large: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_LARGE_AT_ONCE)
        )
        """A token's large requests wait for one another before their bodies are read."""
        self.pools = (self.fast, self.slow, self.reading, self.searching, self.uploads, self.rewriting)
        self.seed_secret = bytes.fromhex(self.store.secret("seeds"))
        signers = [SigningKey.load(file) for file in settings.signers]
        self.signer = signers[0] if signers else None
        self.trusted = [each.public for each in signers]
        chain = settings.certificate
        self.provider = None if chain is None else Provider(Path(chain[0]), Path(chain[1]))
        """Who signs manifests into texts."""
        self.runner = JobRunner(
            self.jobs,
            self.tenants,
            self.slow,
            self.reading,
            sweep=self.sweep,
            query_log=self.query_log,
            roots=None if settings.roots is None else Path(settings.roots),
        )
        self._checking, self._checked = threading.Lock(), (-math.inf, False)
        self.draining = False
        self.held = 0  # bytes of bodies that requests in progress hold

    def start(self) -> None:
        """Start the background work."""
        self.runner.start()

    def close(self) -> None:
        """Finish accepted work but that of children, requeue unfinished jobs, and close the store."""
        self.draining = True
        self.runner.close()
        if self.generator is not None:
            self.generator.close()
        limited_child.end_all()
        for pool in self.pools:
            pool.close()
        self.store.close()

    def sweep(self) -> int:
        """Delete expired jobs, hashes and log rows; returns their number."""
        gone = self.jobs.expire(days=self.settings.job_days) + self.resemblance.expire()
        if self.query_log is not None:
            gone += self.query_log.expire(days=self.settings.log_days)
        return gone

    def ready(self) -> bool:
        """Whether requests can be served: the store answers, and the service is not stopping."""
        if self.draining:
            return False
        with self._checking:  # anyone may ask, and each answer writes
            when, ready = self._checked
            if time.monotonic() - when > _CHECK_SECONDS:
                try:
                    self.store.check()
                    ready = True
                except sa.exc.SQLAlchemyError:
                    ready = False
                self._checked = (time.monotonic(), ready)
        return ready

    @functools.cached_property
    def demonstration(self) -> Tenant:
        """The key of the example, which is bound when it is first named."""
        return open_demonstration()

    def caller(self, token: str) -> Caller | None:
        """The caller with a token: `OPEN` if no token is needed, None if the token is invalid."""
        if self.may_be_open and not self.tokens.exist():
            return OPEN
        return self.tokens.caller(token) if token else None

    async def in_thread(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a blocking function, such as one that uses the store, in a thread."""
        return await anyio.to_thread.run_sync(function, *arguments)

    async def check_limits(self, caller: Caller, texts: int = 1) -> None:
        """Raise `Rejected` if a caller's rate or budget would not cover so many more texts."""
        await self.in_thread(self.tokens.check, caller, texts)

    @contextlib.asynccontextmanager
    async def charged(
        self, caller: Caller, texts: int, *, requests: int | None = None, size: int = 0
    ) -> AsyncIterator[None]:
        """Count texts and bytes against the caller's budget, and texts (or ``requests``) against its rate.

        If the block fails, because the service is busy or a text is unusable, the budget gets them back.
        """
        await self.in_thread(lambda: self.tokens.spend(caller, texts, requests=requests, size=size))
        try:
            yield
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.in_thread(lambda: self.tokens.refund(caller, texts, size=size))
            raise

    def may_use(self, caller: Caller) -> list[Tenant]:
        """The keys that a caller may use: those of its tenants."""
        return [tenant for tenant in self.tenants.values() if caller.may_use(tenant.owner)]

    def tenant(self, id_: str, caller: Caller) -> Tenant:
        """The key with an id: a tenant's current key, or with a label (``acme@2025``) a retired one."""
        tenant = self.tenants.get(id_)
        if tenant is None or not caller.may_use(tenant.owner):
            raise ApiError(404, "not_found", "no such tenant, or this token may not use it")
        return tenant

    def keys_of(self, id_: str, caller: Caller) -> list[Tenant]:
        """All keys of a tenant, current and retired; only one if the id has a label."""
        if "@" in id_:
            return [self.tenant(id_, caller)]
        found = [tenant for tenant in self.may_use(caller) if tenant.owner == id_]
        return found or [self.tenant(id_, caller)]
