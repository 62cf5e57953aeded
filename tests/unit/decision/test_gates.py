"""The gates of a repeat: their order, and the client's error that each names (DESIGN section 4)."""

from dataclasses import replace

import pytest

from extproc.contract.errors import ErrorCode
from extproc.decision.causes import Cause, Failure
from extproc.decision.gates import GATES, Attempted, Gate, GateFacts, check_gates
from extproc.decision.policy import Policy, ReplayCostPolicy, ToolsMode
from extproc.decision.replay_cost import ReplayCost

POLICY = Policy(max_attempts=2, replay_cost=ReplayCostPolicy(max_prompt_tokens=100, max_prefill_ms=1_000))
OPEN = GateFacts(
    fenced=True,
    budget_available=True,
    replay_cost=ReplayCost(prompt_tokens=10, prefill_ms=10),
    client_deadline_left_ms=500,
    tool_call_recorded=False,
    candidate=True,
)
ONCE = Attempted(attempts=1, failure=Failure(cause=Cause.REPLICA_GONE, evidence="closed"))
SHUT: dict[Gate, tuple[GateFacts, Attempted, ErrorCode]] = {
    Gate.SOURCE_FENCED: (replace(OPEN, fenced=False), ONCE, ErrorCode.SOURCE_ATTEMPT_NOT_FENCED),
    Gate.ATTEMPTS_LEFT: (OPEN, replace(ONCE, attempts=2), ErrorCode.ATTEMPTS_EXHAUSTED),
    Gate.DRAINING: (replace(OPEN, draining=True), ONCE, ErrorCode.DRAINING),
    Gate.RETRY_BUDGET: (replace(OPEN, budget_available=False), ONCE, ErrorCode.RETRY_BUDGET_EXHAUSTED),
    Gate.REPLAY_COST: (replace(OPEN, replay_cost=ReplayCost(prompt_tokens=101)), ONCE, ErrorCode.REPLAY_COST_EXCEEDED),
    Gate.TOOLS: (replace(OPEN, tool_call_recorded=True), ONCE, ErrorCode.TOOL_SIDE_EFFECTS_POSSIBLE),
    Gate.REPLICA: (replace(OPEN, candidate=False), ONCE, ErrorCode.NO_HEALTHY_REPLICA),
}


def test_all_gates_open_lets_a_repeat_start() -> None:
    assert check_gates(ONCE, POLICY, OPEN) is None


@pytest.mark.parametrize("gate", list(Gate))
def test_each_shut_gate_names_its_error(gate: Gate) -> None:
    facts, attempted, code = SHUT[gate]
    refusal = check_gates(attempted, POLICY, facts)
    assert refusal is not None
    assert (refusal.gate, refusal.code) == (gate, code)
    assert refusal.detail


def test_the_first_shut_gate_in_the_designs_order_refuses() -> None:
    everything_shut = GateFacts(
        fenced=False,
        budget_available=False,
        replay_cost=ReplayCost(prompt_tokens=101),
        client_deadline_left_ms=500,
        tool_call_recorded=True,
        candidate=False,
        draining=True,
    )
    refusals = [check(replace(ONCE, attempts=2), POLICY, everything_shut) for check in GATES.values()]
    assert [refusal and refusal.gate for refusal in refusals] == list(GATES)
    first = check_gates(replace(ONCE, attempts=2), POLICY, everything_shut)
    assert first is not None
    assert first.gate is next(iter(GATES)) is Gate.SOURCE_FENCED


def test_overload_without_another_replica_stays_an_overload() -> None:
    busy = Attempted(attempts=1, failure=Failure(cause=Cause.OVERLOAD, evidence="429", status=429, retry_after_s=7))
    refusal = check_gates(busy, POLICY, replace(OPEN, candidate=False))
    assert refusal is not None
    assert refusal.code is ErrorCode.OVERLOADED


def test_a_cause_that_would_come_again_is_not_repeated() -> None:
    large = Attempted(attempts=1, failure=Failure(cause=Cause.RESPONSE_TOO_LARGE, evidence="64 MiB"))
    refusal = check_gates(large, replace(POLICY, max_attempts=5), OPEN)
    assert refusal is not None
    assert refusal.code is ErrorCode.RESPONSE_TOO_LARGE


def test_a_route_that_does_not_repeat_has_one_attempt() -> None:
    assert replace(POLICY, retry_before_first_delta=False, max_attempts=5).attempts_allowed == 1


def test_the_ledger_opens_the_tool_gate() -> None:
    facts = replace(OPEN, tool_call_recorded=True)
    assert check_gates(ONCE, replace(POLICY, tools=ToolsMode.LEDGER), facts) is None


@pytest.mark.parametrize(
    ("cost", "fits"),
    [
        (ReplayCost(prompt_tokens=100, prefill_ms=500), True),
        (ReplayCost(prompt_tokens=100), True),
        (ReplayCost(prompt_tokens=101, prefill_ms=1), False),
        (ReplayCost(prompt_tokens=1, prefill_ms=501), False),
        (ReplayCost(prompt_tokens=1, prefill_ms=1_001), False),
    ],
)
def test_replay_cost_is_judged_by_tokens_time_and_deadline(cost: ReplayCost, fits: bool) -> None:
    assert (check_gates(ONCE, POLICY, replace(OPEN, replay_cost=cost)) is None) is fits
