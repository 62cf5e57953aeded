"""Keeps the database within bounds, and ends what dead processors left open.

A request that a live Idempotency-Key names is never deleted, whatever its age and size: the key's answer is its facts. Deletions
go in small steps, so that a boundary never waits behind a large one.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from extproc.journal import transactions
from extproc.journal.transactions import SQL
from extproc.storage.migrations import SQL as STORAGE
from extproc.storage.owner import Owner
from extproc.storage.script import Database, Script, StorageUnavailable

STEP_REQUESTS: Final = 200
PROCESSORS_KEPT_MS: Final = 24 * 3_600_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How much of the past is kept: whichever bound is reached first."""

    age_ms_max: int = 30 * 24 * 3_600_000
    bytes_max: int = 4 * 1024**3
    """Of requests, events and stored answers together, estimated; the file or relation is larger by free pages."""
    interval_s: float = 30.0

    def __post_init__(self) -> None:
        assert self.age_ms_max > 0
        assert self.bytes_max > 0


class Housekeeping:
    """One process's share of it; several may do it at once."""

    def __init__(self, database: Database, owner: Owner, retention: Retention) -> None:
        self._database = database
        self._owner = owner
        self._retention = retention

    async def run(self) -> None:
        """Tidy up for ever."""
        while True:
            try:
                await self.tidy()
            except StorageUnavailable as error:
                _log.warning("housekeeping has to wait: %s", error)
            await asyncio.sleep(self._retention.interval_s)

    async def tidy(self) -> None:
        """Do everything that is due now. Raises StorageUnavailable."""
        for lost in await self._repeat(self._settle_lost):
            _log.warning("request %s was ended for a processor that is gone", lost)
        await self._database.write(self._delete_expired)
        for delete in (self._delete_aged, self._delete_oldest):
            deleted = await self._repeat(delete)
            if deleted:
                _log.info(
                    "%d requests were deleted from the journal (%s)", len(deleted), delete.__name__.removeprefix("_delete_")
                )

    async def _repeat(self, step: Callable[[], Script[tuple[str, ...]]]) -> list[str]:
        done: list[str] = []
        while ids := await self._database.write(step):
            done += ids
        return done

    def _settle_lost(self) -> Script[tuple[str, ...]]:
        return (yield from transactions.settle_lost_requests(self._owner, STEP_REQUESTS))

    def _delete_expired(self) -> Script[None]:
        yield SQL("delete_expired_keys", rows_max=10_000)
        yield STORAGE("forget_processors", kept_ms=PROCESSORS_KEPT_MS)

    def _delete_aged(self) -> Script[tuple[str, ...]]:
        now = yield SQL("clock")
        before_ms = int(now[0][0]) - self._retention.age_ms_max
        rows = yield SQL("select_aged_requests", before_ms=before_ms, rows_max=STEP_REQUESTS)
        request_ids = tuple(str(row[0]) for row in rows)
        yield from transactions.delete_requests(request_ids)
        return request_ids

    def _delete_oldest(self) -> Script[tuple[str, ...]]:
        total = yield SQL("stored_bytes")
        surplus = int(total[0][0]) - self._retention.bytes_max
        if surplus <= 0:
            return ()
        rows = yield SQL("select_oldest_requests", rows_max=STEP_REQUESTS)
        chosen = []
        for request_id, stored_bytes in rows:
            if surplus <= 0:
                break
            chosen.append(str(request_id))
            surplus -= stored_bytes
        if not chosen:
            _log.error("the journal is %d bytes over its limit, all of it open or bound to live keys", surplus)
        yield from transactions.delete_requests(chosen)
        return tuple(chosen)
