"""What a session decided is in the file, and leads to the same effects when it is fed into the table again."""

import json
from pathlib import Path

from extproc.decision.codec import decode
from extproc.decision.effects import Effect
from extproc.decision.events import AnswerFinished, BoundaryRecorded, ClientLeft, Event, FirstDeltaArrived, Placed
from extproc.decision.policy import DEFAULT_POLICY, Policy
from extproc.decision.request import RequestState, step
from extproc.processor.decision_log import DecisionFile


def test_decisions_can_be_made_again(tmp_path: Path) -> None:
    log = DecisionFile(tmp_path / "decisions.jsonl")
    state = RequestState()
    for event in (Placed(candidate=True), FirstDeltaArrived(), BoundaryRecorded(), AnswerFinished(), ClientLeft()):
        state, effects = step(state, event, DEFAULT_POLICY)
        log.decided("req_1", DEFAULT_POLICY, event, effects)
    log.close()

    first, *_ = lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    policy, state = decode(Policy, first["policy"]), RequestState()
    for line in lines:
        assert line["request_id"] == "req_1"
        state, effects = step(state, decode(Event, line["event"]), policy)
        assert effects == decode(tuple[Effect, ...], line["effects"])
    assert len(lines) == 5
