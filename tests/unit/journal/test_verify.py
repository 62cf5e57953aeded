"""Every invariant with stories that keep it and a story that breaks it."""

from dataclasses import replace

import pytest

from extproc.decision.causes import CAUSES, Cause, Fencing
from extproc.journal.interface import History
from extproc.journal.records import EventKind, JournalEvent, fold_all, lost_event
from extproc.journal.verify import OPEN_MS_MAX, RULES, Invariant, verify


def event(kind: EventKind, attempt: int | None = None, **detail: str | int | float | bool | None) -> JournalEvent:
    attempt_id = None if attempt is None else f"att_{attempt}"
    replica = None if attempt is None else f"10.0.0.{attempt}:8000"
    return JournalEvent(request_id="req_1", kind=kind, at_ms=1_000, attempt_id=attempt_id, replica=replica, detail=detail)


ADMITTED = event(EventKind.ADMITTED, api="chat")
DELTA = event(EventKind.FIRST_DELTA_SENT, 1)
DELTA_2 = event(EventKind.FIRST_DELTA_SENT, 2)
FENCED = event(EventKind.FENCED, 1, proof="cancel_ack")
GIVEN_UP = event(EventKind.FENCE_GIVEN_UP, 1)
COMPLETED = event(EventKind.ENDED, outcome="completed", reason="finished", delivered_output_tokens=7)
INTERRUPTED = event(EventKind.ENDED, outcome="interrupted", reason="replica_gone", delivered_output_tokens=3)
FAILED = event(EventKind.ENDED, outcome="failed", reason="replica_gone", delivered_output_tokens=0)


def start(number: int, **detail: str | int | float | bool | None) -> JournalEvent:
    return event(EventKind.ATTEMPT_STARTED, number, **{"number": number, "retry_budget": 9.0, "model_revision": "r1", **detail})


def head(attempt: int) -> JournalEvent:
    return event(EventKind.RESPONSE_STARTED, attempt, status=200)


def failed(cause: str = "replica_gone", attempt: int = 1) -> JournalEvent:
    return event(EventKind.ATTEMPT_FAILED, attempt, cause=cause, evidence="connection closed")


PLAIN = (ADMITTED, start(1), head(1), DELTA, COMPLETED)
REPEATED = (ADMITTED, start(1), head(1), failed(), FENCED, start(2), head(2), DELTA_2, COMPLETED)

SOUND = {
    "one attempt": PLAIN,
    "one repeat": REPEATED,
    "interrupted": (ADMITTED, start(1), head(1), DELTA, event(EventKind.CANCEL_SENT, 1), INTERRUPTED),
    "refused by the replica": (ADMITTED, start(1), head(1), FAILED),
    "not placed": (ADMITTED, FAILED),
    "cancelled before": (ADMITTED, start(1), event(EventKind.ENDED, outcome="cancelled", reason="client_gone")),
    "cancelled after": (ADMITTED, start(1), DELTA, event(EventKind.ENDED, outcome="cancelled", delivered_output_tokens=2)),
    "fence given up": (ADMITTED, start(1), failed("uncertain"), GIVEN_UP, FAILED),
    "run again": (ADMITTED, start(1), failed(), GIVEN_UP, FAILED, *PLAIN),
    "boundary not recorded": (ADMITTED, start(1), DELTA, event(EventKind.ENDED, outcome="failed", reason="journal_unavailable")),
    "still running": (ADMITTED, start(1)),
    "nothing yet": (),
}


def broken_by(events: tuple[JournalEvent, ...], running: bool = False, now_ms: int = 2_000) -> set[Invariant]:
    history = History(request_id="req_1", events=events, running=running)
    return {violation.invariant for violation in verify(history, now_ms)}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_story_breaks_nothing(name: str):
    assert broken_by(SOUND[name]) == set()


@pytest.mark.parametrize("name", SOUND)
def test_every_beginning_of_a_sound_story_is_sound(name: str):
    """What a killed processor leaves behind, and what the one that finds it adds."""
    for length in range(len(SOUND[name])):
        events = SOUND[name][:length]
        assert broken_by(events) == set()
        facts = fold_all(events)
        if facts is not None and facts.outcome is None:
            assert broken_by((*events, lost_event(facts, 2_000))) == set()


BREAKS: dict[str, tuple[Invariant, tuple[JournalEvent, ...]]] = {
    "no admission": (Invariant.BEGINS_WITH_ADMITTED, PLAIN[1:]),
    "two ends": (Invariant.ENDS_ONCE, (*PLAIN, COMPLETED)),
    "something after the end": (Invariant.ENDS_ONCE, (*PLAIN, event(EventKind.CANCEL_SENT, 1))),
    "an attempt id used twice": (Invariant.ATTEMPTS_IN_ORDER, (*REPEATED[:5], replace(start(2), attempt_id="att_1"))),
    "a number left out": (Invariant.ATTEMPTS_IN_ORDER, (ADMITTED, replace(start(1), detail={**start(1).detail, "number": 2}))),
    "a head of no attempt": (Invariant.ATTEMPTS_IN_ORDER, (ADMITTED, head(1))),
    "the first of two publishes": (Invariant.ONE_PUBLISHER, (*REPEATED[:6], DELTA)),
    "a fenced attempt publishes": (Invariant.ONE_PUBLISHER, (*REPEATED[:5], DELTA)),
    "a failed attempt answers": (Invariant.ONE_PUBLISHER, (ADMITTED, start(1), failed(), head(1))),
    "an attempt after the boundary": (
        Invariant.NOTHING_REPEATED_AFTER_THE_BOUNDARY,
        (ADMITTED, start(1), DELTA, failed(), FENCED, start(2)),
    ),
    "a boundary crossed twice": (Invariant.NOTHING_REPEATED_AFTER_THE_BOUNDARY, (ADMITTED, start(1), DELTA, DELTA)),
    "a run after a delivery": (
        Invariant.NOTHING_REPEATED_AFTER_THE_BOUNDARY,
        (ADMITTED, start(1), DELTA, INTERRUPTED, ADMITTED, start(1)),
    ),
    "a repeat of what had not failed": (Invariant.REPEAT_IS_FENCED, (ADMITTED, start(1), start(2))),
    "a repeat without a fence": (Invariant.REPEAT_IS_FENCED, (ADMITTED, start(1), failed(), start(2))),
    "a fence without a proof": (
        Invariant.REPEAT_IS_FENCED,
        (ADMITTED, start(1), failed(), event(EventKind.FENCED, 1, proof=None), start(2)),
    ),
    "a fence of another attempt": (
        Invariant.REPEAT_IS_FENCED,
        (*REPEATED[:6], failed(attempt=2), FENCED, replace(start(3), attempt_id="att_3")),
    ),
    "a repeat after a fence given up": (Invariant.REPEAT_IS_FENCED, (ADMITTED, start(1), failed(), GIVEN_UP, start(2))),
    "a cause that nobody knows": (Invariant.REPEAT_IS_FENCED, (ADMITTED, start(1), failed("made_up"), start(2))),
    "a cause that is never repeated": (
        Invariant.REPEAT_PASSED_ITS_GATES,
        (ADMITTED, start(1), failed("response_too_large"), FENCED, start(2)),
    ),
    "a repeat without a budget": (Invariant.REPEAT_PASSED_ITS_GATES, (*REPEATED[:5], start(2, retry_budget=None))),
    "a budget overdrawn": (Invariant.REPEAT_PASSED_ITS_GATES, (*REPEATED[:5], start(2, retry_budget=-1.0))),
    "a repeat on the same replica": (
        Invariant.REPEAT_PASSED_ITS_GATES,
        (*REPEATED[:5], replace(start(2), replica="10.0.0.1:8000")),
    ),
    "a repeat on another model": (Invariant.REPEAT_PASSED_ITS_GATES, (*REPEATED[:5], start(2, model_revision="r2"))),
    "a repeat after a refusal": (
        Invariant.REPEAT_PASSED_ITS_GATES,
        (*REPEATED[:5], event(EventKind.REPEAT_REFUSED, 1), start(2)),
    ),
    "completed without a boundary": (Invariant.RECORDED_BEFORE_DELIVERED, (ADMITTED, start(1), COMPLETED)),
    "tokens without a boundary": (
        Invariant.RECORDED_BEFORE_DELIVERED,
        (ADMITTED, start(1), event(EventKind.ENDED, outcome="failed", delivered_output_tokens=1)),
    ),
    "failed after the boundary": (Invariant.OUTCOME_TELLS_THE_TRUTH, (ADMITTED, start(1), DELTA, FAILED)),
    "an outcome of no kind": (Invariant.OUTCOME_TELLS_THE_TRUTH, (ADMITTED, event(EventKind.ENDED, outcome="resolved"))),
    "a lost request called failed": (
        Invariant.OUTCOME_TELLS_THE_TRUTH,
        (ADMITTED, start(1), DELTA, event(EventKind.ENDED, outcome="cancelled", reason="processor_lost")),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_promise_is_named(name: str):
    invariant, events = BREAKS[name]
    assert invariant in broken_by(events)


def test_every_rule_is_broken_by_some_test():
    assert {invariant for invariant, _ in BREAKS.values()} == set(RULES)
    assert set(RULES) | {Invariant.ENDED_OR_OPEN} == set(Invariant)


def test_a_request_that_a_live_processor_forgot_is_named():
    events = (ADMITTED, start(1))
    later = 1_000 + OPEN_MS_MAX + 1
    assert broken_by(events, running=True, now_ms=later) == {Invariant.ENDED_OR_OPEN}
    assert broken_by(events, running=True, now_ms=later - 1) == set()
    assert broken_by(events, running=False, now_ms=later) == set()


@pytest.mark.parametrize("cause", Cause)
def test_a_repeat_needs_a_fence_exactly_where_its_cause_does(cause: Cause):
    events = (ADMITTED, start(1), failed(cause), start(2))
    needed = CAUSES[cause].fencing is not Fencing.NOT_NEEDED
    assert (Invariant.REPEAT_IS_FENCED in broken_by(events)) is needed
