"""Keys of tool calls, what a repeated call is told, what an answer proves."""

import pytest

from extproc.contract import headers as names
from extproc.contract.errors import FORMS
from extproc.decision.idempotency import InvalidKey
from extproc.decision.tool_call import (
    REFUSALS,
    CallAction,
    CallState,
    NoKey,
    Proof,
    RecordedCall,
    ToolKey,
    ToolRoute,
    decide_call,
    read_answer,
    read_key,
)

REQUEST = "req_01J00000000000000000000000"


def test_a_key_is_built_from_the_logical_request_and_the_call():
    key = read_key({names.REQUEST_ID: [REQUEST], names.TOOL_CALL: ["call_07"]})
    assert key == ToolKey(key=f"{REQUEST}:call_07", request_id=REQUEST)
    assert key.names_request


def test_the_same_key_in_idempotency_key_is_the_same_call():
    assert read_key({names.IDEMPOTENCY_KEY: [f'"{REQUEST}:call_07"']}) == ToolKey(key=f"{REQUEST}:call_07", request_id=REQUEST)


def test_a_key_of_the_callers_own_belongs_to_the_request_that_the_header_names():
    key = read_key({names.IDEMPOTENCY_KEY: ["my-key"], names.REQUEST_ID: [REQUEST]})
    assert key == ToolKey(key="my-key", request_id=REQUEST)
    assert not key.names_request


def test_a_key_of_the_callers_own_needs_no_request():
    assert read_key({names.IDEMPOTENCY_KEY: ["my-key"]}) == ToolKey(key="my-key", request_id=None)


def test_a_key_inside_the_call_counts_like_the_header():
    assert read_key({}, embedded=f"{REQUEST}:call_07") == ToolKey(key=f"{REQUEST}:call_07", request_id=REQUEST)
    with pytest.raises(InvalidKey):
        read_key({names.IDEMPOTENCY_KEY: ["one"]}, embedded="two")


def test_no_key_is_no_protection():
    assert read_key({}) is None
    assert read_key({names.TOOL_CALL: ["call_07"]}) is None


def test_a_call_that_names_its_request_must_name_itself():
    with pytest.raises(NoKey):
        read_key({names.REQUEST_ID: [REQUEST]})


@pytest.mark.parametrize(
    "headers",
    [
        {names.IDEMPOTENCY_KEY: ["a", "b"]},
        {names.REQUEST_ID: [REQUEST], names.TOOL_CALL: ["a", "b"]},
        {names.REQUEST_ID: [REQUEST, REQUEST], names.TOOL_CALL: ["a"]},
        {names.REQUEST_ID: [REQUEST], names.TOOL_CALL: ["a b"]},
        {names.REQUEST_ID: [REQUEST], names.TOOL_CALL: ["x" * 300]},
    ],
)
def test_an_ambiguous_key_is_refused(headers: dict[str, list[str]]):
    with pytest.raises(InvalidKey):
        read_key(headers)


@pytest.mark.parametrize("text", ["req_short:call", "req_01J0000000000000000000000I:call", f"{REQUEST}:", "call_07"])
def test_only_a_whole_request_id_makes_a_key_name_its_request(text: str):
    key = read_key({names.IDEMPOTENCY_KEY: [text]})
    assert key is not None
    assert not key.names_request


EXPECTED = {
    (CallState.RUNNING, False): CallAction.WAIT,
    (CallState.RUNNING, True): CallAction.WAIT,
    (CallState.UNKNOWN, False): CallAction.REFUSE_UNKNOWN,
    (CallState.UNKNOWN, True): CallAction.REFUSE_UNKNOWN,
    (CallState.CARRIED_OUT, False): CallAction.REFUSE_WITHOUT_ANSWER,
    (CallState.CARRIED_OUT, True): CallAction.REPLAY,
}


@pytest.mark.parametrize(("recorded", "action"), EXPECTED.items())
def test_a_recorded_call_is_never_run_again(recorded: tuple[CallState, bool], action: CallAction):
    state, stored = recorded
    assert decide_call(RecordedCall(same_call=True, state=state, answer_stored=stored)) is action
    assert decide_call(RecordedCall(same_call=False, state=state, answer_stored=stored)) is CallAction.REFUSE_REUSED


def test_a_new_call_runs():
    assert decide_call(None) is CallAction.RUN


def test_the_statuses_of_refusals():
    assert {action: FORMS[code].status for action, code in REFUSALS.items()} == {
        CallAction.WAIT: 409,
        CallAction.REFUSE_REUSED: 422,
        CallAction.REFUSE_UNKNOWN: 409,
        CallAction.REFUSE_WITHOUT_ANSWER: 409,
    }
    assert set(REFUSALS) == set(CallAction) - {CallAction.RUN, CallAction.REPLAY}


@pytest.mark.parametrize(
    ("status", "said", "proof"),
    [
        (200, None, Proof.CARRIED_OUT),
        (204, None, Proof.CARRIED_OUT),
        (303, None, Proof.CARRIED_OUT),
        (404, None, Proof.CARRIED_OUT),
        (422, None, Proof.CARRIED_OUT),
        (500, None, Proof.CARRIED_OUT),
        (401, None, Proof.NOT_CARRIED_OUT),
        (429, None, Proof.NOT_CARRIED_OUT),
        (502, None, Proof.UNKNOWN),
        (503, None, Proof.UNKNOWN),
        (504, None, Proof.UNKNOWN),
        (503, "not_carried_out", Proof.NOT_CARRIED_OUT),
        (200, "unknown", Proof.UNKNOWN),
        (429, "carried_out", Proof.CARRIED_OUT),
        (200, "nonsense", Proof.CARRIED_OUT),
    ],
)
def test_what_an_answer_proves(status: int, said: str | None, proof: Proof):
    assert read_answer(status, said) is proof


@pytest.mark.parametrize(
    "wrong",
    [{"name": "Not A Name"}, {"wait_ms": -1}, {"wait_ms": 9, "deadline_ms": 8}, {"answer_bytes_max": 0}, {"status_path": "/x"}],
)
def test_a_route_that_contradicts_itself_is_refused(wrong: dict[str, object]):
    with pytest.raises(AssertionError):
        ToolRoute(**{"name": "mail", **wrong})  # type: ignore[arg-type]
