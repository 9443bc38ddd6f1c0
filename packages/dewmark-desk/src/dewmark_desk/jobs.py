"""Jobs (audits, batches of detections): kept in the store, so that they survive the death of a worker.

A worker leases a job and renews the lease while it works. If it dies, the lease
expires and another worker continues after the last chunk; a worker that was merely slow finds that it has
lost the lease, and stops. A text is deleted when it is scored, its result with its job, which expires.

A caller may name a request: the job's id then follows from owner and name, so it can be stored only once.

Many rows are written and deleted in short transactions with pauses, because SQLite has one lock for all
writers. A job whose texts are not all stored yet is run by nobody; if its worker dies, it is deleted.

Boundary: rows; `job_runner` does the work.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from dewmark.errors import InputError
from dewmark_desk.detection_report import timestamp
from dewmark_desk.store import Store, items, jobs
from dewmark_desk.store import texts as words

AUDIT, BATCH = "audit", "detect"

ATTEMPTS = 5  # a job whose workers keep dying fails after this many

STORING = "storing"
_OPEN = ("queued", "running")
_ROWS = 500  # written or deleted at a time
_LONGEST = 600.0  # seconds that one chunk of texts may take


class TooManyJobs(Exception):  # noqa: N818 - a state, not a fault
    """The limit of open jobs is reached: the caller's own (``own``) or that of the service."""

    def __init__(self, *, own: bool) -> None:
        super().__init__("too many open jobs")
        self.own = own


@dataclass(frozen=True, slots=True)
class Item:
    """One text of a job; ``name`` is the caller's id of it."""

    number: int
    text: str = field(repr=False)
    prompt: str | None = field(default=None, repr=False)
    language: str = ""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """The result for one text; without a p-value it has no verdict; ``result`` may be an error."""

    number: int
    length: int
    p_value: float | None
    result: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job's row in the store; ``tenant`` is empty if it concerns several."""

    id: str
    owner: str
    kind: str
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
    options: str

    @property
    def settings(self) -> dict[str, Any]:
        """The job's own options."""
        return dict(json.loads(self.options))

    def to_dict(self, *, result: bool = True) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "id": self.id,
            "kind": self.kind,
            "state": "queued" if self.state == STORING else self.state,
            "done": self.done,
            "total": self.total,
            "created": timestamp(self.created),
            "finished": None if self.finished is None else timestamp(self.finished),
            "tenant": self.tenant or None,
            "error": self.error,
            "result": json.loads(self.result) if result and self.result else None,
        }


def named_id(owner: str, name: str) -> str:
    """The id of the job that an owner submits under a name."""
    return f"j_{hashlib.sha256(f'{owner}/{name}'.encode()).hexdigest()[:32]}"


class Jobs:
    """The jobs of a store; ``worker`` identifies this process in leases."""

    def __init__(self, store: Store, *, lease: float, clock: Callable[[], float] = time.time) -> None:
        self._store, self._lease, self._clock = store, lease, clock
        self.worker = secrets.token_hex(8)

    def submit(
        self,
        owner: str,
        *,
        named: str | None = None,
        kind: str = AUDIT,
        tenant: str,
        test: str | None,
        texts: Sequence[Item],
        left_out: int = 0,
        options: Mapping[str, Any] | None = None,
        owner_limit: int,
        limit: int,
    ) -> Job:
        """Store a job, under a random id unless it is ``named``."""
        self._delete(self._dead())
        id_ = named or f"j_{secrets.token_urlsafe(16)}"
        with self._store.write() as connection:
            open_ = jobs.c.state.in_((STORING, *_OPEN))
            waiting = sa.select(sa.func.count()).select_from(jobs).where(open_)
            if connection.execute(waiting.where(jobs.c.owner == owner)).scalar_one() >= owner_limit:
                raise TooManyJobs(own=True)
            if connection.execute(waiting).scalar_one() >= limit:
                raise TooManyJobs(own=False)
            row = {
                "id": id_,
                "owner": owner,
                "kind": kind,
                "state": STORING,
                "tenant": tenant,
                "test": test,
                "total": len(texts),
                "left_out": left_out,
                "done": 0,
                "created": self._clock(),
                "leased_until": self._clock() + self._lease,
                "attempts": 0,
                "options": json.dumps(dict(options or {})),
            }
            connection.execute(sa.insert(jobs).values(row))
        # not one that another request has stored since under the same name
        mine = sa.and_(jobs.c.id == id_, jobs.c.state == STORING, jobs.c.created == row["created"])
        try:
            for start in range(0, len(texts), _ROWS):
                with self._briefly() as connection:
                    _keep(connection, mine, leased_until=self._clock() + self._lease)
                    for table, names in ((items, ("language", "name")), (words, ("text", "prompt"))):
                        rows = [
                            {"job": id_, "number": each.number}
                            | {name: _storable(getattr(each, name)) for name in names}
                            for each in texts[start : start + _ROWS]
                        ]
                        connection.execute(sa.insert(table), rows)
            with self._store.write() as connection:
                _keep(connection, mine, state="queued", leased_until=0.0)
        except BaseException:
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                self._delete(mine)
            raise
        found = self.get(id_)
        assert found is not None  # just written
        return found

    def get(self, id_: str) -> Job | None:
        """The job with this id, if any and if it is not dead."""
        with self._store.read() as connection:
            row = connection.execute(sa.select(jobs).where(jobs.c.id == id_, ~self._dead())).first()
        return None if row is None else _job(row)

    def of(self, owner: str | None, *, after: Job | None = None, limit: int = 50) -> list[Job]:
        """The jobs of an owner, or of all, newest first, from the one that follows ``after``."""
        chosen = sa.select(jobs).order_by(jobs.c.created.desc(), jobs.c.id.desc()).limit(limit)
        if owner is not None:
            chosen = chosen.where(jobs.c.owner == owner)
        if after is not None:
            older = sa.and_(jobs.c.created == after.created, jobs.c.id < after.id)
            chosen = chosen.where(sa.or_(jobs.c.created < after.created, older))
        with self._store.read() as connection:
            rows = connection.execute(chosen).all()
        return [_job(row) for row in rows]

    def delete(self, id_: str) -> None:
        """Delete a job and its texts; a worker that runs it notices and stops."""
        self._delete(jobs.c.id == id_)

    def expire(self, *, days: float) -> int:
        """Delete jobs that ended this long ago, and texts that a dead worker left; the number of jobs."""
        left = sa.select(jobs).where(jobs.c.finished.is_not(None), jobs.c.id.in_(sa.select(words.c.job)))
        with self._store.read() as connection:
            ended = [_job(row) for row in connection.execute(left)]
        for job in ended:
            self._empty(words, job)
        return self._delete(jobs.c.finished < self._clock() - 86_400.0 * days)

    def _dead(self) -> sa.ColumnElement[bool]:
        """The jobs whose worker died before all their texts were stored."""
        return sa.and_(jobs.c.state == STORING, jobs.c.leased_until < self._clock())

    def _delete(self, which: sa.ColumnElement[bool]) -> int:
        with self._store.read() as connection:  # most often there are none, which needs no lock
            if connection.execute(sa.select(jobs.c.id).where(which).limit(1)).first() is None:
                return 0
        with self._store.write() as connection:
            gone = [_job(row) for row in connection.execute(sa.select(jobs).where(which))]
            finished = sa.func.coalesce(jobs.c.finished, self._clock())  # it expires if this worker dies
            connection.execute(  # whoever runs one loses it
                sa.update(jobs).where(which).values(state="failed", finished=finished)
            )
        for job in gone:
            self._empty(words, job)
            self._empty(items, job)
        with self._store.write() as connection:
            connection.execute(sa.delete(jobs).where(jobs.c.id.in_([job.id for job in gone])))
        self._forget()
        return len(gone)

    def _empty(self, table: sa.Table, job: Job) -> None:
        """Delete a job's rows of a table."""
        mine = table.c.job == job.id
        with self._store.read() as connection:
            if connection.execute(sa.select(table.c.number).where(mine).limit(1)).first() is None:
                return
        for start in range(0, job.total, _ROWS):
            with self._briefly() as connection:
                some = table.c.number.between(start, start + _ROWS - 1)
                connection.execute(sa.delete(table).where(mine, some))

    @contextlib.contextmanager
    def _briefly(self) -> Iterator[sa.Connection]:
        """A transaction, and a pause as long, in which others find the lock free."""
        with self._store.write() as connection:
            started = time.monotonic()
            yield connection
        time.sleep(time.monotonic() - started)

    def claim(self, tenants: Sequence[str]) -> Job | None:
        """Lease the next free job of the given tenants; tokens take turns."""
        now = self._clock()
        free = sa.or_(jobs.c.state == "queued", sa.and_(jobs.c.state == "running", jobs.c.leased_until < now))
        self._delete(self._dead())
        with self._store.read() as connection:  # most polls find nothing and need no lock
            if connection.execute(sa.select(jobs.c.id).where(free).limit(1)).first() is None:
                return None
        with self._store.write() as connection:
            connection.execute(
                sa.update(jobs)
                .where(free, jobs.c.attempts >= ATTEMPTS)
                .values(state="failed", finished=now, error=f"given up after {ATTEMPTS} workers died")
            )
            mine = jobs.c.tenant.in_(["", *tenants])
            # of the token whose turn is longest ago its oldest job
            turns = sa.select(jobs.c.owner, sa.func.max(jobs.c.leased_until).label("turn"))
            last = turns.where(jobs.c.state.in_(_OPEN)).group_by(jobs.c.owner).subquery()
            chosen = sa.select(jobs).join(last, last.c.owner == jobs.c.owner).where(free, mine)
            chosen = chosen.order_by(last.c.turn, jobs.c.created).limit(1)
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

    def open_items(self, job: Job, *, count: int, characters: int = 1 << 20) -> list[Item]:
        """The next texts of a job without a result: one, and more up to so many texts and characters."""
        same = sa.and_(words.c.job == items.c.job, words.c.number == items.c.number)
        waiting = sa.and_(items.c.job == job.id, items.c.length.is_(None), same)
        sizes = sa.select(items.c.number, sa.func.length(words.c.text)).where(waiting)
        chosen = sa.select(items.c.number, words.c.text, words.c.prompt, items.c.language).where(waiting)
        with self._store.read() as connection:
            last = None
            for number, size in connection.execute(sizes.order_by(items.c.number).limit(count)).all():
                characters -= size
                if last is not None and characters < 0:
                    break
                last = number
            if last is None:
                return []
            rows = connection.execute(chosen.where(items.c.number <= last).order_by(items.c.number)).all()
        return [Item(row.number, row.text, row.prompt, row.language) for row in rows]

    def record(self, job: Job, scored: Sequence[ScoredItem]) -> bool:
        """Write results and renew the lease; False if this worker has lost the lease."""
        with self._store.write() as connection:
            mine = connection.execute(
                self._own(job).values(
                    done=jobs.c.done + len(scored),
                    leased_until=self._clock() + self._lease,
                    attempts=1,  # the job makes progress, so it did not kill its workers
                )
            ).rowcount
            first = _first(connection, job)
            for one in scored if mine else ():
                found = one.result or {}
                kept = {name: value for name, value in found.items() if first.get(name, self) != value}
                first = found if one.number == 0 and "error" not in found else first
                connection.execute(
                    sa.update(items)
                    .where(items.c.job == job.id, items.c.number == one.number)
                    .values(
                        length=one.length,
                        p_value=one.p_value,
                        result=None if one.result is None else json.dumps(kept, ensure_ascii=False),
                    )
                )
                scored_words = words.c.job == job.id, words.c.number == one.number
                connection.execute(sa.delete(words).where(*scored_words))
        return bool(mine)

    @contextlib.contextmanager
    def keeping(self, job: Job) -> Iterator[None]:
        """Renew the lease while the block runs, for `_LONGEST` seconds at most: a chunk may take its time.

        The lease of a worker that dies expires all the same, because the renewals die with it.
        """
        ended = threading.Event()
        last = time.monotonic() + _LONGEST

        def renew() -> None:
            while not ended.wait(self._lease / 3.0) and time.monotonic() < last:
                with contextlib.suppress(sa.exc.SQLAlchemyError), self._store.write() as connection:
                    connection.execute(self._own(job).values(leased_until=self._clock() + self._lease))

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def outcomes(self, job: Job) -> list[tuple[str, ScoredItem]]:
        """The language and result of every text."""
        with self._store.read() as connection:
            chosen = sa.select(items).where(items.c.job == job.id).order_by(items.c.number)
            rows = connection.execute(chosen).all()
        return [(row.language, ScoredItem(row.number, row.length, row.p_value)) for row in rows]

    def results(self, job: Job, *, after: int = -1, limit: int = 100) -> list[dict[str, Any]]:
        """The results of a batch as JSON values, in order, from the text that follows number ``after``."""
        later = items.c.number > after
        chosen = sa.select(items).where(items.c.job == job.id, later, items.c.length.is_not(None))
        with self._store.read() as connection:
            rows = connection.execute(chosen.order_by(items.c.number).limit(limit)).all()
            first = _first(connection, job)
        return [
            {"number": row.number, "id": row.name, **(found if "error" in found else first | found)}
            for row in rows
            for found in [json.loads(row.result or "{}")]
        ]

    def common_error(self, job: Job) -> str | None:
        """The error of the first text, if no text has a result."""
        examined = sa.select(items.c.number).where(
            items.c.job == job.id, items.c.result.not_like('{"error"%')
        )
        with self._store.read() as connection:
            if connection.execute(examined.limit(1)).first() is not None:
                return None
        return next((str(row["error"]) for row in self.results(job, limit=1)), None)

    def finish(self, job: Job, *, result: dict[str, Any] | None = None, error: str | None = None) -> None:
        """End a job with a result or an error, and delete its texts; a finished batch keeps its results."""
        now = self._clock()
        values = {
            "state": "done" if error is None else "failed",
            "finished": now,
            "error": error,
            "result": None if result is None else json.dumps(result, ensure_ascii=False),
        }
        with self._store.write() as connection:  # first, since a job without its texts looks done
            if not connection.execute(self._own(job).values(values)).rowcount:
                return
        self._empty(words, job)
        if job.kind == AUDIT or error is not None:
            self._empty(items, job)
        self._forget()

    def others_wait(self, job: Job) -> bool:
        """Whether a job of another token waits for its turn."""
        waiting = sa.select(jobs.c.id).where(jobs.c.state == "queued", jobs.c.owner != job.owner)
        with self._store.read() as connection:
            return connection.execute(waiting.limit(1)).first() is not None

    def release(self, job: Job) -> None:
        """Return an unfinished job to the queue; ``leased_until`` says when its turn ended."""
        with self._store.write() as connection:
            connection.execute(self._own(job).values(state="queued", leased_until=self._clock(), attempts=0))

    def _forget(self) -> None:
        """Remove the words of deleted texts from the database's files."""
        with self._store.write() as connection:
            if connection.execute(sa.select(words.c.job).limit(1)).first() is None:
                connection.execute(sa.delete(words))  # frees all its pages, which overwrites them
        self._store.forget_deleted()

    def _own(self, job: Job) -> sa.Update:
        """An update that applies only while this worker holds the lease."""
        mine = jobs.c.worker == self.worker
        return sa.update(jobs).where(jobs.c.id == job.id, jobs.c.state == "running", mine)


def _keep(connection: sa.Connection, mine: sa.ColumnElement[bool], **values: Any) -> None:  # noqa: ANN401
    """Update a job that is being stored; `InputError` if it has been deleted meanwhile."""
    if not connection.execute(sa.update(jobs).where(mine).values(values)).rowcount:
        raise InputError("the job was deleted while its texts were being stored: submit it again")


def _first(connection: sa.Connection, job: Job) -> dict[str, Any]:
    """The first result of a job, which is kept whole; of the others only what differs from it.

    Empty for an error, of which the others have nothing.
    """
    number_0 = sa.select(items.c.result).where(items.c.job == job.id, items.c.number == 0)
    found: dict[str, Any] = json.loads(connection.execute(number_0).scalar() or "{}")
    return {} if "error" in found else found


def _job(row: Any) -> Job:  # noqa: ANN401 - a row of SQLAlchemy
    return Job(**{name: getattr(row, name) for name in Job.__dataclass_fields__})


def _storable(text: str | None) -> str | None:
    """A text as every database takes it: PostgreSQL has no NUL, which separates words like a blank."""
    return text and text.replace("\x00", " ")
