"""API tokens: scopes, rate limits and budgets of callers.

A token has the form ``dwm_<id>_<secret>``. The store keeps the id and the SHA-256 of the secret (32 random
bytes need no slow hash); the secret is shown once, when the token is created. Rate limit and budget are
checked by one conditional UPDATE, so they hold across workers. The rate limit is a leaky bucket, stored as
the time ``free_at`` at which past requests will have been paid off at the token's rate.

Everything fails closed: a token without tenants may use none (``*`` stands for all), cached lookups age by a
clock that cannot be set, and a token seen after its end is revoked, so that setting the clock back does not
revive it. A token for the public has a budget of bytes, because every answer reveals a little of the key.

Boundary: who is asking; `verdicts` and the routes decide how much an answer reveals to whom.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from dewmark.errors import ConfigError, UnknownNameError
from dewmark_desk.settings import ALL_TENANTS, check_tenant_id
from dewmark_desk.store import Store
from dewmark_desk.store import tokens as table

PREFIX = "dwm"
# The default budget of a public token. Among a thousand verdicts at a level of 1e-4 (public_fpr) 0.1 are
# "marked" by chance, and they are too few bits to learn which words count.
PUBLIC_TEXTS, PUBLIC_BYTES = 1_000, 2_000_000
Clock = Callable[[], float]
BURST = 60.0  # how many seconds of its rate a token may use at once
_CACHE_SECONDS = 1.0  # how long a lookup is cached, and so how long a revocation takes
_CACHE_SIZE = 10_000
_LONGEST_DEBT = 3600.0  # seconds; more can only mean that the clock was set back


class Scope(enum.StrEnum):
    """What a token allows."""

    DETECT = "detect"
    DETECT_PUBLIC = "detect-public"
    GENERATE = "generate"
    METRICS = "metrics"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """A token without its secret. The empty id stands for anyone, at a service without tokens."""

    id: str
    name: str
    scopes: frozenset[Scope]
    tenants: frozenset[str] = frozenset()
    """The tenants whose keys it may use; `ALL_TENANTS` stands for all."""
    per_minute: float = math.inf
    budget: int | None = None
    used: int = 0
    budget_bytes: int | None = None
    used_bytes: int = 0
    created: float = 0.0
    expires: float | None = None
    revoked: float | None = None

    @property
    def sees_all(self) -> bool:
        """Whether the caller may see exact numbers and token scores."""
        return bool(self.scopes & {Scope.DETECT, Scope.ADMIN})

    def may(self, *scopes: Scope) -> bool:
        """Whether the token has one of the scopes; ``admin`` includes all."""
        return bool(self.scopes & {*scopes, Scope.ADMIN})

    def may_use(self, tenant: str) -> bool:
        """Whether the token may use a tenant's keys."""
        return tenant in self.tenants or ALL_TENANTS in self.tenants


OPEN = Caller("", "open", frozenset(Scope), frozenset([ALL_TENANTS]))


class Rejected(Exception):  # noqa: N818 - a state, not a fault
    """A token's rate limit is reached, for ``wait`` seconds, or its budget does not cover ``texts`` more."""

    def __init__(self, *, texts: int = 0, wait: float = 0.0) -> None:
        super().__init__("the token's limit is reached")
        self.texts, self.wait = texts, wait


class Tokens:
    """The tokens of a store; ``clock`` is the time of day, ``ticks`` a clock that cannot be set."""

    def __init__(self, store: Store, *, clock: Clock = time.time, ticks: Clock = time.monotonic) -> None:
        self._store, self._clock, self._ticks = store, clock, ticks
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, tuple[Caller, str] | None]] = {}
        self._any: tuple[float, bool] = (-math.inf, False)

    def new(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        tenants: Sequence[str] = (ALL_TENANTS,),
        per_minute: float = 600.0,
        budget: int | None = None,
        budget_bytes: int | None = None,
        unlimited: bool = False,
        days: float | None = None,
    ) -> tuple[Caller, str]:
        """Create a token; returns it and its text, which is stored nowhere else.

        A token for the public has budgets of `PUBLIC_TEXTS` and `PUBLIC_BYTES`, unless others are given or
        it is ``unlimited``.
        """
        if not tenants:
            raise ConfigError("a token needs at least one tenant, or * for all")
        for tenant in tenants:
            if tenant != ALL_TENANTS:
                check_tenant_id(tenant)
        chosen = frozenset(_scope(scope) for scope in scopes)
        if not chosen:
            raise ConfigError(f"a token needs at least one scope: {', '.join(Scope)}")
        if not 0.0 < per_minute < math.inf:
            raise ConfigError(f"per-minute must be positive, got {per_minute:g}")
        if budget is not None and budget < 1:
            raise ConfigError(f"budget must be at least 1, got {budget}")
        if budget_bytes is not None and budget_bytes < 1:
            raise ConfigError(f"budget-bytes must be at least 1, got {budget_bytes}")
        if unlimited and (budget is not None or budget_bytes is not None):
            raise ConfigError("a token has a budget or is unlimited, not both")
        public = Scope.DETECT_PUBLIC in chosen and not chosen & {Scope.DETECT, Scope.ADMIN}
        if public and not unlimited:
            budget = PUBLIC_TEXTS if budget is None else budget
            budget_bytes = PUBLIC_BYTES if budget_bytes is None else budget_bytes
        if days is not None and not 0.0 < days < 36_525.0:
            raise ConfigError(f"days must lie between 0 and 36525, got {days:g}")
        now = self._clock()
        caller = Caller(
            secrets.token_hex(6),
            name,
            chosen,
            frozenset(tenants),
            per_minute,
            budget,
            budget_bytes=budget_bytes,
            created=now,
            expires=None if days is None else now + 86_400.0 * days,
        )
        secret = secrets.token_urlsafe(32)
        row = {
            **{name: getattr(caller, name) for name in Caller.__dataclass_fields__},
            "scopes": " ".join(sorted(chosen)),
            "tenants": " ".join(sorted(caller.tenants)),
            "digest": _digest(secret),
            "free_at": 0.0,
        }
        with self._store.write() as connection:
            connection.execute(sa.insert(table).values(row))
        self._any = (self._ticks(), True)
        return caller, f"{PREFIX}_{caller.id}_{secret}"

    def all(self) -> list[Caller]:
        """All tokens ever created, oldest first."""
        with self._store.read() as connection:
            rows = connection.execute(sa.select(table).order_by(table.c.created)).all()
        return [_caller(row) for row in rows]

    def revoke(self, id_: str) -> Caller:
        """Revoke a token."""
        with self._store.write() as connection:
            row = connection.execute(sa.select(table).where(table.c.id == id_)).first()
            if row is None:
                raise UnknownNameError(f"no token {id_!r}: list the ids with dewmark token list")
            revoked = self._clock() if row.revoked is None else row.revoked
            connection.execute(sa.update(table).where(table.c.id == id_).values(revoked=revoked))
        self._seen.pop(id_, None)
        return replace(_caller(row), revoked=revoked)

    def exist(self) -> bool:
        """Whether any token was ever created: from then on, every request needs one."""
        now = self._ticks()
        asked, found = self._any
        if not found and now - asked > _CACHE_SECONDS:
            with self._store.read() as connection:
                found = connection.execute(sa.select(table.c.id).limit(1)).first() is not None
            self._any = (now, found)
        return found

    def caller(self, text: str) -> Caller | None:
        """The caller with this token, if it is valid."""
        prefix, _, rest = text.partition("_")
        id_, _, secret = rest.partition("_")
        if prefix != PREFIX or not id_.isalnum() or len(id_) > 16 or not secret or len(text) > 200:
            return None
        found = self._look_up(id_)
        # compare for unknown ids, too, so that timing does not reveal which ids exist
        caller, digest = found or (OPEN, _digest(""))
        same = hmac.compare_digest(digest, _digest(secret))
        if not (found and same):
            return None
        if caller.revoked is None and caller.expires is not None and self._clock() >= caller.expires:
            caller = self.revoke(caller.id)
        return caller if caller.revoked is None else None

    def check(self, caller: Caller, texts: int = 1) -> None:
        """Raise `Rejected` if so many texts would be, before anything else is known about the request."""
        if not caller.id:
            return
        with self._store.read() as connection:
            row = connection.execute(sa.select(table).where(table.c.id == caller.id)).one()
        now = self._clock()
        if _exceeds(row, texts=texts, size=texts):
            raise Rejected(texts=texts)
        wait = min(row.free_at, row.free_at + 60.0 / row.per_minute - BURST) - now
        if 0.0 < wait <= _LONGEST_DEBT:
            raise Rejected(wait=wait)

    def spend(self, caller: Caller, texts: int, *, requests: int | None = None, size: int = 0) -> None:
        """Count texts and their bytes on the budget, and as rate; a request that is `Rejected` is free."""
        if not caller.id:
            return
        now, cost = self._clock(), 60.0 * (texts if requests is None else requests) / caller.per_minute
        owed = sa.and_(table.c.free_at > now, table.c.free_at <= now + _LONGEST_DEBT)
        paid = sa.case((owed, table.c.free_at), else_=now) + cost
        # a request larger than the burst is allowed if nothing is owed; the next one waits for it
        fits = sa.or_(paid <= now + BURST, sa.not_(owed)) if cost else sa.true()
        affordable = sa.and_(
            sa.or_(table.c.budget.is_(None), table.c.used + texts <= table.c.budget),
            sa.or_(table.c.budget_bytes.is_(None), table.c.used_bytes + size <= table.c.budget_bytes),
        )
        change = (
            sa.update(table)
            .where(table.c.id == caller.id, fits, affordable)
            .values(free_at=paid, used=table.c.used + texts, used_bytes=table.c.used_bytes + size)
        )
        with self._store.write() as connection:
            if connection.execute(change).rowcount:
                return
            row = connection.execute(sa.select(table).where(table.c.id == caller.id)).one()
        if _exceeds(row, texts=texts, size=size):
            raise Rejected(texts=texts)
        raise Rejected(wait=min(row.free_at, row.free_at + cost - BURST) - now)

    def refund(self, caller: Caller, texts: int, *, size: int = 0) -> None:
        """Return what `spend` took from the budget, because the request was not answered."""
        if caller.id:
            with self._store.write() as connection:
                connection.execute(
                    sa.update(table)
                    .where(table.c.id == caller.id)
                    .values(used=table.c.used - texts, used_bytes=table.c.used_bytes - size)
                )

    def headers(self, caller: Caller) -> dict[str, str]:
        """What the caller has left now, in the fields of the IETF's draft on rate limits, and its budget."""
        with self._store.read() as connection:
            row = connection.execute(sa.select(table).where(table.c.id == caller.id)).one()
        owed = row.free_at - self._clock()
        owed = owed if 0.0 < owed <= _LONGEST_DEBT else 0.0
        left = max(0.0, BURST - owed) * row.per_minute / 60.0
        values = {
            "RateLimit-Limit": f"{row.per_minute:.0f}",
            "RateLimit-Remaining": f"{math.floor(left)}",
            "RateLimit-Reset": f"{math.ceil(owed)}",
        }
        return values if row.budget is None else values | {"Budget-Remaining": f"{row.budget - row.used}"}

    def left(self, caller: Caller) -> int | None:
        """The rest of the caller's budget, in texts; None: no limit."""
        if caller.budget is None:
            return None
        with self._store.read() as connection:
            used = connection.execute(sa.select(table.c.used).where(table.c.id == caller.id)).scalar_one()
        return max(0, caller.budget - int(used))

    def _look_up(self, id_: str) -> tuple[Caller, str] | None:
        now = self._ticks()
        asked, found = self._seen.get(id_, (-math.inf, None))
        if now - asked <= _CACHE_SECONDS:
            return found
        with self._store.read() as connection:
            row = connection.execute(sa.select(table).where(table.c.id == id_)).first()
        found = None if row is None else (_caller(row), row.digest)
        with self._lock:
            if len(self._seen) >= _CACHE_SIZE:
                self._seen.clear()
            self._seen[id_] = (now, found)
        return found


def _caller(row: Any) -> Caller:  # noqa: ANN401 - a row of SQLAlchemy
    values = {name: getattr(row, name) for name in Caller.__dataclass_fields__}
    scopes = frozenset(Scope(scope) for scope in row.scopes.split())
    return Caller(**{**values, "scopes": scopes, "tenants": frozenset(row.tenants.split())})


def _exceeds(row: Any, *, texts: int, size: int) -> bool:  # noqa: ANN401 - a row of SQLAlchemy
    """Whether texts of this many bytes exceed one of the token's budgets."""
    many = row.budget is not None and row.used + texts > row.budget
    large = row.budget_bytes is not None and row.used_bytes + size > row.budget_bytes
    return bool(many or large)


def _scope(name: str) -> Scope:
    try:
        return Scope(name)
    except ValueError:
        raise UnknownNameError(f"unknown scope {name!r}: choose from {', '.join(Scope)}") from None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
