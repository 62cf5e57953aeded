"""A journal for one process's lifetime: bounded, the requests that ended first go first."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from extproc.journal.interface import NOTHING_WAITS, History, JournalQuery, RequestTakenOver
from extproc.journal.records import OPEN, EventKind, JournalEvent, RequestFacts, fold_all

REQUESTS_MAX: Final = 10_000
"""Ended requests that are kept. About 3 KB a request: 30 MB at most, an hour of three requests a second."""


class MemoryJournal:
    """The Journal interface over dictionaries."""

    available: Final = True
    backlog: Final = NOTHING_WAITS

    def __init__(self, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self._open: dict[str, list[JournalEvent]] = {}
        self._ended: OrderedDict[str, list[JournalEvent]] = OrderedDict()

    def append(self, event: JournalEvent) -> None:
        if event.kind is EventKind.ADMITTED:
            self.open(event.request_id)
        events = self._events(event.request_id)
        if events is None:
            return
        events.append(event)
        if event.kind is EventKind.ENDED and event.request_id in self._open:
            self._ended[event.request_id] = self._open.pop(event.request_id)
            if len(self._ended) > self._requests_max:
                self._ended.popitem(last=False)

    def open(self, request_id: str) -> None:
        """Begin a request, or begin again one that has ended."""
        self._open.setdefault(request_id, self._ended.pop(request_id, []))

    def is_open(self, request_id: str) -> bool:
        """Whether a request has begun and not ended."""
        return request_id in self._open

    async def commit(self, event: JournalEvent) -> None:
        if event.kind is not EventKind.ADMITTED and self._events(event.request_id) is None:
            raise RequestTakenOver(f"request {event.request_id} is unknown to this journal")
        self.append(event)

    async def facts(self, request_id: str) -> RequestFacts | None:
        return fold_all(self._events(request_id) or ())

    async def events(self, request_id: str) -> tuple[JournalEvent, ...]:
        return tuple(self._events(request_id) or ())

    async def requests(self, query: JournalQuery) -> tuple[RequestFacts, ...]:
        found = [facts for events in self._all().values() if (facts := fold_all(events)) is not None and _matches(facts, query)]
        found.sort(key=lambda facts: (facts.admitted_at_ms, facts.request_id), reverse=True)
        return tuple(found[: query.requests_max])

    async def histories(self, after: str, requests_max: int) -> Sequence[History]:
        request_ids = sorted(request_id for request_id in self._all() if request_id > after)
        return tuple(
            History(request_id=request_id, events=tuple(self._all()[request_id]), running=request_id in self._open)
            for request_id in request_ids[:requests_max]
        )

    async def close(self) -> None:
        self._open.clear()
        self._ended.clear()

    def _all(self) -> dict[str, list[JournalEvent]]:
        return {**self._ended, **self._open}

    def _events(self, request_id: str) -> list[JournalEvent] | None:
        return self._open.get(request_id, self._ended.get(request_id))


def _matches(facts: RequestFacts, query: JournalQuery) -> bool:
    return facts.admitted_at_ms >= query.since_ms and query.outcome in (None, facts.outcome or OPEN)
