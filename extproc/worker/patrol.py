"""The patrol: stops what has no lease any more, also where the app is silent and where the word came to a sibling process."""

import asyncio
import logging
import sqlite3
from typing import Final

from extproc.contract.guard import AttemptState
from extproc.worker.attempt_table import AttemptTable
from extproc.worker.clock import ClockMs
from extproc.worker.guarded_attempt import GuardedAttempt

log = logging.getLogger("deltafence.guard")

INTERVAL_S: Final = 0.02
"""How late the end of a silent app's lease, or a word that reached a sibling, may be noticed. A look costs microseconds."""
COUNT_INTERVAL_MS: Final = 1_000


class Patrol:
    """The attempts that this process serves. Walks while there are any."""

    def __init__(self, table: AttemptTable, now_ms: ClockMs) -> None:
        self._table = table
        self._now_ms = now_ms
        self._attempts: dict[str, GuardedAttempt] = {}
        self._task: asyncio.Task[None] | None = None
        self._counted_at_ms = now_ms()

    def add(self, attempt: GuardedAttempt) -> None:
        """Watch an attempt that was just claimed; no await lies between, so ``refresh`` never sees one without the other."""
        self._attempts[attempt.attempt_id] = attempt
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._walk(), name="deltafence-patrol")

    def remove(self, attempt: GuardedAttempt) -> None:
        """The app's task has ended: record that the attempt can't publish any more."""
        del self._attempts[attempt.attempt_id]
        try:
            self._record_end(attempt.attempt_id, attempt.end_state, attempt.published_chunks)
        except sqlite3.Error as error:
            # `refresh` finds a row that runs nowhere and records it then; until then a cancel call waits.
            log.error("end of attempt %s not recorded: %s", attempt.attempt_id, error)
        if not self._attempts and self._task is not None:
            self._task.cancel()
            self._task = None

    def published_chunks(self, attempt_id: str) -> int | None:
        """Up to this moment, for an attempt that this process serves."""
        attempt = self._attempts.get(attempt_id)
        return attempt.published_chunks if attempt else None

    def refresh(self) -> None:
        """Take renewals and revocations over from the shared table, and act on them. May raise sqlite3.Error."""
        for row in self._table.own_running():
            attempt = self._attempts.get(row.attempt_id)
            if attempt is None:
                self._record_end(row.attempt_id, AttemptState.STOPPED, row.published_chunks)
                continue
            attempt.valid_until_ms = row.valid_until_ms
            attempt.revoked = row.revoked
        self._stop_what_is_over()

    def _record_end(self, attempt_id: str, state: AttemptState, published_chunks: int) -> None:
        self._table.end(attempt_id, state=state, published_chunks=published_chunks, now_ms=self._now_ms())

    def _stop_what_is_over(self) -> None:
        for attempt in self._attempts.values():
            attempt.stop_if_over()

    async def _walk(self) -> None:
        while self._attempts:
            try:
                self._look_at_table()
            except sqlite3.Error as error:
                # Renewals can't be read, so leases run out: that is the safe side.
                log.error("shared attempts can't be read: %s", error)
            self._stop_what_is_over()
            await asyncio.sleep(INTERVAL_S)

    def _look_at_table(self) -> None:
        if self._table.was_changed_elsewhere():
            self.refresh()
        if self._now_ms() - self._counted_at_ms >= COUNT_INTERVAL_MS:
            self._counted_at_ms = self._now_ms()
            self._table.count_published([(attempt.attempt_id, attempt.published_chunks) for attempt in self._attempts.values()])
