"""One request's life as a table: phases, events, effects (R2-R5, R10, DESIGN section 4).

    admitted -> prefill -> (fencing -> prefill)* -> decode -> ended

1. A phase never looks at the HTTP status. ``decode`` begins when the boundary has been recorded, and only then may the
   shell write content downstream; so the journal may claim a delivery that did not arrive, never the reverse.
2. ``StartAttempt`` appears only in transitions out of ``admitted`` and ``fencing``. No transition leads from ``decode``
   anywhere but to ``ended``: after the first delta nothing is repeated, whatever a policy says.
3. ``RecordOutcome`` comes before the effect that ends the client's stream, because Envoy may reset the ext_proc stream
   right after the last message.
4. ``ended`` takes every event and does nothing: late timers, late bytes and late failures are expected there.

A (phase, event) pair without a rule is a bug of ours and raises ``InvariantBroken`` naming both and what was legal.
Deltas after the boundary change nothing but a count, so they are no events here and cost no look-up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from extproc.contract.errors import ErrorCode
from extproc.decision.causes import CAUSES, Cause, Failure
from extproc.decision.effects import (
    AnswerError,
    CancelAttempt,
    DeliverHeld,
    DoubtReplica,
    Effect,
    FenceAttempt,
    FinishStream,
    InterruptStream,
    Outcome,
    PassAnswer,
    RecordBoundary,
    RecordOutcome,
    RecordRefusal,
    StartAttempt,
)
from extproc.decision.events import (
    EVENT_TYPES,
    AnswerFinished,
    AttemptFailed,
    BoundaryNotRecorded,
    BoundaryRecorded,
    ClientLeft,
    Deadline,
    DeadlinePassed,
    DrainLimitReached,
    Event,
    FenceSettled,
    FirstDeltaArrived,
    Placed,
    RequestRefused,
)
from extproc.decision.gates import Attempted, Gate, check_gates
from extproc.decision.policy import Policy


class Phase(StrEnum):
    """Where a request is; kept apart from the HTTP status (R4)."""

    ADMITTED = "admitted"
    PREFILL = "prefill"
    FENCING = "fencing"
    DECODE = "decode"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """What the next decision depends on."""

    phase: Phase = Phase.ADMITTED
    attempts: int = 0
    failure: Failure | None = None
    """The failure that is being fenced, or the last one."""
    outcome: Outcome | None = None
    first_delta_sent: bool = False
    """Whether the boundary was crossed, in the conservative direction (R3)."""


Step = tuple[RequestState, tuple[Effect, ...]]
_Rule = Callable[[RequestState, Event, Policy], Step]


class InvariantBroken(AssertionError):  # noqa: N818  (the design's word)
    """An event that its phase has no rule for: a bug of ours."""


def step(state: RequestState, event: Event, policy: Policy) -> Step:
    """The state after ``event`` and the effects to carry out, in order.

    Raises InvariantBroken where the table has no rule for the pair.
    """
    rule = TABLE[state.phase].get(type(event))
    if rule is None:
        legal = ", ".join(sorted(kind.__name__ for kind in TABLE[state.phase]))
        raise InvariantBroken(f"no rule for {type(event).__name__} in phase {state.phase}; legal here: {legal}")
    return rule(state, event, policy)


# --- rules -------------------------------------------------------------------------------------------------------------


def _placed(state: RequestState, event: Event, policy: Policy) -> Step:
    assert isinstance(event, Placed)
    if event.draining:
        return _answer_error(
            state, AnswerError(code=ErrorCode.DRAINING, reason="draining", detail="this processor is shutting down")
        )
    if not event.candidate:
        detail = "no healthy replica is known for this request"
        return _answer_error(state, AnswerError(code=ErrorCode.NO_HEALTHY_REPLICA, reason="no_healthy_replica", detail=detail))
    return replace(state, phase=Phase.PREFILL, attempts=1), (StartAttempt(number=1),)


def _record_boundary(state: RequestState, event: Event, policy: Policy) -> Step:
    return state, (RecordBoundary(),)


def _cross_boundary(state: RequestState, event: Event, policy: Policy) -> Step:
    return replace(state, phase=Phase.DECODE, first_delta_sent=True), (DeliverHeld(),)


def _refuse_boundary(state: RequestState, event: Event, policy: Policy) -> Step:
    assert isinstance(event, BoundaryNotRecorded)
    error = AnswerError(code=ErrorCode.JOURNAL_UNAVAILABLE, reason="journal_unavailable", detail=event.detail)
    return _answer_error(state, error, cancel="the boundary could not be recorded")


def _finish(state: RequestState, event: Event, policy: Policy) -> Step:
    ended = replace(state, phase=Phase.ENDED, outcome=Outcome.COMPLETED)
    return ended, (RecordOutcome(outcome=Outcome.COMPLETED, reason="finished"), FinishStream())


def _pass_refusal(state: RequestState, event: Event, policy: Policy) -> Step:
    assert isinstance(event, RequestRefused)
    ended = replace(state, phase=Phase.ENDED, outcome=Outcome.FAILED)
    return ended, (RecordOutcome(outcome=Outcome.FAILED, reason=f"request_error_{event.status}"), PassAnswer())


def _fence(state: RequestState, event: Event, policy: Policy) -> Step:
    assert isinstance(event, AttemptFailed)
    fencing = CAUSES[event.failure.cause].fencing
    fenced = replace(state, phase=Phase.FENCING, failure=event.failure)
    return fenced, (*_doubt(event.failure), FenceAttempt(fencing=fencing, failure=event.failure))


def _decide_repeat(state: RequestState, event: Event, policy: Policy) -> Step:
    assert isinstance(event, FenceSettled)
    failure = state.failure
    assert failure is not None, "fencing without a failure"
    refusal = check_gates(Attempted(attempts=state.attempts, failure=failure), policy, event.facts)
    if refusal is None:
        number = state.attempts + 1
        return replace(state, phase=Phase.PREFILL, attempts=number), (StartAttempt(number=number),)
    # The attempt was cancelled when its fence was asked for; a fence that failed leaves nothing more to send.
    reason = str(failure.cause) if refusal.gate in (Gate.SOURCE_FENCED, Gate.ATTEMPTS_LEFT) else str(refusal.gate)
    is_overload = refusal.code is ErrorCode.OVERLOADED  # else the answer is ours, whatever the replica had answered
    error = AnswerError(
        code=refusal.code,
        reason=reason,
        detail=refusal.detail,
        retry_after_s=failure.retry_after_s if is_overload else None,
        status=failure.status if is_overload else None,
        upstream_error=failure.upstream_error,
    )
    ended, effects = _answer_error(state, error)
    record = RecordRefusal(gate=refusal.gate, detail=refusal.detail, failure=failure, attempts=state.attempts)
    return ended, (record, *effects)


def _interrupt(state: RequestState, event: Event, policy: Policy) -> Step:
    assert isinstance(event, AttemptFailed)
    failure = event.failure
    terminal = InterruptStream(reason=str(failure.cause), detail=failure.evidence, upstream_error=failure.upstream_error)
    ended, effects = _interrupt_with(replace(state, failure=failure), terminal)
    return ended, (*_doubt(failure), *effects)


def _client_left(state: RequestState, event: Event, policy: Policy) -> Step:
    ended = replace(state, phase=Phase.ENDED, outcome=Outcome.CANCELLED)
    record = RecordOutcome(outcome=Outcome.CANCELLED, reason="client_gone")
    if state.phase is Phase.ADMITTED:
        return ended, (record,)
    return ended, (CancelAttempt(why="client gone"), record)


def _deadline_before(state: RequestState, event: Event, policy: Policy) -> Step:
    assert isinstance(event, DeadlinePassed)
    detail = f"no first delta within the route's {event.deadline} deadline"
    error = AnswerError(code=ErrorCode.FIRST_DELTA_DEADLINE_EXCEEDED, reason=str(event.deadline), detail=detail)
    return _answer_error(state, error, cancel=detail)


def _deadline_after(state: RequestState, event: Event, policy: Policy) -> Step:
    assert isinstance(event, DeadlinePassed)
    if event.deadline is Deadline.FIRST_DELTA:
        return state, ()  # it fired while the first delta was on its way through the journal
    return _interrupt_with(state, InterruptStream(reason=str(event.deadline), detail=f"deadline {event.deadline} passed"))


def _drain_before(state: RequestState, event: Event, policy: Policy) -> Step:
    error = AnswerError(code=ErrorCode.DRAINING, reason="draining", detail="this processor is shutting down")
    return _answer_error(state, error, cancel="draining")


def _drain_after(state: RequestState, event: Event, policy: Policy) -> Step:
    return _interrupt_with(state, InterruptStream(reason="draining", detail="this processor reached its drain limit"))


def _ignore(state: RequestState, event: Event, policy: Policy) -> Step:
    return state, ()


def _doubt(failure: Failure) -> tuple[Effect, ...]:
    return (DoubtReplica(),) if CAUSES[failure.cause].doubts_replica else ()


def _answer_error(state: RequestState, error: AnswerError, cancel: str | None = None) -> Step:
    ended = replace(state, phase=Phase.ENDED, outcome=Outcome.FAILED)
    record = RecordOutcome(outcome=Outcome.FAILED, reason=error.reason, error_code=error.code)
    if cancel is None or state.phase is Phase.ADMITTED:
        return ended, (record, error)
    return ended, (CancelAttempt(why=cancel), record, error)


def _interrupt_with(state: RequestState, terminal: InterruptStream) -> Step:
    ended = replace(state, phase=Phase.ENDED, outcome=Outcome.INTERRUPTED)
    record = RecordOutcome(outcome=Outcome.INTERRUPTED, reason=terminal.reason, error_code=ErrorCode.UPSTREAM_DECODE_INTERRUPTED)
    return ended, (CancelAttempt(why=terminal.detail), record, terminal)


TABLE: Final[dict[Phase, dict[type[Event], _Rule]]] = {
    Phase.ADMITTED: {
        Placed: _placed,
        ClientLeft: _client_left,
        DeadlinePassed: _deadline_before,
        DrainLimitReached: _drain_before,
    },
    Phase.PREFILL: {
        FirstDeltaArrived: _record_boundary,
        BoundaryRecorded: _cross_boundary,
        BoundaryNotRecorded: _refuse_boundary,
        RequestRefused: _pass_refusal,
        AttemptFailed: _fence,
        ClientLeft: _client_left,
        DeadlinePassed: _deadline_before,
        DrainLimitReached: _drain_before,
    },
    Phase.FENCING: {
        FenceSettled: _decide_repeat,
        ClientLeft: _client_left,
        DeadlinePassed: _deadline_before,
        DrainLimitReached: _drain_before,
    },
    Phase.DECODE: {
        AnswerFinished: _finish,
        AttemptFailed: _interrupt,
        ClientLeft: _client_left,
        DeadlinePassed: _deadline_after,
        DrainLimitReached: _drain_after,
    },
    Phase.ENDED: dict.fromkeys(EVENT_TYPES, _ignore),
}

assert set(TABLE) == set(Phase)
assert set(CAUSES) == set(Cause)
