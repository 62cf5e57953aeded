"""One request's journal lines and its log line per transition: the same words in both."""

import logging
from collections.abc import Callable

from extproc.journal.interface import Journal
from extproc.journal.records import Detail, EventKind, JournalEvent

LOGGER = logging.getLogger("deltafence.request")


class RequestRecord:
    """Writes what happens to one request, in order. No prompt, answer or credential ever goes in."""

    def __init__(self, journal: Journal, request_id: str, wall_ms: Callable[[], int]) -> None:
        self.request_id = request_id
        self._journal = journal
        self._wall_ms = wall_ms

    def note(self, kind: EventKind, *, attempt_id: str | None = None, replica: str | None = None, **detail: object) -> None:
        """Take an event without waiting."""
        self._journal.append(self._event(kind, attempt_id, replica, detail))

    async def commit(self, kind: EventKind, *, attempt_id: str | None = None, replica: str | None = None) -> None:
        """Write an event durably. Raises JournalUnavailable."""
        await self._journal.commit(self._event(kind, attempt_id, replica, {}))

    def _event(self, kind: EventKind, attempt_id: str | None, replica: str | None, detail: dict[str, object]) -> JournalEvent:
        values: Detail = {
            key: value if isinstance(value, str | int | float | bool) else str(value)
            for key, value in detail.items()
            if value is not None
        }
        LOGGER.info(
            "%s",
            kind,
            extra={"request_id": self.request_id, "attempt_id": attempt_id, "replica": replica, **{"detail": values}},
        )
        return JournalEvent(
            request_id=self.request_id,
            kind=kind,
            at_ms=self._wall_ms(),
            attempt_id=attempt_id,
            replica=replica,
            detail=values,
        )
