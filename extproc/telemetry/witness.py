"""The one place where a request's events become what logs, metrics, traces and pages are told.

The processor's record tells the witness each event once (processor/observing.py). The witness folds it into the request's
facts, so that no subscriber keeps a state machine of its own, and hands both on. Prompts and answers never come by here.

Telling takes longer than serving: a line of a log costs as much as the first delta. So it waits for a moment when the request
does not wait for it, and is done at once for whoever comes to read.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from extproc.contract.errors import ErrorCode
from extproc.journal.records import EventKind, JournalEvent, RequestFacts, admit, fold

LOGGER: Final = logging.getLogger("deltafence.telemetry")

AttemptHeaders = Callable[[str], Sequence[tuple[str, str]]]
Later = Callable[[Callable[[], None]], object]
"""Calls something soon, from the event loop."""

TOLD_AFTER_S: Final = 0.002
"""Long enough for a head and the first delta to leave; far below what anybody who reads logs or metrics could notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One event of one request, with the facts before and after it. ``before`` is None at the admission."""

    event: JournalEvent
    before: RequestFacts | None
    after: RequestFacts
    trace_id: str
    """The request's trace, 32 hex digits, whether or not anything exports it."""

    @property
    def phase_before(self) -> str | None:
        """Where the request was; None at the admission."""
        return None if self.before is None else self.before.phase


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnedAway:
    """A request that was answered before it was admitted; no journal knows it."""

    request_id: str
    api: str
    code: ErrorCode


class Subscriber(Protocol):
    """Told on the event loop; must not wait."""

    def saw(self, transition: Transition) -> None:
        """An admitted request has moved."""

    def turned_away(self, turned_away: TurnedAway) -> None:
        """A request was not admitted."""


def no_headers(attempt_id: str) -> Sequence[tuple[str, str]]:
    """Where nothing traces: the client's own trace headers go on unchanged."""
    return ()


def at_once(tell: Callable[[], None]) -> None:
    """Put nothing off."""
    tell()


@dataclass(slots=True)
class _Open:
    facts: RequestFacts
    trace_id: str


class Witness:
    """The processor's Observer. Invariants: ``_open`` holds exactly the admitted requests that have no outcome yet, as far as
    they were told; ``_untold`` is told in the order in which it happened."""

    def __init__(
        self, subscribers: Sequence[Subscriber], attempt_headers: AttemptHeaders = no_headers, later: Later = at_once
    ) -> None:
        self._subscribers = tuple(subscribers)
        self._attempt_headers = attempt_headers
        self._later = later
        self._open: dict[str, _Open] = {}
        self._untold: list[JournalEvent | TurnedAway] = []

    def saw(self, event: JournalEvent) -> None:
        """The journal has taken this event."""
        self._put(event)

    def turned_away(self, *, request_id: str, api: str, code: ErrorCode) -> None:
        """A request was answered before it was admitted."""
        self._put(TurnedAway(request_id=request_id, api=api, code=code))

    def attempt_headers(self, attempt_id: str) -> Sequence[tuple[str, str]]:
        """Headers that join the attempt to its request's trace."""
        if self._attempt_headers is no_headers:
            return ()
        self.tell()
        try:
            return self._attempt_headers(attempt_id)
        except Exception:
            LOGGER.exception("attempt %s goes without trace headers", attempt_id)
            return ()

    def tell(self) -> None:
        """Tell the subscribers everything that they have not been told."""
        untold, self._untold = self._untold, []
        for happened in untold:
            if isinstance(happened, TurnedAway):
                self._tell_turned_away(happened)
            else:
                self._tell_event(happened)

    def _put(self, happened: JournalEvent | TurnedAway) -> None:
        self._untold.append(happened)
        if len(self._untold) == 1:
            self._later(self.tell)

    def _tell_event(self, event: JournalEvent) -> None:
        known, before = self._open.get(event.request_id), None
        if known is not None:
            before, known.facts = known.facts, fold(known.facts, event)
        elif event.kind is EventKind.ADMITTED:
            known = self._open[event.request_id] = _Open(admit(event), trace_id_of(event))
        else:
            return
        if event.kind is EventKind.ENDED:
            del self._open[event.request_id]
        transition = Transition(event=event, before=before, after=known.facts, trace_id=known.trace_id)
        self._tell_each(lambda subscriber: subscriber.saw(transition))

    def _tell_turned_away(self, turned_away: TurnedAway) -> None:
        self._tell_each(lambda subscriber: subscriber.turned_away(turned_away))

    def _tell_each(self, tell: Callable[[Subscriber], None]) -> None:
        for subscriber in self._subscribers:
            try:
                tell(subscriber)
            except Exception:
                # What is told may be wrong then; the request must not be.
                LOGGER.exception("%s could not be told what happened to a request", type(subscriber).__name__)


def trace_id_of(admitted: JournalEvent) -> str:
    """The client's trace id where it sent one (W3C Trace Context), else one made of the request id, so that whoever has the
    one finds the other."""
    traceparent = admitted.detail.get("traceparent")
    if isinstance(traceparent, str):
        return traceparent.split("-")[1]
    return hashlib.blake2b(admitted.request_id.encode(), digest_size=16).hexdigest()
