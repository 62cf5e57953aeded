"""One fold for all subscribers, and none of them can harm a request or another subscriber."""

import logging
from collections.abc import Callable

import pytest

from extproc.contract.errors import ErrorCode
from extproc.journal.records import EventKind, fold_all
from extproc.telemetry.witness import Transition, TurnedAway, Witness
from tests.unit.telemetry.events import BEGIN_MS, FIRST, REPEATED, REQUEST, admitted, happened


class Keeps:
    def __init__(self) -> None:
        self.transitions: list[Transition] = []
        self.away: list[TurnedAway] = []

    def saw(self, transition: Transition) -> None:
        self.transitions.append(transition)

    def turned_away(self, turned_away: TurnedAway) -> None:
        self.away.append(turned_away)


class Breaks:
    def saw(self, transition: Transition) -> None:
        raise RuntimeError("no")

    turned_away = saw


def test_facts_before_and_after_each_event_are_those_of_the_journal() -> None:
    keeps = Keeps()
    witness = Witness([keeps])
    for event in REPEATED:
        witness.saw(event)

    assert [(each.phase_before, each.after.phase) for each in keeps.transitions] == [
        (None, "admitted"),
        ("admitted", "prefill"),
        ("prefill", "prefill"),
        ("prefill", "fencing"),
        ("fencing", "fencing"),
        ("fencing", "prefill"),
        ("prefill", "decode"),
        ("decode", "ended"),
    ]
    assert keeps.transitions[-1].after == fold_all(REPEATED)
    assert keeps.transitions[-1].after.attempts[0].failed_at_ms == BEGIN_MS + 100


def test_ended_request_is_forgotten_and_may_be_admitted_again() -> None:
    keeps = Keeps()
    witness = Witness([keeps])
    for event in (*REPEATED, happened(EventKind.CANCEL_SENT, attempt=FIRST), admitted()):
        witness.saw(event)
    assert [each.event.kind for each in keeps.transitions[-2:]] == [EventKind.ENDED, EventKind.ADMITTED]
    assert keeps.transitions[-1].before is None


def test_subscriber_that_breaks_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    keeps = Keeps()
    witness = Witness([Breaks(), keeps], attempt_headers=lambda attempt_id: [][0])
    witness.saw(admitted())
    witness.turned_away(request_id=REQUEST, api="chat", code=ErrorCode.REQUEST_TOO_LARGE)
    assert witness.attempt_headers(FIRST) == ()
    assert len(keeps.transitions) == len(keeps.away) == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3


def test_trace_id_is_the_clients_or_made_of_the_request_id() -> None:
    keeps = Keeps()
    witness = Witness([keeps])
    client = "4bf92f3577b34da6a3ce929d0e0e4736"
    witness.saw(admitted(traceparent=f"00-{client}-00f067aa0ba902b7-01"))
    witness.saw(admitted(request="req_2"))
    witness.saw(happened(EventKind.ATTEMPT_STARTED, request="req_2"))
    assert keeps.transitions[0].trace_id == client
    assert keeps.transitions[1].trace_id == keeps.transitions[2].trace_id != client
    assert int(keeps.transitions[1].trace_id, 16)


def test_what_was_put_off_is_told_once_in_its_order_by_whichever_comes_first():
    put_off: list[Callable[[], None]] = []
    keeps = Keeps()
    witness = Witness([keeps], later=put_off.append)
    witness.turned_away(request_id="req_0", api="chat", code=ErrorCode.DRAINING)
    for event in REPEATED:
        witness.saw(event)
    assert len(put_off) == 1
    assert (keeps.transitions, keeps.away) == ([], [])
    witness.tell()
    assert [each.event.kind for each in keeps.transitions] == [event.kind for event in REPEATED]
    assert len(keeps.away) == 1
    put_off[0]()
    assert len(keeps.transitions) == len(REPEATED)


def test_an_attempt_s_headers_are_those_of_what_was_told_until_now():
    keeps = Keeps()
    witness = Witness(
        [keeps], attempt_headers=lambda attempt_id: (("seen", str(len(keeps.transitions))),), later=lambda tell: None
    )
    for event in REPEATED[:2]:
        witness.saw(event)
    assert witness.attempt_headers("att_1") == (("seen", "2"),)
