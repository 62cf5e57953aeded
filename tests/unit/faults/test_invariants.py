"""Each rule says what is wrong, and nothing where all is well. That gateways are caught by them: tests/faults."""

from dataclasses import replace

import pytest

from extproc.faults.checker import check
from extproc.faults.evidence import Evidence, Published, ToolAction
from extproc.faults.invariants import Invariant
from extproc.faults.points import point_of
from tests.unit.faults.scenes import FRONT, JOURNAL, WHOLE, attempt, client, data, delta, entry, evidence, streamed

ERROR = {
    "code": "upstream_decode_interrupted",
    "partial_output": True,
    "retryable": False,
    "request_id": "req_1",
    "delivered_output_tokens": 1,
    "message": "m",
    "reason": "r",
}
INTERRUPTED = evidence(
    client=streamed(delta("a:0 "), data({"error": ERROR})),
    journal=(*JOURNAL[:3], entry("ended", 14_000, outcome="interrupted", reason="replica_gone", delivered_output_tokens=1)),
    access=(replace(FRONT, outcome="interrupted"),),
)


def broken(found: Evidence) -> set[Invariant]:
    return {violation.invariant for violation in check(found)}


@pytest.mark.parametrize("found", [evidence(), INTERRUPTED], ids=["complete", "interrupted"])
def test_nothing_is_said_of_what_is_right(found: Evidence) -> None:
    assert check(found) == ()


def test_a_point_has_its_own_ending() -> None:
    assert check(evidence(), point_of("slow.chat.stream.mid_decode-1.1")) == ()
    (violation,) = check(evidence(), point_of("killed.chat.stream.mid_decode-1.1"))
    assert violation.invariant is Invariant.EXPECTED_ENDING
    assert "ended complete; right is: interrupted" in violation.how


SECOND = attempt("b", received_at=13.0, ended_at=15.0)
BROKEN = {
    "never ended": (evidence(client=client(closed_at=None, peer=None)), Invariant.ONE_ENDING),
    "too short": (evidence(tokens=3), Invariant.ONE_ENDING),
    "after [DONE]": (evidence(client=streamed(*WHOLE, WHOLE[0])), Invariant.ONE_ENDING),
    "error after finish": (evidence(client=streamed(*WHOLE[:3], data({"error": ERROR}))), Invariant.ONE_ENDING),
    "two voices": (evidence(client=streamed(delta("a:0 "), delta("b:1 "), *WHOLE[2:])), Invariant.ONE_VOICE),
    "a gap": (evidence(client=streamed(delta("a:0 "), delta("a:2 "), *WHOLE[2:])), Invariant.ONE_VOICE),
    "not published": (evidence(attempts=(attempt(published=()),)), Invariant.ONLY_WHAT_WAS_PUBLISHED),
    "three attempts": (evidence(attempts=(attempt(), attempt("b"), attempt("c"))), Invariant.ATTEMPTS_BOUNDED),
    "attempt after delivery": (evidence(attempts=(attempt(), SECOND)), Invariant.NO_ATTEMPT_AFTER_DELIVERY),
    "two publishers": (evidence(attempts=(attempt(ended_at=13.5), SECOND)), Invariant.ONE_PUBLISHER),
    "published late": (
        evidence(attempts=(attempt(ended_at=12.9, published=(Published(at=13.1, kind="delta", size=1, text="a:0 "),)), SECOND)),
        Invariant.ONE_PUBLISHER,
    ),
    "ran on": (evidence(attempts=(attempt(ended_at=99.0),)), Invariant.STOPPED_IN_TIME),
    "runs for ever": (evidence(attempts=(attempt(ended_at=None),)), Invariant.STOPPED_IN_TIME),
    "slot": (evidence(attempts=(attempt(slot_freed_at=None),)), Invariant.NO_SLOT_LEFT),
    "miscounted": (
        replace(INTERRUPTED, client=streamed(delta("a:0 "), data({"error": ERROR | {"delivered_output_tokens": 2}}))),
        Invariant.TERMINAL_EVENT_IS_TRUE,
    ),
    "not recorded": (evidence(journal=(JOURNAL[0], JOURNAL[1], JOURNAL[3])), Invariant.RECORDED_BEFORE_DELIVERED),
    "recorded late": (
        evidence(journal=(*JOURNAL[:2], replace(JOURNAL[2], at_ms=12_500), JOURNAL[3])),
        Invariant.RECORDED_BEFORE_DELIVERED,
    ),
    "claimed too little": (
        evidence(journal=(*JOURNAL[:3], replace(JOURNAL[3], detail={"outcome": "completed", "delivered_output_tokens": 1}))),
        Invariant.RECORDED_BEFORE_DELIVERED,
    ),
    "no outcome": (evidence(journal=JOURNAL[:3]), Invariant.JOURNAL_AGREES),
    "unknown attempt": (evidence(attempts=(attempt(attempt_id="att_x"),)), Invariant.JOURNAL_AGREES),
    "ended twice": (evidence(journal=(*JOURNAL, JOURNAL[3])), Invariant.JOURNAL_KEEPS_ITS_RULES),
    "sent twice": (evidence(access=(FRONT, *2 * (replace(FRONT, listener="egress"),))), Invariant.ACCESS_LOGS_AGREE),
    "not logged": (evidence(access=()), Invariant.ACCESS_LOGS_AGREE),
    "acted twice": (
        evidence(tool=tuple(ToolAction(at=at, request_id="req_1", call_id="call_07") for at in (11.0, 12.0))),
        Invariant.TOOL_ACTS_ONCE,
    ),
    "no fault": (evidence(attempts=(attempt(fault=None),)), Invariant.FAULT_STRUCK),
}


@pytest.mark.parametrize("case", BROKEN)
def test_rule_says_what_is_wrong(case: str) -> None:
    found, invariant = BROKEN[case]
    assert invariant in broken(found)


def test_a_stopped_process_is_quiet_while_it_is_stopped() -> None:
    stopped = attempt(ended_at=20.0, slot_freed_at=20.0, stopped_from=11.2, stopped_until=19.0, published=())
    second = attempt("b", received_at=11.4, ended_at=14.0)
    found = evidence(client=streamed(delta("b:0 "), delta("b:1 "), *WHOLE[2:], begin=10.5), attempts=(stopped, second))
    assert broken(found) <= {Invariant.JOURNAL_AGREES, Invariant.RECORDED_BEFORE_DELIVERED}


def test_a_gateway_that_was_killed_may_cut_its_clients() -> None:
    cut = evidence(client=client(), gateway_broken=True, journal=(), access=())
    assert broken(cut) == set()
    assert Invariant.ONE_ENDING in broken(replace(cut, gateway_broken=False))
