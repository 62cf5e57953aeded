"""The gates that a repeat must pass, in their order; the first that refuses names the client's error (DESIGN section 4).

"Boundary not crossed" and "client still there" are not rows here: the request's phase says both, and no event of a phase
in which they fail leads to a gate at all (request.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.contract.errors import ErrorCode
from extproc.decision.causes import CAUSES, Failure
from extproc.decision.policy import Policy, ToolsMode
from extproc.decision.replay_cost import ReplayCost


class Gate(StrEnum):
    """Names of the gates, as journal, metrics and log lines use them."""

    SOURCE_FENCED = "source_attempt_fenced"
    ATTEMPTS_LEFT = "attempts_left"
    RETRY_BUDGET = "retry_budget_available"
    REPLAY_COST = "replay_cost"
    TOOLS = "tools"
    REPLICA = "healthy_replica"
    DRAINING = "not_draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFacts:
    """What the shell knows at the moment of the decision."""

    fenced: bool
    budget_available: bool
    replay_cost: ReplayCost
    client_deadline_left_ms: int
    tool_call_recorded: bool
    candidate: bool
    """A healthy replica of the same identity exists that this request has not failed on."""
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The first gate that refused, and the client's error that it names."""

    gate: Gate
    code: ErrorCode
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """Where the request stands: attempts started so far and how the last one failed."""

    attempts: int
    failure: Failure


_Check = Callable[[Attempted, Policy, GateFacts], Refusal | None]


def check_gates(attempted: Attempted, policy: Policy, facts: GateFacts) -> Refusal | None:
    """The first gate's refusal, or None where a repeat may start."""
    for check in GATES.values():
        refusal = check(attempted, policy, facts)
        if refusal is not None:
            return refusal
    return None


def _source_fenced(attempted: Attempted, policy: Policy, facts: GateFacts) -> Refusal | None:
    if facts.fenced:
        return None
    return Refusal(
        gate=Gate.SOURCE_FENCED,
        code=ErrorCode.SOURCE_ATTEMPT_NOT_FENCED,
        detail=f"attempt {attempted.attempts} may still be running: {attempted.failure.evidence}",
    )


def _attempts_left(attempted: Attempted, policy: Policy, facts: GateFacts) -> Refusal | None:
    row = CAUSES[attempted.failure.cause]
    if row.repeatable and attempted.attempts < policy.attempts_allowed:
        return None
    return Refusal(
        gate=Gate.ATTEMPTS_LEFT,
        code=row.refused_code,
        detail=f"{attempted.attempts} of {policy.attempts_allowed} attempts made; the last: {attempted.failure.evidence}",
    )


def _not_draining(attempted: Attempted, policy: Policy, facts: GateFacts) -> Refusal | None:
    if not facts.draining:
        return None
    return Refusal(gate=Gate.DRAINING, code=ErrorCode.DRAINING, detail="this processor is shutting down and starts no attempt")


def _retry_budget(attempted: Attempted, policy: Policy, facts: GateFacts) -> Refusal | None:
    if facts.budget_available:
        return None
    return Refusal(
        gate=Gate.RETRY_BUDGET,
        code=ErrorCode.RETRY_BUDGET_EXHAUSTED,
        detail=f"the pool's repeats are used up ({policy.retry_budget.percent} % of recent requests)",
    )


def _replay_cost(attempted: Attempted, policy: Policy, facts: GateFacts) -> Refusal | None:
    over = facts.replay_cost.over(policy.replay_cost, facts.client_deadline_left_ms)
    if over is None:
        return None
    return Refusal(gate=Gate.REPLAY_COST, code=ErrorCode.REPLAY_COST_EXCEEDED, detail=over)


def _tools(attempted: Attempted, policy: Policy, facts: GateFacts) -> Refusal | None:
    if not facts.tool_call_recorded or policy.tools is ToolsMode.LEDGER:
        return None
    return Refusal(
        gate=Gate.TOOLS,
        code=ErrorCode.TOOL_SIDE_EFFECTS_POSSIBLE,
        detail="a tool call was recorded during the attempt and this route does not protect its tools with the ledger",
    )


def _replica(attempted: Attempted, policy: Policy, facts: GateFacts) -> Refusal | None:
    if facts.candidate:
        return None
    overloaded = CAUSES[attempted.failure.cause].refused_code is ErrorCode.OVERLOADED
    return Refusal(
        gate=Gate.REPLICA,
        code=ErrorCode.OVERLOADED if overloaded else ErrorCode.NO_HEALTHY_REPLICA,
        detail="no other healthy replica of the same identity is left for this request",
    )


GATES: Final[dict[Gate, _Check]] = {
    Gate.SOURCE_FENCED: _source_fenced,
    Gate.ATTEMPTS_LEFT: _attempts_left,
    Gate.DRAINING: _not_draining,
    Gate.RETRY_BUDGET: _retry_budget,
    Gate.REPLAY_COST: _replay_cost,
    Gate.TOOLS: _tools,
    Gate.REPLICA: _replica,
}
"""In the order in which they are asked; ``check_gates`` relies on it."""
