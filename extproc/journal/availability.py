"""What happens to generations while the journal's database is away: the operator's choice."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from extproc.journal.interface import Backlog, CommitInDoubt, History, Journal, JournalQuery, JournalUnavailable, RequestTakenOver
from extproc.journal.records import LATE, RECORDED, JournalEvent, RequestFacts


class WhenUnavailable(StrEnum):
    """``refuse`` keeps the journal's promise; the other keeps the service and gives the promise up, audibly."""

    REFUSE = "refuse"
    SERVE_WITHOUT_JOURNAL = "serve_without_journal"


_log = logging.getLogger(__name__)


class OptionalJournal:
    """A journal whose absence stops nothing. Every boundary that is crossed unrecorded is logged and counted, and stored when the
    database is back, marked as late.

    A request that was taken over is still refused: that is knowledge, not absence.
    """

    available: Final = True

    def __init__(self, journal: Journal, on_unrecorded: Callable[[], None]) -> None:
        self._journal = journal
        self._on_unrecorded = on_unrecorded

    @property
    def backlog(self) -> Backlog:
        return self._journal.backlog

    def append(self, event: JournalEvent) -> None:
        self._journal.append(event)

    async def commit(self, event: JournalEvent) -> None:
        try:
            await self._journal.commit(event)
        except RequestTakenOver:
            raise
        except JournalUnavailable as error:
            _log.error("SERVING WITHOUT JOURNAL: %s of %s is not recorded: %s", event.kind, event.request_id, error)
            if not isinstance(error, CommitInDoubt):  # which the journal stores by itself
                self._journal.append(replace(event, detail={**event.detail, RECORDED: LATE}))
            self._on_unrecorded()

    async def facts(self, request_id: str) -> RequestFacts | None:
        return await self._journal.facts(request_id)

    async def events(self, request_id: str) -> tuple[JournalEvent, ...]:
        return await self._journal.events(request_id)

    async def requests(self, query: JournalQuery) -> tuple[RequestFacts, ...]:
        return await self._journal.requests(query)

    async def histories(self, after: str, requests_max: int) -> Sequence[History]:
        return await self._journal.histories(after, requests_max)

    async def close(self) -> None:
        await self._journal.close()
