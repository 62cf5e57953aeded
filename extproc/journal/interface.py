"""What a journal offers. One contract, every store: tests/unit/journal and tests/postgres run the same suite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from extproc.journal.records import JournalEvent, RequestFacts


class JournalUnavailable(Exception):  # noqa: N818  (a state of the outside, not a fault of the caller)
    """The store can't take events durably now. A boundary that can't be recorded is not crossed (DESIGN section 4)."""


class CommitInDoubt(JournalUnavailable):
    """The database fell silent over the event, so nobody knows whether it is stored.

    The journal stores it as soon as the database is back, before anything that comes after it: what may be on record is treated
    as what is (R3).
    """


class RequestTakenOver(JournalUnavailable):
    """The request is not this processor's any more: another one found this one's name expired and settled it.

    Never served around: whoever took the request over may have started it again.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalQuery:
    """Which requests to list, newest first. ``outcome``: one of decision.effects.Outcome, ``open``, or None for all."""

    outcome: str | None = None
    since_ms: int = 0
    requests_max: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything stored of one request. ``running``: it has no outcome yet, and the processor that serves it is alive."""

    request_id: str
    events: tuple[JournalEvent, ...]
    running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What was taken and is not stored yet. ``oldest_at_ms`` is of the wall clock, None where nothing waits."""

    events: int
    oldest_at_ms: int | None


NOTHING_WAITS: Final = Backlog(events=0, oldest_at_ms=None)


class Journal(Protocol):
    """Requests and their events. Calls for one request come from one task, in order."""

    @property
    def available(self) -> bool:
        """Whether the last write succeeded; while False a new generation is refused at once, before it costs a prefill."""

    @property
    def backlog(self) -> Backlog:
        """How far storing is behind. May be read from another thread."""

    def append(self, event: JournalEvent) -> None:
        """Take an event without waiting; it is stored in order with its request's others. Never raises."""

    async def commit(self, event: JournalEvent) -> None:
        """Store an event and everything appended before it for its request; returns once that is durable.

        Raises JournalUnavailable (RequestTakenOver where only this request is concerned), and then the event is not stored and
        never will be; but CommitInDoubt where that is not known, so the journal can claim a delivery that did not happen.
        """

    async def facts(self, request_id: str) -> RequestFacts | None:
        """What is known of a request, or None. Raises JournalUnavailable."""

    async def events(self, request_id: str) -> tuple[JournalEvent, ...]:
        """A request's events in order; empty where it is unknown. Raises JournalUnavailable."""

    async def requests(self, query: JournalQuery) -> tuple[RequestFacts, ...]:
        """The facts of the requests that a query names, newest first. Raises JournalUnavailable."""

    async def histories(self, after: str, requests_max: int) -> Sequence[History]:
        """The first histories by request id after ``after`` ("" for the first page). Raises JournalUnavailable."""

    async def close(self) -> None:
        """Store what was appended and let go of the store."""
