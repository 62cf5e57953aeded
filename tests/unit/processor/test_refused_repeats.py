"""Every gate's refusal is on record once, together with what was to be repeated."""

from collections.abc import Callable

import pytest

from extproc.decision.gates import GATES, Gate
from extproc.decision.policy import Policy, ReplayCostPolicy, RetryBudgetPolicy
from extproc.journal.records import EventKind
from tests.unit.processor.stage import A, SlowFence, Stage


def without_a_fence() -> Stage:
    fence = SlowFence()
    fence.proof.set_result(None)
    return Stage(fence=fence)


def with_a_tool_call() -> Stage:
    stage = Stage()
    stage.tool_calls = True
    return stage


CLOSED: dict[Gate, Callable[[], Stage]] = {
    Gate.SOURCE_FENCED: without_a_fence,
    Gate.ATTEMPTS_LEFT: lambda: Stage(policy=Policy(max_attempts=1)),
    Gate.DRAINING: Stage,
    Gate.RETRY_BUDGET: lambda: Stage(policy=Policy(retry_budget=RetryBudgetPolicy(percent=0, min_per_second=0, burst=0))),
    Gate.REPLAY_COST: lambda: Stage(policy=Policy(replay_cost=ReplayCostPolicy(max_prompt_tokens=0))),
    Gate.TOOLS: with_a_tool_call,
    Gate.REPLICA: lambda: Stage(replicas=(A,)),
}


def test_every_gate_is_tried() -> None:
    assert set(CLOSED) == set(GATES)


@pytest.mark.parametrize("gate", list(Gate))
async def test_a_refusal_tells_its_gate_and_what_was_to_be_repeated(gate: Gate) -> None:
    stage = CLOSED[gate]()
    _, task = stage.ask(document={"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]})
    attempt = await stage.attempts.opened.get()
    stage.draining = gate is Gate.DRAINING
    attempt.end("connection reset")
    await task
    (refused,) = [event for event in await stage.journal.events("req_1") if event.kind is EventKind.REPEAT_REFUSED]
    told = {"gate": gate, "attempts": 1, "cause": "replica_gone", "evidence": "connection reset"}
    assert told.items() <= refused.detail.items()
    assert refused.detail["detail"]
