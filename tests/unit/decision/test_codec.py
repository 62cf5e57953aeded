"""What was decided from can be kept and read back unchanged, or is refused."""

import json

import pytest

from extproc.contract.errors import ErrorCode
from extproc.decision.causes import Cause, Failure, Fencing
from extproc.decision.codec import decode, encode
from extproc.decision.effects import AnswerError, Effect, FenceAttempt, Outcome, RecordOutcome, RecordRefusal, StartAttempt
from extproc.decision.events import AttemptFailed, Deadline, DeadlinePassed, Event, FenceSettled, Placed
from extproc.decision.gates import Gate, GateFacts
from extproc.decision.policy import DEFAULT_POLICY, Policy
from extproc.decision.replay_cost import ReplayCost

FAILURE = Failure(cause=Cause.ENGINE_ERROR, evidence="it said so", upstream_error={"message": "boom", "code": 500, "type": None})
FACTS = GateFacts(
    fenced=True,
    budget_available=False,
    replay_cost=ReplayCost(prompt_tokens=7, prefill_ms=None),
    client_deadline_left_ms=1,
    tool_call_recorded=False,
    candidate=True,
)
EVENTS = [
    Placed(candidate=True),
    AttemptFailed(failure=FAILURE),
    FenceSettled(facts=FACTS),
    DeadlinePassed(deadline=Deadline.IDLE),
]
EFFECTS = [
    StartAttempt(number=2),
    FenceAttempt(fencing=Fencing.CONFIRM, failure=FAILURE),
    RecordRefusal(gate=Gate.TOOLS, detail="no", failure=FAILURE, attempts=1),
    RecordOutcome(outcome=Outcome.FAILED, reason="r", error_code=ErrorCode.DRAINING),
    AnswerError(code=ErrorCode.DRAINING, detail="d", reason="r", status=503, retry_after_s=1),
]


def there_and_back(kind: object, value: object) -> object:
    return decode(kind, json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_event_survives(event: Event) -> None:
    assert there_and_back(Event, event) == event


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: type(effect).__name__)
def test_effect_survives(effect: Effect) -> None:
    assert there_and_back(Effect, effect) == effect
    assert there_and_back(tuple[Effect, ...], (effect, effect)) == (effect, effect)


def test_policy_survives() -> None:
    assert there_and_back(Policy, DEFAULT_POLICY) == DEFAULT_POLICY


def test_bytes_survive() -> None:
    assert there_and_back(bytes, b"\x00\xff") == b"\x00\xff"


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (Placed, {"is": "DrainLimitReached"}),
        (Placed, {"is": "Placed"}),
        (Placed, {"candidate": True}),
        (Placed, {"is": "Placed", "candidate": "yes"}),
        (Placed, {"is": "Placed", "candidate": True, "colour": "red"}),
        (DeadlinePassed, {"is": "DeadlinePassed", "deadline": "never"}),
        (int | None, "3"),
    ],
)
def test_what_is_no_such_thing_is_refused(kind: object, document: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(kind, document)


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        encode(object())
