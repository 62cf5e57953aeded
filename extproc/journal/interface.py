"""What a journal store offers. One contract, every store: tests/unit/journal runs the same suite over all of them."""

from typing import Protocol

from extproc.journal.records import JournalEvent, RequestFacts


class JournalUnavailable(Exception):  # noqa: N818  (a state of the outside, not a fault of the caller)
    """The store can't take events durably now. A boundary that can't be recorded is not crossed (DESIGN section 4)."""


class Journal(Protocol):
    """Requests and their events. Calls for one request come from one task, in order."""

    def append(self, event: JournalEvent) -> None:
        """Take an event without waiting; it is stored in order with its request's others. Never raises."""

    async def commit(self, event: JournalEvent) -> None:
        """Store an event and everything appended before it for its request; returns once that is durable.

        Raises JournalUnavailable, and then the event is not stored.
        """

    async def facts(self, request_id: str) -> RequestFacts | None:
        """What is known of a request, or None."""

    async def events(self, request_id: str) -> tuple[JournalEvent, ...]:
        """A request's events in order; empty where it is unknown."""

    async def close(self) -> None:
        """Store what was appended and let go of the store."""
