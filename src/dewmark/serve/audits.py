"""The thread of a worker process that runs audits, a small piece at a time, beside the requests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dewmark.errors import DewmarkError
from dewmark.scheme import DEFAULT_FPR
from dewmark.serve.jobs import Item, Job, Jobs, Scored
from dewmark.serve.pool import Overloaded, Pool
from dewmark.serve.scoring import Query
from dewmark.serve.tenants import Tenant
from dewmark.stats.audit import audit
from dewmark.types import Verdict

__all__ = ["AuditRunner"]

_log = logging.getLogger("dewmark.serve")

_PIECE = 16  # texts scored and written at a time: what a killed worker has to do again
_PIECE_BYTES = 32_768
_LOOK_EVERY = 0.5  # seconds between two looks for a job


class AuditRunner:
    """Takes jobs from the store until it is closed; what is unfinished then is given back."""

    def __init__(self, jobs: Jobs, tenants: Mapping[str, Tenant], pool: Pool, *, limit: int) -> None:
        self._jobs, self._tenants, self._pool, self._limit = jobs, tenants, pool, limit
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="audits", daemon=True)

    def start(self) -> None:
        """Begin to look for jobs."""
        self._thread.start()

    def wake(self) -> None:
        """Look for a job now."""
        self._wake.set()

    def close(self) -> None:
        """Stop after the piece in work."""
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
            except Exception as error:  # noqa: BLE001 - a thread that dies would leave jobs lying
                # the store is away for a moment: the job keeps its lease, or another worker takes it up
                _log.exception("audits", exc_info=error)
            self._wake.wait(_LOOK_EVERY)
            self._wake.clear()

    def _work(self, job: Job) -> None:
        tenant = self._tenants[job.tenant]
        try:
            while piece := _piece(self._jobs.open_items(job, count=_PIECE)):
                if self._stop.is_set():
                    self._jobs.release(job)
                    return
                scored = self._pool.run_background(lambda some: self._score(some, job, tenant), piece)
                if not self._jobs.record(job, scored):
                    return
            self._jobs.finish(job, result=self._report(job, tenant))
        except Overloaded:  # the pool has closed: the service stops
            self._jobs.release(job)
        except DewmarkError as error:
            self._jobs.finish(job, error=str(error))
        except Exception as error:  # noqa: BLE001 - told to whoever asks for the job
            _log.exception("audit failed", exc_info=error)
            self._jobs.finish(job, error="internal error: see the service's log")

    def _score(self, piece: Sequence[Item], job: Job, tenant: Tenant) -> list[Scored]:
        texts = [Query(item.text).beginning(self._limit) for item in piece]
        found = tenant.bound.detect_batch(
            texts, prompts=[item.prompt for item in piece], fpr=DEFAULT_FPR, test=job.test
        )
        return [
            Scored(
                item.number,
                each.tokens_scored,
                None if each.verdict is Verdict.TOO_SHORT else each.p_value,
            )
            for item, each in zip(piece, found, strict=True)
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


def _piece(waiting: Sequence[Item]) -> list[Item]:
    """As many of the texts as make a small piece of work, but one at least."""
    piece: list[Item] = []
    size = 0
    for item in waiting:
        size += len(item.text)
        if piece and size > _PIECE_BYTES:
            break
        piece.append(item)
    return piece
