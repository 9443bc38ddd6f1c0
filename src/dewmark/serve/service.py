"""The parts of one worker process and their life: opened together, closed in the right order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, TypeVarTuple

import anyio

from dewmark.serve.api_tokens import OPEN, Caller, Refusal, Scope, Tokens
from dewmark.serve.audit_jobs import AuditRunner, Jobs
from dewmark.serve.generation import Writer
from dewmark.serve.http_errors import ApiError
from dewmark.serve.monitoring import Metrics
from dewmark.serve.settings import Settings
from dewmark.serve.store import QueryLog, Store
from dewmark.serve.tenants import Tenant
from dewmark.serve.thread_pool import Pool

__all__ = ["Service", "require"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Service:
    """Everything that the routes use."""

    def __init__(
        self, settings: Settings, tenants: Mapping[str, Tenant], *, writer: Writer | None = None
    ) -> None:
        self.settings, self.tenants, self.writer = settings, dict(tenants), writer
        self.store = Store(settings.store)
        self.tokens = Tokens(self.store)
        self.jobs = Jobs(self.store, lease=settings.lease)
        self.query_log = QueryLog(self.store) if settings.log_queries else None
        self.metrics = Metrics()
        self.pool = Pool(threads=settings.threads, waiting=settings.waiting, batch=settings.batch)
        self._audits = AuditRunner(self.jobs, self.tenants, self.pool, limit=settings.scored_bytes)
        self.extractions = anyio.CapacityLimiter(2)
        self.draining = False

    def start(self) -> None:
        """Begin with the work that nobody waits for."""
        self._audits.start()

    def close(self) -> None:
        """Finish what was taken, give back what another worker can do, and let go of the store."""
        self.draining = True
        self._audits.close()
        if self.writer is not None:
            self.writer.close()
        self.pool.close()
        self.store.close()

    def wake_audits(self) -> None:
        """There is a new job."""
        self._audits.wake()

    def caller(self, token: str) -> Caller | None:
        """Who asks: `OPEN` where nobody needs a token, None for a token that is not valid."""
        free = self.settings.without_tokens or self.settings.loopback
        if free and not self.tokens.exist():
            return OPEN
        return self.tokens.caller(token) if token else None

    async def in_thread(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run what waits for the store."""
        return await anyio.to_thread.run_sync(function, *arguments)

    async def spend(self, caller: Caller, texts: int, *, requests: int | None = None) -> None:
        """Count texts against the caller's budget, and them (or ``requests``) against its rate."""
        if not caller.id:
            return
        denied = await self.in_thread(lambda: self.tokens.spend(caller, texts, requests=requests))
        if denied is None:
            return
        if denied.why is Refusal.BUDGET:
            raise ApiError(403, "budget_spent", f"the token's budget does not cover {texts} more texts")
        raise ApiError(
            429, "too_many_requests", "the token's rate limit is reached: send less", wait=denied.wait
        )

    def may_use(self, caller: Caller) -> list[Tenant]:
        """The tenants that a caller may ask for."""
        return [tenant for tenant in self.tenants.values() if caller.may_use(tenant.id)]

    def tenant(self, id_: str, caller: Caller) -> Tenant:
        """One tenant by its id."""
        tenant = self.tenants.get(id_)
        if tenant is None or not caller.may_use(id_):
            raise ApiError(404, "not_found", "there is no such tenant, or not for this token")
        return tenant


def require(caller: Caller | None, *scopes: Scope) -> Caller:
    """The caller, if it has one of the scopes."""
    if caller is None or not caller.may(*scopes):
        raise ApiError(403, "forbidden", f"the token needs the scope {' or '.join(scopes)}")
    return caller
