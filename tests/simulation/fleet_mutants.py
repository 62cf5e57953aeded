"""The product with one promise broken; each must be caught by the simulation of fleets, under the name of that promise."""

from dataclasses import replace
from typing import Final

from extproc.decision import effects, events
from extproc.decision.effects import InterruptStream
from extproc.decision.policy import Policy, RetryBudgetPolicy
from extproc.decision.request import TABLE, Phase, RequestState, step
from extproc.faults.invariants import Invariant
from extproc.processor.pools import Pool
from tests.simulation.fleet import FleetRules
from tests.simulation.mutants import CancelAcknowledgedOnReceipt, ClockComparedAcrossMachines

Decided = tuple[RequestState, tuple[effects.Effect, ...]]


class RepeatsAfterTheBoundary(FleetRules):
    """The decode row is the prefill row: a broken answer is started again."""

    def decide(self, state: RequestState, event: events.Event, policy: Policy) -> Decided:
        if state.phase is Phase.DECODE and isinstance(event, events.AttemptFailed):
            return TABLE[Phase.PREFILL][events.AttemptFailed](state, event, policy)
        return step(state, event, policy)


class IgnoresTheBudget(FleetRules):
    def budget_available(self, pool: Pool, terms: RetryBudgetPolicy, now_ms: int) -> bool:
        return True

    def take_repeat(self, pool: Pool, terms: RetryBudgetPolicy, now_ms: int) -> None:
        pass


class DoesNotTakeRepeatsFromTheBudget(FleetRules):
    def take_repeat(self, pool: Pool, terms: RetryBudgetPolicy, now_ms: int) -> None:
        pass


class SkipsTheFence(FleetRules):
    """A cancel is taken for acknowledged before it was sent."""

    def assumes_fences(self) -> bool:
        return True


class CountsNoAttempts(FleetRules):
    def decide(self, state: RequestState, event: events.Event, policy: Policy) -> Decided:
        return step(state, event, replace(policy, max_attempts=99))


class ForgetsToCancel(FleetRules):
    """An attempt that nobody wants runs on with its lease renewed."""

    def cancels(self) -> bool:
        return False


class DeliversUnrecorded(FleetRules):
    def records_the_boundary(self) -> bool:
        return False


class RepeatsOnAnyRevision(FleetRules):
    def may_serve(self, identity: str | None, revision: str) -> bool:
        return True


class InterruptsTwice(FleetRules):
    def decide(self, state: RequestState, event: events.Event, policy: Policy) -> Decided:
        after, decided = step(state, event, policy)
        return after, (*decided, *(effect for effect in decided if isinstance(effect, InterruptStream)))


class LeavesWithoutAWord(FleetRules):
    """A refused request's client is told nothing."""

    def decide(self, state: RequestState, event: events.Event, policy: Policy) -> Decided:
        after, decided = step(state, event, policy)
        return after, tuple(effect for effect in decided if not isinstance(effect, effects.AnswerError))


class WritesDownASuccess(FleetRules):
    def decide(self, state: RequestState, event: events.Event, policy: Policy) -> Decided:
        after, decided = step(state, event, policy)
        return after, tuple(
            replace(effect, outcome=effects.Outcome.COMPLETED) if isinstance(effect, effects.RecordOutcome) else effect
            for effect in decided
        )


class LeasesWithCancelsAcknowledgedOnReceipt(FleetRules):
    lease = CancelAcknowledgedOnReceipt()


class LeasesWithClocksCompared(FleetRules):
    lease = ClockComparedAcrossMachines()


MUTANTS: Final[dict[type[FleetRules], Invariant]] = {
    RepeatsAfterTheBoundary: Invariant.NO_ATTEMPT_AFTER_DELIVERY,
    IgnoresTheBudget: Invariant.ATTEMPTS_BOUNDED,
    DoesNotTakeRepeatsFromTheBudget: Invariant.ATTEMPTS_BOUNDED,
    SkipsTheFence: Invariant.ONE_PUBLISHER,
    CountsNoAttempts: Invariant.ATTEMPTS_BOUNDED,
    ForgetsToCancel: Invariant.STOPPED_IN_TIME,
    DeliversUnrecorded: Invariant.RECORDED_BEFORE_DELIVERED,
    RepeatsOnAnyRevision: Invariant.ONE_VOICE,
    InterruptsTwice: Invariant.ONE_ENDING,
    LeavesWithoutAWord: Invariant.ONE_ENDING,
    WritesDownASuccess: Invariant.JOURNAL_AGREES,
    LeasesWithCancelsAcknowledgedOnReceipt: Invariant.ONE_PUBLISHER,
    LeasesWithClocksCompared: Invariant.ONE_PUBLISHER,
}
"""Each with the promise that must be found broken; others may be, too."""
