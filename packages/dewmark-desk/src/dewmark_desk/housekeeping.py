"""The thread of a worker process that calls webhooks and deletes what has expired."""

from __future__ import annotations

import logging
import threading
import time

from dewmark.errors import ConfigError
from dewmark_desk.jobs import Jobs
from dewmark_desk.query_log import QueryLog
from dewmark_desk.resemblance import Resemblance
from dewmark_desk.settings import Settings
from dewmark_desk.signing import SigningKey
from dewmark_desk.webhooks import call

_POLL_SECONDS = 1.0
_SWEEP_SECONDS = 600.0

_log = logging.getLogger("dewmark_desk")


class Housekeeper:
    """Runs until it is closed; several workers may do so at once."""

    def __init__(
        self,
        settings: Settings,
        jobs: Jobs,
        query_log: QueryLog | None,
        resemblance: Resemblance,
        signer: SigningKey | None,
    ) -> None:
        self._settings, self._jobs, self._query_log, self._signer = settings, jobs, query_log, signer
        self._resemblance = resemblance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the current call."""
        self._stop.set()
        self._thread.join()

    def sweep(self) -> None:
        """Delete expired jobs and log rows."""
        gone = self._jobs.expire(days=self._settings.job_days) + self._resemblance.expire()
        if self._query_log is not None:
            gone += self._query_log.expire(days=self._settings.log_days)
        if gone:
            _log.info("expired rows were deleted", extra={"fields": {"rows": gone}})

    def deliver(self) -> bool:
        """Call the next webhook that is due; False if there is none."""
        if self._signer is None or (due := self._jobs.next_call()) is None:
            return False
        try:
            accepted = call(due.url, due.job, signer=self._signer, hosts=self._settings.webhook_hosts)
        except ConfigError:  # the operator no longer allows its host
            accepted = False
        if accepted:
            self._jobs.called(due.job)
        else:
            _log.warning("a webhook was not accepted", extra={"fields": {"job": due.job.id}})
        return True

    def _run(self) -> None:
        swept = 0.0
        while not self._stop.is_set():
            try:
                if time.monotonic() - swept >= _SWEEP_SECONDS or not swept:
                    swept = time.monotonic()
                    self.sweep()
                while not self._stop.is_set() and self.deliver():
                    pass
            except Exception as error:  # noqa: BLE001 - the thread must not die; the store may be away
                _log.exception("housekeeping failed", exc_info=error)
            self._stop.wait(_POLL_SECONDS)
