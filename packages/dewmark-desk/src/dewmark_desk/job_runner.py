"""The thread of a worker process that runs jobs, in small chunks, and deletes what has expired.

Tokens take turns: after `_TURN_SECONDS` a job goes back to the queue if another token's job is waiting.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dewmark.detect import detect_texts
from dewmark.errors import DewmarkError, InputError
from dewmark.scheme import for_languages, reader_name
from dewmark.stats.multiple_testing import benjamini_hochberg
from dewmark.text.languages import LanguagePolicy
from dewmark.types import Verdict
from dewmark_audit.audit import audit
from dewmark_desk import verdicts
from dewmark_desk.admission import SLICE, seconds_of
from dewmark_desk.fair_pool import FairPool, Overloaded
from dewmark_desk.jobs import BATCH, Item, Job, Jobs, ScoredItem
from dewmark_desk.query_log import QueryLog
from dewmark_desk.tenants import Tenant
from dewmark_desk.verdicts import Examination, Query

_CHUNK = 16  # texts scored and recorded at a time; a killed worker loses at most one chunk
_CHUNK_SECONDS = 2.0 * SLICE  # of work in a chunk of several texts
_TURN_SECONDS = 2.0
_POLL_SECONDS = 0.5
_SWEEP_SECONDS = 600.0

_INTERNAL = "internal error, see the service's log"

Scoring = Callable[[Sequence[Item]], list[ScoredItem]]

_log = logging.getLogger("dewmark_desk")


class JobRunner:
    """Runs jobs from the store until it is closed, and then returns an unfinished one to the queue."""

    def __init__(
        self,
        jobs: Jobs,
        tenants: Mapping[str, Tenant],
        slow: FairPool,
        reading: FairPool,
        *,
        sweep: Callable[[], int],
        query_log: QueryLog | None = None,
        roots: Path | None = None,
    ) -> None:
        """``sweep`` deletes what has expired, and returns its rows' number; ``roots`` as in `Examination`."""
        self._jobs, self._tenants, self._slow, self._reading = jobs, tenants, slow, reading
        self._query_log, self._sweep, self._swept, self._roots = query_log, sweep, -math.inf, roots
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

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
                self._clean_up()
                job = self._jobs.claim(list(self._tenants))
                if job is not None:
                    self._work(job)
                    continue
            except Exception as error:  # noqa: BLE001 - the thread must not die
                # the store may be briefly unavailable: the job keeps its lease, or another worker takes over
                _log.exception("running jobs failed", exc_info=error)
            self._wake.wait(_POLL_SECONDS)
            self._wake.clear()

    def _clean_up(self) -> None:
        """Sweep now and then; several workers may do so at once."""
        if time.monotonic() - self._swept < _SWEEP_SECONDS:
            return
        self._swept = time.monotonic()
        if gone := self._sweep():
            _log.info("expired rows were deleted", extra={"fields": {"rows": gone}})

    def _work(self, job: Job) -> None:
        prepare, report = (self._detect, self._batch) if job.kind == BATCH else (self._score, self._audit)
        try:
            tenants = self._find(job)
            how = _examination(job, tenants, self._roots)
            score = prepare(job, how)
            if job.kind == BATCH:  # an audit without some of its texts would be of others
                score = _one_by_one_if_need_be(score)
            empty, page = (seconds_of(Query("中" * size), how) for size in (1, 1001))  # the densest script
            count = max(1, min(_CHUNK, int(_CHUNK_SECONDS / empty)))
            characters = max(1, int(1000.0 * _CHUNK_SECONDS / (page - empty)))
            until = time.monotonic() + _TURN_SECONDS
            while chunk := self._jobs.open_items(job, count=count, characters=characters):
                if self._stop.is_set() or (time.monotonic() > until and self._jobs.others_wait(job)):
                    self._jobs.release(job)
                    return
                cost = sum(seconds_of(Query(item.text, item.prompt), how) for item in chunk)
                with self._jobs.keeping(job):
                    scored = (self._reading if how.has_reader else self._slow).run_job(
                        score, chunk, owner=job.owner, cost=cost
                    )
                if not self._jobs.record(job, scored):
                    return
            self._jobs.finish(job, result=report(job, tenants))
        except Overloaded:  # the pool has closed, because the service stops
            self._jobs.release(job)
        except DewmarkError as error:
            self._jobs.finish(job, error=str(error))
        except Exception as error:  # noqa: BLE001 - reported with the job
            _log.exception("a job failed", exc_info=error)
            self._jobs.finish(job, error=_INTERNAL)

    def _find(self, job: Job) -> list[Tenant]:
        ids = [job.tenant] if job.tenant else job.settings["tenants"]
        missing = [id_ for id_ in ids if id_ not in self._tenants]
        if missing:
            raise InputError("a tenant of this job is no longer served: submit the job again")
        return [self._tenants[id_] for id_ in ids]

    def _score(self, job: Job, how: Examination) -> Scoring:
        # an audit is what a language needs
        anywhere = for_languages(how.tenants[0].bound, LanguagePolicy(every=True))

        def score(some: Sequence[Item]) -> list[ScoredItem]:
            texts, prompts = [item.text for item in some], [item.prompt for item in some]
            examined = detect_texts(
                texts, anywhere, prompts=prompts, test=job.test, explain=False, blank=True
            )
            found = [each.judged for each in examined]
            return [
                ScoredItem(item.number, each.tokens_scored, each.p_value if each.verdict.conclusive else None)
                for item, each in zip(some, found, strict=True)
            ]

        return score

    def _detect(self, job: Job, how: Examination) -> Scoring:
        def score(some: Sequence[Item]) -> list[ScoredItem]:
            queries = [Query(item.text, item.prompt) for item in some]
            found = [answer.said for answer in verdicts.detect(queries, how)]
            if self._query_log is not None:
                texts = [item.text for item in some]
                who = {"request": job.id, "token": job.owner, "endpoint": "batch"}
                self._query_log.write(**who, texts=texts, answers=found)
            return [
                ScoredItem(
                    item.number,
                    answer["tokens_scored"],
                    answer["p_value"] if Verdict(answer["verdict"]).conclusive else None,
                    _without_text(answer),
                )
                for item, answer in zip(some, found, strict=True)
            ]

        return score

    def _audit(self, job: Job, tenants: Sequence[Tenant]) -> dict[str, Any]:
        tenant = tenants[0]
        outcomes = self._jobs.outcomes(job)
        judged = [(code, one.length, one.p_value) for code, one in outcomes if one.p_value is not None]
        found = audit(
            [p_value for _, _, p_value in judged],
            languages=[language for language, _, _ in judged],
            lengths=[length for _, length, _ in judged],
        )
        cells = [{**at.to_dict(), "name": at.name, "significant": at.significant} for at in found.cells]
        return {
            "key_fingerprint": tenant.bound.fingerprint,
            "scheme": tenant.bound.scheme.name,
            "host": tenant.bound.host.name,
            "reader": reader_name(tenant.bound),
            "test": job.test or tenant.bound.tests[0],
            "too_short": len(outcomes) - len(judged),
            "left_out": job.left_out,
            **found.to_dict(),
            "cells": cells,
        }

    def _batch(self, job: Job, tenants: Sequence[Tenant]) -> dict[str, Any]:
        fpr = job.settings["fpr"]
        if error := self._jobs.common_error(job):
            raise InputError(f"none of the texts could be examined: {error}")
        p = [one.p_value for _, one in self._jobs.outcomes(job) if one.p_value is not None]
        return {
            "fpr": fpr,
            "keys": job.settings["keys"],
            "texts": job.total,
            "marked": sum(value <= fpr for value in p),
            "without_verdict": job.total - len(p),
            # after Benjamini-Hochberg: of these, at most about a share of fpr is unmarked
            "rejected": int((benjamini_hochberg(p) <= fpr).sum()) if p else 0,
            "results": f"/v1/jobs/{job.id}/results",
        }


def _one_by_one_if_need_be(score: Scoring) -> Scoring:
    """``score``, but a text that it fails on gets an error, and the others of its chunk their results."""

    def scored(some: Sequence[Item]) -> list[ScoredItem]:
        try:
            return score(some)
        except sa.exc.SQLAlchemyError:  # the store's failure, and no text's
            raise
        except Exception as error:  # noqa: BLE001 - reported with the text
            if len(some) > 1:
                return [one for item in some for one in scored([item])]
            if not isinstance(error, DewmarkError):
                _log.exception("a text of a job failed", exc_info=error)
            why = str(error) if isinstance(error, DewmarkError) else _INTERNAL
            return [ScoredItem(some[0].number, 0, None, {"error": why})]

    return scored


def _examination(job: Job, tenants: Sequence[Tenant], roots: Path | None) -> Examination:
    options = {"keys": 1, **job.settings}  # an audit has none
    kept = {name: options[name] for name in ("keys", "fpr", "read") if name in options}
    return Examination(tenants, test=job.test, roots=roots, **kept)


def _without_text(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without the words of the text, which are not stored: passages are offsets."""
    kept = {name: value for name, value in answer.items() if name != "tokens"}
    if kept["coverage"] is not None:
        passages = [{**passage, "text": None} for passage in kept["coverage"]["passages"]]
        kept["coverage"] = {**kept["coverage"], "passages": passages}
    return kept
