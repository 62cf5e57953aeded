"""Counts what the witness tells: one rule per kind of event."""

from collections.abc import Callable
from typing import Final

from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiOperationNameValues

from extproc.decision.causes import Cause
from extproc.decision.effects import Outcome
from extproc.decision.gates import Gate
from extproc.decision.policy import Mode
from extproc.journal.records import EventKind, RequestFacts
from extproc.telemetry import instruments as metric
from extproc.telemetry.meters import Meters
from extproc.telemetry.names import BoundedValues
from extproc.telemetry.series import Labels
from extproc.telemetry.witness import Transition, TurnedAway

NONE: Final = "none"
"""A label without a value: Prometheus can't tell an empty one from a missing one."""

OPERATIONS: Final = {"completions": GenAiOperationNameValues.TEXT_COMPLETION.value}
"""API to operation, in the words of the semantic conventions; the others are all chats."""


def operation_of(api: str) -> str:
    """``gen_ai.operation.name`` of an API."""
    return OPERATIONS.get(api, GenAiOperationNameValues.CHAT.value)


class RequestMetrics:
    """A subscriber that counts."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._models = BoundedValues()
        self._routes = BoundedValues()
        self._begun: set[str] = set()
        for cause in Cause:
            meters.begin(metric.FENCES, {"proof": NONE, "cause": cause})
        self._rules: Final[dict[EventKind, Callable[[Transition], None]]] = {
            EventKind.ATTEMPT_STARTED: self._attempt_started,
            EventKind.FIRST_DELTA_SENT: self._first_delta_sent,
            EventKind.ATTEMPT_FAILED: self._attempt_failed,
            EventKind.FENCED: self._fence_settled,
            EventKind.FENCE_GIVEN_UP: self._fence_settled,
            EventKind.REPEAT_REFUSED: self._repeat_refused,
            EventKind.ENDED: self._ended,
        }

    def saw(self, transition: Transition) -> None:
        """An admitted request has moved."""
        self._count_phase(transition)
        rule = self._rules.get(transition.event.kind)
        if rule is not None:
            rule(transition)

    def turned_away(self, turned_away: TurnedAway) -> None:
        """A request was not admitted."""
        self._meters.count(metric.TURNED_AWAY, {"api": turned_away.api, "code": turned_away.code})

    def _count_phase(self, transition: Transition) -> None:
        before, after = transition.phase_before, transition.after.phase
        if before == after:
            return
        if before is not None:
            self._meters.move(metric.ACTIVE, {"phase": before}, -1)
        if transition.event.kind is not EventKind.ENDED:
            self._meters.move(metric.ACTIVE, {"phase": after}, 1)

    def _begin(self, model: str) -> None:
        """What alerts count, from a model's first request on."""
        self._begun.add(model)
        for gate in Gate:
            self._meters.begin(metric.REPEATS, {"model": model, "decision": "refused", "gate": gate})
        self._meters.begin(metric.REPEATS, {"model": model, "decision": "passed", "gate": "all"})

    def _attempt_started(self, transition: Transition) -> None:
        facts = transition.after
        model, is_repeat = self._model(facts), len(facts.attempts) > 1
        if model not in self._begun:
            self._begin(model)
        self._meters.count(metric.ATTEMPTS, {"model": model, "repeat": "true" if is_repeat else "false"})
        if is_repeat:
            self._meters.count(metric.REPEATS, {"model": model, "decision": "passed", "gate": "all"})
        if facts.retry_budget is not None:
            self._meters.set(metric.BUDGET, {"model": model}, facts.retry_budget)

    def _first_delta_sent(self, transition: Transition) -> None:
        facts = transition.after
        self._meters.record(metric.FIRST_DELTA, self._gen_ai(facts), _seconds(transition.event.at_ms - facts.admitted_at_ms))

    def _attempt_failed(self, transition: Transition) -> None:
        labels = {"model": self._model(transition.after), "cause": _text(transition, "cause"), "boundary": "before"}
        self._meters.count(metric.FAILURES, labels)

    def _fence_settled(self, transition: Transition) -> None:
        attempt = next((each for each in transition.after.attempts if each.attempt_id == transition.event.attempt_id), None)
        proof = _text(transition, "proof")
        self._meters.count(metric.FENCES, {"proof": proof, "cause": (attempt and attempt.cause) or NONE})
        if attempt is not None and attempt.failed_at_ms is not None:
            lost_s = _seconds(transition.event.at_ms - attempt.failed_at_ms)
            self._meters.record(metric.FENCE_DURATION, {"proof": proof}, lost_s)

    def _repeat_refused(self, transition: Transition) -> None:
        labels = {"model": self._model(transition.after), "decision": "refused", "gate": _text(transition, "gate")}
        self._meters.count(metric.REPEATS, labels)

    def _ended(self, transition: Transition) -> None:
        facts = transition.after
        model, outcome, route = self._model(facts), facts.outcome or NONE, self._routes.of(facts.route) or NONE
        code, reason = facts.error_code or NONE, facts.reason or NONE
        self._meters.count(
            metric.REQUESTS,
            {
                "mode": str(facts.traits.get("mode", Mode.ENFORCE)),
                "api": facts.api,
                "route": route,
                "model": model,
                "outcome": outcome,
                "code": code,
                "reason": reason,
            },
        )
        self._meters.count(metric.DELIVERED, {"model": model, "outcome": outcome}, facts.delivered_output_tokens)
        if outcome == Outcome.INTERRUPTED:
            self._meters.count(metric.FAILURES, {"model": model, "cause": reason, "boundary": "after"})
        would = transition.event.detail.get("enforce_would")
        if would is not None:
            labels = {"route": route, "outcome": outcome, "would": str(would), "code": _text(transition, "enforce_code")}
            self._meters.count(metric.OBSERVED, labels)
        error = {} if outcome == Outcome.COMPLETED else {metric.ERROR: facts.error_code or reason}
        duration_s = _seconds(transition.event.at_ms - facts.admitted_at_ms)
        self._meters.record(metric.DURATION, {**self._gen_ai(facts), **error}, duration_s)

    def _model(self, facts: RequestFacts) -> str:
        return self._models.of(facts.model) or NONE

    def _gen_ai(self, facts: RequestFacts) -> Labels:
        return {metric.OPERATION: operation_of(facts.api), metric.MODEL: self._model(facts)}


def _text(transition: Transition, key: str) -> str:
    value = transition.event.detail.get(key)
    return NONE if value is None else str(value)


def _seconds(ms: int) -> float:
    """The wall clock may be set back meanwhile; a histogram takes nothing below zero."""
    return max(0, ms) / 1000
