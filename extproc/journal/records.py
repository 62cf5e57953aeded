"""What the journal holds: events in order, and the facts that they add up to (R4).

Facts are derived, never written by themselves: ``fold_all`` is the only way from events to facts, for every store.
Times are milliseconds of the wall clock, for people and retention only; nothing is decided by them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

Detail = Mapping[str, str | int | float | bool | None]

OPEN: Final = "open"
"""What lists call a request that has no outcome yet."""
PROCESSOR_LOST: Final = "processor_lost"
"""Reason of an outcome that another processor wrote, because the one that served the request is gone."""


RECORDED: Final = "recorded"
LATE: Final = "late"
"""Detail of a boundary that was crossed while the database was away, where the operator chose to serve all the same."""
IN_DOUBT: Final = "in_doubt"
"""Detail of a boundary over whose record the database fell silent. It was not crossed unless the operator chose to serve all the
same; but it may have been on record at once, so it is for good, and no repeat of a key runs the request again."""


class EventKind(StrEnum):
    """One word per transition; the same words appear in logs, traces and the status page."""

    ADMITTED = "admitted"
    ATTEMPT_STARTED = "attempt_started"
    RESPONSE_STARTED = "response_started"
    FIRST_DELTA_SENT = "first_delta_sent"
    ATTEMPT_FAILED = "attempt_failed"
    CANCEL_SENT = "cancel_sent"
    FENCED = "fenced"
    FENCE_GIVEN_UP = "fence_given_up"
    REPEAT_REFUSED = "repeat_refused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEvent:
    """One thing that happened to one request."""

    request_id: str
    kind: EventKind
    at_ms: int
    attempt_id: str | None = None
    replica: str | None = None
    detail: Detail = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """One attempt as far as it is known."""

    attempt_id: str
    replica: str
    started_at_ms: int
    failed_at_ms: int | None = None
    """Before the first delta; after it the request ends with its attempt."""
    cause: str | None = None
    evidence: str | None = None
    fence_proof: str | None = None
    served_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """The journal's answer to: may this input go to another replica? (R4) And to: what did the client get? (R9)"""

    request_id: str
    api: str
    model: str
    route: str
    stream: bool
    admitted_at_ms: int
    phase: str = "admitted"
    attempts: tuple[AttemptFacts, ...] = ()
    first_delta_sent: bool = False
    first_delta_at_ms: int | None = None
    model_revision: str | None = None
    retry_budget: float | None = None
    """Repeats left in the pool's budget when the last attempt started."""
    delivered_output_tokens: int = 0
    delivered_output_tokens_source: str = "counted"
    outcome: str | None = None
    reason: str | None = None
    error_code: str | None = None
    ended_at_ms: int | None = None
    traits: Detail = field(default_factory=dict)
    """What else its admission told: ``traceparent``; ``mode`` and ``x_request_id`` of one that was only observed."""


_OWN_FIELDS: Final = frozenset({"api", "model", "route", "stream"})


def admit(event: JournalEvent) -> RequestFacts:
    """Facts of a request that was just admitted. ``event`` is its ADMITTED event."""
    assert event.kind is EventKind.ADMITTED
    detail = event.detail
    return RequestFacts(
        request_id=event.request_id,
        api=str(detail.get("api", "")),
        model=str(detail.get("model", "")),
        route=str(detail.get("route", "")),
        stream=bool(detail.get("stream", False)),
        admitted_at_ms=event.at_ms,
        traits={name: value for name, value in detail.items() if name not in _OWN_FIELDS},
    )


def fold_all(events: Sequence[JournalEvent]) -> RequestFacts | None:
    """The facts that a request's events add up to; None where its first event is missing."""
    if not events or events[0].kind is not EventKind.ADMITTED:
        return None
    facts = admit(events[0])
    for event in events[1:]:
        facts = fold(facts, event)
    return facts


def lost_event(facts: RequestFacts, at_ms: int) -> JournalEvent:
    """The end of a request whose processor is gone; written by whoever finds it.

    Nothing was delivered where the boundary was not recorded, since the record comes first. Where it was, how much arrived
    is not known; it is claimed that something did (R3).
    """
    outcome = "interrupted" if facts.first_delta_sent else "failed"
    detail: dict[str, str | int | float | bool | None] = {"outcome": outcome, "reason": PROCESSOR_LOST, "error_code": None}
    if facts.first_delta_sent:
        detail |= {"error_code": "upstream_decode_interrupted", "delivered_output_tokens": 0}
        detail["delivered_output_tokens_source"] = "unknown"
    return JournalEvent(request_id=facts.request_id, kind=EventKind.ENDED, at_ms=at_ms, detail=detail)


def fold(facts: RequestFacts, event: JournalEvent) -> RequestFacts:
    """The facts after one more event. Events of one request arrive in order."""
    rule = _FOLD.get(event.kind)
    return facts if rule is None else rule(facts, event)


def _admitted_again(facts: RequestFacts, event: JournalEvent) -> RequestFacts:
    """The client sent the request again with its key after a run that delivered nothing (R11)."""
    return replace(facts, phase="admitted", outcome=None, reason=None, error_code=None, ended_at_ms=None)


def _attempt_started(facts: RequestFacts, event: JournalEvent) -> RequestFacts:
    attempt = AttemptFacts(attempt_id=event.attempt_id or "", replica=event.replica or "", started_at_ms=event.at_ms)
    budget = event.detail.get("retry_budget")
    revision = event.detail.get("model_revision")
    return replace(
        facts,
        phase="prefill",
        attempts=(*facts.attempts, attempt),
        retry_budget=float(budget) if isinstance(budget, int | float) else facts.retry_budget,
        model_revision=str(revision) if revision is not None else facts.model_revision,
    )


def _response_started(facts: RequestFacts, event: JournalEvent) -> RequestFacts:
    served_by = _text(event, "served_by")
    return _change_attempt(facts, event, lambda attempt: replace(attempt, served_by=served_by))


def _first_delta_sent(facts: RequestFacts, event: JournalEvent) -> RequestFacts:
    return replace(facts, phase="decode", first_delta_sent=True, first_delta_at_ms=event.at_ms)


def _attempt_failed(facts: RequestFacts, event: JournalEvent) -> RequestFacts:
    phase = facts.phase if facts.first_delta_sent else "fencing"
    cause, evidence = _text(event, "cause"), _text(event, "evidence")
    at_ms = event.at_ms
    changed = _change_attempt(facts, event, lambda attempt: replace(attempt, failed_at_ms=at_ms, cause=cause, evidence=evidence))
    return replace(changed, phase=phase)


def _fenced(facts: RequestFacts, event: JournalEvent) -> RequestFacts:
    proof = _text(event, "proof")
    return _change_attempt(facts, event, lambda attempt: replace(attempt, fence_proof=proof))


def _ended(facts: RequestFacts, event: JournalEvent) -> RequestFacts:
    tokens = event.detail.get("delivered_output_tokens", 0)
    return replace(
        facts,
        phase="ended",
        outcome=_text(event, "outcome"),
        reason=_text(event, "reason"),
        error_code=_text(event, "error_code"),
        delivered_output_tokens=int(tokens) if isinstance(tokens, int | float) else 0,
        delivered_output_tokens_source=_text(event, "delivered_output_tokens_source") or "counted",
        ended_at_ms=event.at_ms,
    )


def _change_attempt(facts: RequestFacts, event: JournalEvent, change: Callable[[AttemptFacts], AttemptFacts]) -> RequestFacts:
    """Sought from the end: a key that is repeated for a day has thousands of attempts, and what happens, happens to the last."""
    attempts = facts.attempts
    for place in reversed(range(len(attempts))):
        if attempts[place].attempt_id == event.attempt_id:
            return replace(facts, attempts=(*attempts[:place], change(attempts[place]), *attempts[place + 1 :]))
    return facts


def _text(event: JournalEvent, key: str) -> str | None:
    value = event.detail.get(key)
    return None if value is None else str(value)


_FOLD: Final = {
    EventKind.ADMITTED: _admitted_again,
    EventKind.ATTEMPT_STARTED: _attempt_started,
    EventKind.RESPONSE_STARTED: _response_started,
    EventKind.FIRST_DELTA_SENT: _first_delta_sent,
    EventKind.ATTEMPT_FAILED: _attempt_failed,
    EventKind.FENCED: _fenced,
    EventKind.ENDED: _ended,
}
