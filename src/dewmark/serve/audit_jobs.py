"""Audit jobs: kept in the store, so that they survive the death of a worker, and run beside requests.

A worker leases a job and renews the lease with every chunk of results that it writes. If it dies, the lease
expires and another worker continues after the last chunk; a worker that was merely slow finds that it has
lost the lease, and stops. Texts are deleted when their job ends. `AuditRunner` is the thread of a worker
process that runs jobs, a small chunk at a time, in the pool that also serves requests.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from dewmark.errors import DewmarkError
from dewmark.scheme import DEFAULT_FPR
from dewmark.serve.store import Store, items, jobs
from dewmark.serve.tenants import Tenant
from dewmark.serve.thread_pool import BatchingPool, Overloaded
from dewmark.serve.verdicts import truncate_bytes
from dewmark.stats.audit import audit
from dewmark.text.languages import LanguagePolicy
from dewmark.types import Verdict

__all__ = ["AuditRunner", "Item", "Job", "Jobs", "Scored", "TooManyJobs"]

ATTEMPTS = 5  # a job whose workers keep dying fails after this many

_OPEN = ("queued", "running")
_LISTED = 50  # the most jobs that `Jobs.of` returns
_CHUNK = 16  # texts scored and recorded at a time; a killed worker loses at most one chunk
_CHUNK_CHARACTERS = 32_768
_POLL_SECONDS = 0.5

_log = logging.getLogger("dewmark.serve")


class TooManyJobs(Exception):  # noqa: N818 - a state, not a fault
    """The limit of open jobs is reached: the caller's own (``own``) or that of the service."""

    def __init__(self, *, own: bool) -> None:
        super().__init__("too many open jobs")
        self.own = own


@dataclass(frozen=True, slots=True)
class Item:
    """One text of a job."""

    number: int
    text: str = field(repr=False)
    prompt: str | None = field(repr=False)
    language: str


@dataclass(frozen=True, slots=True)
class Scored:
    """The result for one text; without a p-value it was too short for a verdict."""

    number: int
    length: int
    p_value: float | None


@dataclass(frozen=True, slots=True)
class Job:
    """An audit's row in the store."""

    id: str
    owner: str
    state: str
    tenant: str
    test: str | None
    total: int
    left_out: int
    done: int
    created: float
    finished: float | None
    error: str | None
    result: str | None

    def to_dict(self, *, result: bool = True) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "id": self.id,
            "kind": "audit",
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "created": _timestamp(self.created),
            "finished": None if self.finished is None else _timestamp(self.finished),
            "tenant": self.tenant,
            "error": self.error,
            "result": json.loads(self.result) if result and self.result else None,
        }


class Jobs:
    """The jobs of a store; ``worker`` identifies this process in leases."""

    def __init__(self, store: Store, *, lease: float, clock: Callable[[], float] = time.time) -> None:
        self._store, self._lease, self._clock = store, lease, clock
        self.worker = secrets.token_hex(8)

    def submit(
        self,
        owner: str,
        *,
        tenant: str,
        test: str | None,
        texts: Sequence[tuple[str, str | None, str]],
        left_out: int,
        owner_limit: int,
        limit: int,
    ) -> Job:
        """Store a job of (text, prompt, language) triples."""
        id_ = f"j_{secrets.token_urlsafe(16)}"
        with self._store.write() as connection:
            waiting = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state.in_(_OPEN))
            if connection.execute(waiting.where(jobs.c.owner == owner)).scalar_one() >= owner_limit:
                raise TooManyJobs(own=True)
            if connection.execute(waiting).scalar_one() >= limit:
                raise TooManyJobs(own=False)
            row = {
                "id": id_,
                "owner": owner,
                "state": "queued",
                "tenant": tenant,
                "test": test,
                "total": len(texts),
                "left_out": left_out,
                "done": 0,
                "created": self._clock(),
                "leased_until": 0.0,
                "attempts": 0,
            }
            connection.execute(sa.insert(jobs).values(row))
            connection.execute(
                sa.insert(items),
                [
                    {"job": id_, "number": number, "text": text, "prompt": prompt, "language": language}
                    for number, (text, prompt, language) in enumerate(texts)
                ],
            )
        found = self.get(id_)
        assert found is not None  # just written
        return found

    def get(self, id_: str) -> Job | None:
        """The job with this id, if any."""
        with self._store.read() as connection:
            row = connection.execute(sa.select(jobs).where(jobs.c.id == id_)).first()
        return None if row is None else _job(row)

    def of(self, owner: str | None) -> list[Job]:
        """The latest jobs of an owner, or of all, newest first."""
        chosen = sa.select(jobs).order_by(jobs.c.created.desc()).limit(_LISTED)
        with self._store.read() as connection:
            rows = connection.execute(chosen if owner is None else chosen.where(jobs.c.owner == owner)).all()
        return [_job(row) for row in rows]

    def delete(self, id_: str) -> None:
        """Delete a job and its texts; a worker that runs it notices and stops."""
        with self._store.write() as connection:
            connection.execute(sa.delete(items).where(items.c.job == id_))
            connection.execute(sa.delete(jobs).where(jobs.c.id == id_))

    def claim(self, tenants: Sequence[str]) -> Job | None:
        """Lease the oldest free job of the given tenants."""
        now = self._clock()
        free = sa.or_(jobs.c.state == "queued", sa.and_(jobs.c.state == "running", jobs.c.leased_until < now))
        with self._store.read() as connection:  # most polls find nothing and need no lock
            if connection.execute(sa.select(jobs.c.id).where(free).limit(1)).first() is None:
                return None
        with self._store.write() as connection:
            connection.execute(
                sa.update(jobs)
                .where(free, jobs.c.attempts >= ATTEMPTS)
                .values(state="failed", finished=now, error=f"given up after {ATTEMPTS} workers died")
            )
            chosen = sa.select(jobs).where(free, jobs.c.tenant.in_(tenants)).order_by(jobs.c.created).limit(1)
            row = connection.execute(chosen).first()
            if row is None:
                return None
            taken = connection.execute(
                sa.update(jobs)
                .where(jobs.c.id == row.id, free)
                .values(
                    state="running",
                    worker=self.worker,
                    leased_until=now + self._lease,
                    attempts=jobs.c.attempts + 1,
                )
            ).rowcount
        return _job(row) if taken else None

    def open_items(self, job: Job, *, count: int) -> list[Item]:
        """The next texts of a job without a result."""
        chosen = sa.select(items).where(items.c.job == job.id, items.c.length.is_(None))
        with self._store.read() as connection:
            rows = connection.execute(chosen.order_by(items.c.number).limit(count)).all()
        return [Item(row.number, row.text, row.prompt, row.language) for row in rows]

    def record(self, job: Job, scored: Sequence[Scored]) -> bool:
        """Write results and renew the lease; False if this worker has lost the lease."""
        with self._store.write() as connection:
            mine = connection.execute(
                self._own(job).values(
                    done=jobs.c.done + len(scored),
                    leased_until=self._clock() + self._lease,
                    attempts=1,  # the job makes progress, so it did not kill its workers
                )
            ).rowcount
            for one in scored if mine else ():
                connection.execute(
                    sa.update(items)
                    .where(items.c.job == job.id, items.c.number == one.number)
                    .values(length=one.length, p_value=one.p_value, text=None, prompt=None)
                )
        return bool(mine)

    def outcomes(self, job: Job) -> list[tuple[str, Scored]]:
        """The language and result of every text."""
        with self._store.read() as connection:
            rows = connection.execute(
                sa.select(items).where(items.c.job == job.id).order_by(items.c.number)
            ).all()
        return [(row.language, Scored(row.number, row.length, row.p_value)) for row in rows]

    def finish(self, job: Job, *, result: dict[str, Any] | None = None, error: str | None = None) -> None:
        """End a job with a result or an error, and delete its texts."""
        values = {
            "state": "done" if error is None else "failed",
            "finished": self._clock(),
            "error": error,
            "result": None if result is None else json.dumps(result, ensure_ascii=False),
        }
        with self._store.write() as connection:
            if connection.execute(self._own(job).values(values)).rowcount:
                connection.execute(sa.delete(items).where(items.c.job == job.id))

    def release(self, job: Job) -> None:
        """Return an unfinished job to the queue, because this worker stops."""
        with self._store.write() as connection:
            connection.execute(self._own(job).values(state="queued", leased_until=0.0, attempts=0))

    def _own(self, job: Job) -> sa.Update:
        """An update that applies only while this worker holds the lease."""
        return sa.update(jobs).where(
            jobs.c.id == job.id, jobs.c.state == "running", jobs.c.worker == self.worker
        )


class AuditRunner:
    """Runs jobs from the store until it is closed, and then returns an unfinished one to the queue."""

    def __init__(self, jobs: Jobs, tenants: Mapping[str, Tenant], pool: BatchingPool, *, limit: int) -> None:
        self._jobs, self._tenants, self._pool, self._limit = jobs, tenants, pool, limit
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="audits", daemon=True)

    def start(self) -> None:
        """Start polling for jobs."""
        self._thread.start()

    def wake(self) -> None:
        """Poll now."""
        self._wake.set()

    def close(self) -> None:
        """Stop after the current chunk."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                job = self._jobs.claim(list(self._tenants))
                if job is not None:
                    self._work(job)
                    continue
            except Exception as error:  # noqa: BLE001 - the thread must not die
                # the store may be briefly unavailable: the job keeps its lease, or another worker takes over
                _log.exception("running audits failed", exc_info=error)
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()

    def _work(self, job: Job) -> None:
        tenant = self._tenants[job.tenant]
        try:
            while chunk := _chunk(self._jobs.open_items(job, count=_CHUNK)):
                if self._stop.is_set():
                    self._jobs.release(job)
                    return
                scored = self._pool.run_background(lambda some: self._score(some, job, tenant), chunk)
                if not self._jobs.record(job, scored):
                    return
            self._jobs.finish(job, result=self._report(job, tenant))
        except Overloaded:  # the pool has closed, because the service stops
            self._jobs.release(job)
        except DewmarkError as error:
            self._jobs.finish(job, error=str(error))
        except Exception as error:  # noqa: BLE001 - reported with the job
            _log.exception("audit failed", exc_info=error)
            self._jobs.finish(job, error="internal error, see the service's log")

    def _score(self, chunk: Sequence[Item], job: Job, tenant: Tenant) -> list[Scored]:
        texts = [truncate_bytes(item.text, self._limit) for item in chunk]
        anywhere = tenant.bound.judging(LanguagePolicy(every=True))  # an audit is what a language needs
        found = anywhere.detect_batch(
            texts, prompts=[item.prompt for item in chunk], fpr=DEFAULT_FPR, test=job.test
        )
        return [
            Scored(
                item.number,
                each.tokens_scored,
                None if each.verdict is Verdict.TOO_SHORT else each.p_value,
            )
            for item, each in zip(chunk, found, strict=True)
        ]

    def _report(self, job: Job, tenant: Tenant) -> dict[str, Any]:
        outcomes = self._jobs.outcomes(job)
        judged = [
            (language, one.length, one.p_value) for language, one in outcomes if one.p_value is not None
        ]
        found = audit(
            [p_value for _, _, p_value in judged],
            languages=[language for language, _, _ in judged],
            lengths=[length for _, length, _ in judged],
        )
        cells = [
            {**cell.to_dict(), "name": cell.name, "significant": cell.significant} for cell in found.cells
        ]
        return {
            "key_fingerprint": tenant.bound.fingerprint,
            "scheme": tenant.bound.scheme.name,
            "host": tenant.bound.host.name,
            "test": job.test or tenant.bound.tests[0],
            "too_short": len(outcomes) - len(judged),
            "left_out": job.left_out,
            **found.to_dict(),
            "cells": cells,
        }


def _job(row: Any) -> Job:  # noqa: ANN401 - a row of SQLAlchemy
    names = Job.__dataclass_fields__
    return Job(**{name: getattr(row, name) for name in names})


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _chunk(waiting: Sequence[Item]) -> list[Item]:
    """The first texts, up to `_CHUNK_CHARACTERS` but at least one."""
    chunk: list[Item] = []
    size = 0
    for item in waiting:
        size += len(item.text)
        if chunk and size > _CHUNK_CHARACTERS:
            break
        chunk.append(item)
    return chunk
