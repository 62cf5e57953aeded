"""One request's record: the journal has it first, then everybody who watches is told the same."""

from collections.abc import Callable
from typing import Final

from extproc.decision.effects import RecordRefusal
from extproc.journal.interface import Journal
from extproc.journal.records import Detail, EventKind, JournalEvent
from extproc.processor.observing import UNOBSERVED, Observer

_PLAIN: Final = (str, int, float)  # a bool is an int


class RequestRecord:
    """Writes what happens to one request, in order. No prompt, answer or credential ever goes in."""

    def __init__(self, journal: Journal, request_id: str, wall_ms: Callable[[], int], observer: Observer = UNOBSERVED) -> None:
        self.request_id = request_id
        self.ended = False
        """Whether the outcome is on record."""
        self.attempt_id = ""
        """The attempt that was started last."""
        self._journal = journal
        self._wall_ms = wall_ms
        self._observer = observer

    def note(self, kind: EventKind, *, attempt_id: str | None = None, replica: str | None = None, **detail: object) -> None:
        """Take an event without waiting."""
        event = self._event(kind, attempt_id, replica, detail)
        self._journal.append(event)
        self._saw(event)

    def refuse_repeat(self, refusal: RecordRefusal) -> None:
        """Take a gate's refusal together with its evidence, so that one line tells why nothing was repeated."""
        self.note(
            EventKind.REPEAT_REFUSED,
            gate=refusal.gate,
            detail=refusal.detail,
            attempts=refusal.attempts,
            cause=refusal.failure.cause,
            evidence=refusal.failure.evidence,
        )

    async def commit(self, kind: EventKind, *, attempt_id: str | None = None, replica: str | None = None) -> None:
        """Write an event durably. Raises JournalUnavailable."""
        event = self._event(kind, attempt_id, replica, {})
        await self._journal.commit(event)
        self._saw(event)

    def _saw(self, event: JournalEvent) -> None:
        self.ended = event.kind is EventKind.ENDED
        if event.kind is EventKind.ATTEMPT_STARTED:
            self.attempt_id = event.attempt_id or ""
        self._observer.saw(event)

    def _event(self, kind: EventKind, attempt_id: str | None, replica: str | None, detail: dict[str, object]) -> JournalEvent:
        values: Detail = {
            key: value if isinstance(value, _PLAIN) else str(value) for key, value in detail.items() if value is not None
        }
        return JournalEvent(
            request_id=self.request_id,
            kind=kind,
            at_ms=self._wall_ms(),
            attempt_id=attempt_id,
            replica=replica,
            detail=values,
        )
