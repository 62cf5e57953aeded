"""Checks what is stored against the design: every promise that can be read off a request's events, one rule each.

Pure. A rule is given one run of a request (from an ``admitted`` to the next, or to the end) and says in words what breaks it.
Only orders are compared, never times: the wall clock is for people.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.contract.errors import ErrorCode
from extproc.decision.causes import CAUSES, Cause, Fencing
from extproc.decision.effects import Outcome
from extproc.journal.interface import History
from extproc.journal.records import PROCESSOR_LOST, EventKind, JournalEvent

OPEN_MS_MAX: Final = 25 * 3_600_000
"""A request that a live processor has kept open longer than any deadline allows was forgotten by it."""


class Invariant(StrEnum):
    """One promise."""

    BEGINS_WITH_ADMITTED = "begins_with_admitted"
    ENDS_ONCE = "ends_once"
    ATTEMPTS_IN_ORDER = "attempts_in_order"
    ONE_PUBLISHER = "one_publisher"
    NOTHING_REPEATED_AFTER_THE_BOUNDARY = "nothing_repeated_after_the_boundary"
    REPEAT_IS_FENCED = "repeat_is_fenced"
    REPEAT_PASSED_ITS_GATES = "repeat_passed_its_gates"
    RECORDED_BEFORE_DELIVERED = "recorded_before_delivered"
    OUTCOME_TELLS_THE_TRUTH = "outcome_tells_the_truth"
    ENDED_OR_OPEN = "ended_or_open"


@dataclass(frozen=True, slots=True)
class Violation:
    """One request that broke one promise, and how."""

    request_id: str
    invariant: Invariant
    how: str


Events = Sequence[JournalEvent]
_Rule = Callable[[Events], Iterator[str]]


def verify(history: History, now_ms: int) -> tuple[Violation, ...]:
    """Everything in one request's story that may not be. ``now_ms``: wall clock, only for requests that never end."""
    found = [(Invariant.ENDED_OR_OPEN, how) for how in _ended_or_open(history, now_ms)]
    runs = _runs(history.events)
    found += [(invariant, how) for run in runs for invariant, rule in RULES.items() for how in rule(run)]
    found += [(Invariant.NOTHING_REPEATED_AFTER_THE_BOUNDARY, how) for how in _no_run_after_the_boundary(runs)]
    return tuple(Violation(history.request_id, invariant, how) for invariant, how in found)


def _runs(events: Events) -> list[Events]:
    """A request that its client sent again under one key, after a run that delivered nothing, has several."""
    starts = [place for place, event in enumerate(events) if event.kind is EventKind.ADMITTED and place > 0]
    return [events[start:end] for start, end in zip([0, *starts], [*starts, len(events)], strict=True)]


# --- rules ---------------------------------------------------------------------------------------------------------------


def _begins_with_admitted(run: Events) -> Iterator[str]:
    if run and run[0].kind is not EventKind.ADMITTED:
        yield f"the first event is {run[0].kind}"


def _ends_once(run: Events) -> Iterator[str]:
    ends = [place for place, event in enumerate(run) if event.kind is EventKind.ENDED]
    if len(ends) > 1:
        yield f"it ended {len(ends)} times"
    if ends and ends[0] < len(run) - 1:
        yield f"{run[ends[0] + 1].kind} came after the end"


def _attempts_in_order(run: Events) -> Iterator[str]:
    """Attempts are numbered 1, 2, ...; every id is new, and nothing is told of an attempt that was not started."""
    started: list[str | None] = []
    for event in run:
        if event.kind is EventKind.ATTEMPT_STARTED:
            number = event.detail.get("number")
            if number != len(started) + 1:
                yield f"attempt {event.attempt_id} has number {number}, not {len(started) + 1}"
            if event.attempt_id in started or event.attempt_id is None:
                yield f"attempt id {event.attempt_id} is not new"
            started.append(event.attempt_id)
        elif event.attempt_id is not None and event.attempt_id not in started:
            yield f"{event.kind} of attempt {event.attempt_id}, which was never started"


def _one_publisher(run: Events) -> Iterator[str]:
    """What an attempt publishes is taken only while it is the latest one, and neither failed nor fenced (R6)."""
    publisher: str | None = None
    for event in run:
        match event.kind:
            case EventKind.ATTEMPT_STARTED:
                publisher = event.attempt_id
            case EventKind.ATTEMPT_FAILED | EventKind.FENCED if event.attempt_id == publisher:
                publisher = None
            case EventKind.RESPONSE_STARTED | EventKind.FIRST_DELTA_SENT if event.attempt_id != publisher:
                yield f"{event.kind} of {event.attempt_id} while {publisher or 'no attempt'} had the right to publish"


def _nothing_repeated_after_the_boundary(run: Events) -> Iterator[str]:
    """R2, R3."""
    boundary = _first(run, EventKind.FIRST_DELTA_SENT)
    if boundary is None:
        return
    for event in run[boundary + 1 :]:
        if event.kind is EventKind.ATTEMPT_STARTED:
            yield f"attempt {event.attempt_id} was started after the first delta"
        if event.kind is EventKind.FIRST_DELTA_SENT:
            yield "the boundary was crossed twice"


def _no_run_after_the_boundary(runs: Sequence[Events]) -> Iterator[str]:
    for run in runs[:-1]:
        if _first(run, EventKind.FIRST_DELTA_SENT) is not None:
            yield "the request was run again although an earlier run had delivered output"


def _repeat_is_fenced(run: Events) -> Iterator[str]:
    """Between an attempt and the next one stands its failure, and the proof that it can't publish any more (R5, R7)."""
    for repeat, before in _repeats(run):
        failed = _last(before, EventKind.ATTEMPT_FAILED)
        if failed is None:
            yield f"attempt {repeat.attempt_id} was started although the one before it had not failed"
            continue
        fenced = _last(before, EventKind.FENCED)
        proof = fenced.detail.get("proof") if fenced is not None and fenced.attempt_id == failed.attempt_id else None
        if not proof and _fencing(failed) is not Fencing.NOT_NEEDED:
            yield f"attempt {repeat.attempt_id} was started without a proof that {failed.attempt_id} can't publish any more"
        if _last(before, EventKind.FENCE_GIVEN_UP) is not None:
            yield f"attempt {repeat.attempt_id} was started after the fence had been given up"


def _repeat_passed_its_gates(run: Events) -> Iterator[str]:
    """What the gates looked at is on record: cause, budget, identity, replica (R8, R15)."""
    starts = [event for event in run if event.kind is EventKind.ATTEMPT_STARTED]
    for number, (repeat, before) in enumerate(_repeats(run), start=1):
        failed = _last(before, EventKind.ATTEMPT_FAILED)
        cause = _cause(failed)
        if cause is not None and not CAUSES[cause].repeatable:
            yield f"attempt {repeat.attempt_id} was started although {cause} is never repeated"
        budget = repeat.detail.get("retry_budget")
        if not isinstance(budget, int | float) or budget < 0:
            yield f"attempt {repeat.attempt_id} was started with a retry budget of {budget}"
        if repeat.replica in {earlier.replica for earlier in starts[:number]}:
            yield f"attempt {repeat.attempt_id} went to {repeat.replica}, where the request had failed before"
        first, again = starts[0].detail.get("model_revision"), repeat.detail.get("model_revision")
        if first != again:
            yield f"attempt {repeat.attempt_id} went to identity {again}, the request had begun on {first}"
        if _last(before, EventKind.REPEAT_REFUSED) is not None:
            yield f"attempt {repeat.attempt_id} was started after a gate had refused it"


def _recorded_before_delivered(run: Events) -> Iterator[str]:
    """Who claims a delivery has recorded the boundary first (DESIGN section 4)."""
    end = _last(run, EventKind.ENDED)
    if end is None or _first(run, EventKind.FIRST_DELTA_SENT) is not None:
        return
    outcome, tokens = end.detail.get("outcome"), end.detail.get("delivered_output_tokens", 0)
    if outcome in (Outcome.COMPLETED, Outcome.INTERRUPTED):
        yield f"outcome {outcome} without first_delta_sent"
    if isinstance(tokens, int | float) and tokens > 0:
        yield f"{tokens} output tokens were delivered without first_delta_sent"


def _outcome_tells_the_truth(run: Events) -> Iterator[str]:
    """``failed`` means that nothing was delivered. Where the boundary's own record is in doubt, it errs towards a delivery."""
    end = _last(run, EventKind.ENDED)
    if end is None:
        return
    outcome, reason = end.detail.get("outcome"), end.detail.get("reason")
    if outcome not in set(Outcome):
        yield f"outcome {outcome!r} is none of {', '.join(Outcome)}"
    crossed = _first(run, EventKind.FIRST_DELTA_SENT) is not None
    doubtful = ErrorCode.JOURNAL_UNAVAILABLE in (reason, end.detail.get("error_code"))
    if outcome == Outcome.FAILED and crossed and not doubtful:
        yield "outcome failed although the boundary was crossed"
    if reason == PROCESSOR_LOST and (outcome == Outcome.INTERRUPTED) is not crossed:
        yield f"a lost request was ended as {outcome}, first_delta_sent {crossed}"


def _ended_or_open(history: History, now_ms: int) -> Iterator[str]:
    """Open with a dead processor is in order too: the next housekeeping ends it."""
    ended = bool(history.events) and history.events[-1].kind is EventKind.ENDED
    if ended or not history.events:
        return
    if history.running and now_ms - history.events[0].at_ms > OPEN_MS_MAX:
        yield f"it has been open for {(now_ms - history.events[0].at_ms) // 3_600_000} hours in a processor that is alive"


RULES: Final[dict[Invariant, _Rule]] = {
    Invariant.BEGINS_WITH_ADMITTED: _begins_with_admitted,
    Invariant.ENDS_ONCE: _ends_once,
    Invariant.ATTEMPTS_IN_ORDER: _attempts_in_order,
    Invariant.ONE_PUBLISHER: _one_publisher,
    Invariant.NOTHING_REPEATED_AFTER_THE_BOUNDARY: _nothing_repeated_after_the_boundary,
    Invariant.REPEAT_IS_FENCED: _repeat_is_fenced,
    Invariant.REPEAT_PASSED_ITS_GATES: _repeat_passed_its_gates,
    Invariant.RECORDED_BEFORE_DELIVERED: _recorded_before_delivered,
    Invariant.OUTCOME_TELLS_THE_TRUTH: _outcome_tells_the_truth,
}


def _repeats(run: Events) -> Iterator[tuple[JournalEvent, Events]]:
    """Every attempt but the first, with the events since the start of the one before it."""
    starts = [place for place, event in enumerate(run) if event.kind is EventKind.ATTEMPT_STARTED]
    for before, start in itertools.pairwise(starts):
        yield run[start], run[before + 1 : start]


def _first(run: Events, kind: EventKind) -> int | None:
    return next((place for place, event in enumerate(run) if event.kind is kind), None)


def _last(run: Events, kind: EventKind) -> JournalEvent | None:
    return next((event for event in reversed(run) if event.kind is kind), None)


def _cause(failed: JournalEvent | None) -> Cause | None:
    name = failed.detail.get("cause") if failed is not None else None
    return Cause(name) if name in set(Cause) else None


def _fencing(failed: JournalEvent) -> Fencing:
    """A cause that is not in the table needs the strictest fence."""
    cause = _cause(failed)
    return Fencing.REVOKE_AND_WAIT if cause is None else CAUSES[cause].fencing
