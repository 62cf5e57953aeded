"""A kept request is read back whole, decided again exactly, and shown on a page that it can't break out of."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.decision.causes import Cause, Failure
from extproc.decision.codec import encode
from extproc.decision.events import AnswerFinished, AttemptFailed, BoundaryRecorded, FirstDeltaArrived, Placed
from extproc.decision.policy import DEFAULT_POLICY
from extproc.decision.request import RequestState, step
from extproc.faults.expectations import Ending
from extproc.faults.invariants import Invariant, Violation
from extproc.faults.points import point_of
from extproc.faults.replay import NothingDecidedError, judge_again, replay_decisions
from extproc.faults.report import write_report
from extproc.faults.suite import Judged, Summary
from extproc.faults.trace import FORMAT, Trace, read_decisions, read_trace, write_trace
from tests.unit.faults.scenes import attempt, evidence

EVENTS = (Placed(candidate=True), FirstDeltaArrived(), BoundaryRecorded(), AnswerFinished())


def decisions() -> tuple[dict, ...]:
    state, lines = RequestState(), []
    for event in EVENTS:
        state, effects = step(state, event, DEFAULT_POLICY)
        first = {} if lines else {"policy": encode(DEFAULT_POLICY)}
        lines.append({"request_id": "req_1", **first, "event": encode(event), "effects": encode(effects)})
    return tuple(lines)


def a_trace(**fields: object) -> Trace:
    own = {
        "format": FORMAT,
        "seed": 7,
        "point": "slow.chat.stream.mid_decode-1.1",
        "path": "/v1/chat/completions",
        "body": b"{}",
        "model_revision": "r1",
        "evidence": evidence(),
        "decisions": decisions(),
        "violations": (),
        "gateway": "0",
    }
    return Trace(**(own | fields))


def test_trace_survives_the_disk(tmp_path: Path) -> None:
    trace = a_trace(violations=(Violation(Invariant.ONE_VOICE, "two"),))
    assert read_trace(write_trace(trace, tmp_path)) == trace


def test_other_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="no trace of format 1"):
        read_trace(tmp_path / "trace.json")


def test_decisions_are_made_again_exactly() -> None:
    replayed = replay_decisions(a_trace())
    assert [one.difference for one in replayed] == [None] * 4
    assert [(one.before, one.after) for one in replayed][-1] == ("decode", "ended")


def test_another_decision_is_told() -> None:
    told = list(decisions())
    told[3] = told[3] | {"effects": []}
    differences = [one.difference for one in replay_decisions(a_trace(decisions=tuple(told)))]
    assert differences[:3] == [None] * 3
    assert "FinishStream" in str(differences[3])


def test_an_event_that_the_table_refuses_is_told() -> None:
    failed = encode(AttemptFailed(failure=Failure(cause=Cause.HUNG, evidence="e")))
    told = (decisions()[0], decisions()[0] | {"event": encode(Placed(candidate=True))}, {"event": failed, "effects": []})
    assert "no rule for Placed in phase prefill" in str(replay_decisions(a_trace(decisions=told))[1].difference)


def test_without_decisions_there_is_nothing_to_replay() -> None:
    with pytest.raises(NothingDecidedError):
        replay_decisions(a_trace(decisions=()))


def test_evidence_is_judged_again() -> None:
    assert judge_again(a_trace()) == ()
    (violation,) = judge_again(a_trace(evidence=evidence(attempts=(attempt(fault=None),))))
    assert violation.invariant is Invariant.FAULT_STRUCK


def test_decision_log_is_read_by_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert read_decisions(file, 0) == ({}, 0)
    file.write_text('{"request_id": "a"}\n{"request_id": "b"}\n{"requ')
    found, offset = read_decisions(file, 0)
    assert (set(found), offset) == ({"a", "b"}, 40)
    file.write_text(file.read_text() + 'est_id": "a"}\n')
    assert set(read_decisions(file, offset)[0]) == {"a"}


def test_report_tells_people_and_machines_the_same(tmp_path: Path) -> None:
    point = point_of("slow.chat.stream.mid_decode-1.1")
    hostile = replace(evidence(attempts=(attempt(replica="<script>a"),)), name="slow~1")
    trace = a_trace(evidence=hostile, violations=(Violation(Invariant.ONE_VOICE, "<b>two</b>"),))
    summary = Summary(seed=7, judged=[Judged(point=point, trace=trace, ending=Ending.COMPLETE)], complaints=["<i>log</i>"])

    index = write_report(summary, tmp_path)

    pages = index.read_text() + (tmp_path / "slow.html").read_text()
    assert not [tag for tag in ("<script", "<b>", "<i>") if tag in pages]
    assert "promises were broken" in pages
    assert "<svg" in pages
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["green"], document["distinct_points"], document["seed"]) == (False, 1, 7)
    assert document["points"][0]["violations"] == [{"invariant": "one_voice", "how": "<b>two</b>"}]
