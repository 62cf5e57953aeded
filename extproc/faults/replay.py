"""A kept request again: its decisions through the pure core, exactly, and its evidence before the judge (R18)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from extproc.decision.codec import decode, encode
from extproc.decision.events import Event
from extproc.decision.policy import Policy
from extproc.decision.request import InvariantBroken, Phase, RequestState, step
from extproc.faults.checker import check
from extproc.faults.invariants import Violation
from extproc.faults.points import point_of
from extproc.faults.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One decision, made again. ``difference``: what came out this time, where that is not what was recorded."""

    before: Phase
    after: Phase
    event: str
    effects: tuple[str, ...]
    difference: str | None = None


class NothingDecidedError(Exception):
    """The trace holds no decision: the request never reached a processor's table, or its gateway kept no decision log."""


def replay_decisions(trace: Trace) -> tuple[Replayed, ...]:
    """Feed every recorded event into today's table, from the beginning. Raises NothingDecidedError, ValueError."""
    if not trace.decisions or "policy" not in trace.decisions[0]:
        raise NothingDecidedError(f"{trace.evidence.name}: no decision is on record")
    policy = decode(Policy, trace.decisions[0]["policy"])
    state = RequestState()
    replayed = []
    for line in trace.decisions:
        state, one = _replay(state, line, policy)
        replayed.append(one)
    return tuple(replayed)


def judge_again(trace: Trace) -> tuple[Violation, ...]:
    """Today's judgement of the recorded evidence. Raises LookupError for a point that exists no more."""
    return check(trace.evidence, point_of(trace.point))


def _replay(state: RequestState, line: Mapping[str, Any], policy: Policy) -> tuple[RequestState, Replayed]:
    event: Event = decode(Event, line["event"])
    name = type(event).__name__
    try:
        after, effects = step(state, event, policy)
    except InvariantBroken as broken:
        return state, Replayed(before=state.phase, after=state.phase, event=name, effects=(), difference=str(broken))
    made = encode(effects)
    return after, Replayed(
        before=state.phase,
        after=after.phase,
        event=name,
        effects=tuple(type(effect).__name__ for effect in effects),
        difference=None if made == line["effects"] else f"{made} instead of {line['effects']}",
    )
