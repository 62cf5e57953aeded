"""A journal for one process's lifetime: bounded, the oldest requests go first."""

from collections import OrderedDict
from typing import Final

from extproc.journal.records import EventKind, JournalEvent, RequestFacts, admit, fold

REQUESTS_MAX: Final = 10_000
"""About 3 KB a request: 30 MB at most, an hour of three requests a second."""


class MemoryJournal:
    """The Journal interface over a dictionary."""

    def __init__(self, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self._events: OrderedDict[str, list[JournalEvent]] = OrderedDict()

    def append(self, event: JournalEvent) -> None:
        if event.kind is EventKind.ADMITTED:
            self._events[event.request_id] = [event]
            while len(self._events) > self._requests_max:
                self._events.popitem(last=False)
        elif event.request_id in self._events:
            self._events[event.request_id].append(event)

    async def commit(self, event: JournalEvent) -> None:
        self.append(event)

    async def facts(self, request_id: str) -> RequestFacts | None:
        events = self._events.get(request_id)
        if not events:
            return None
        facts = admit(events[0])
        for event in events[1:]:
            facts = fold(facts, event)
        return facts

    async def events(self, request_id: str) -> tuple[JournalEvent, ...]:
        return tuple(self._events.get(request_id, ()))

    async def close(self) -> None:
        self._events.clear()
