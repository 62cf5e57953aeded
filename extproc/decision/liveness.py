"""When a verdict is a reason to restart: what ``/livez`` says, how often, and the record of it (R27).

The kubelet is the one restart authority; this only answers its question, and counts. A restart looks like an outage from
outside, so a refused connection is acted on only after the time that a model takes to load, and a limit per hour keeps a
server that no restart heals from being restarted for ever.
"""

from dataclasses import dataclass, replace
from typing import Final

from extproc.decision.verdicts import Cause, Judgement, Verdict, duration

HOUR_MS: Final = 3_600_000
RECORD_MAX: Final = 64
"""Demands kept for the record, beyond those that the limit needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSettings:
    """When ``/livez`` fails. Raises ValueError for values that make no sense."""

    restarts_per_hour_max: int = 2
    """A load of minutes makes more than that a loop. 0: never fail, only report."""
    refused_after_ms: int = 600_000
    """A refused connection must last this long: longer than the model takes to load after the kubelet restarted it."""
    engine_dead_after_ms: int = 30_000
    """vLLM ends itself within seconds of its engine's death; this is for one that was told to stay (HL-11)."""
    answered_for_ms: int = 120_000
    """A failing ``/livez`` is taken as acted on after this long. Then the next load is waited for, where connections are refused;
    and evidence that is older than this is no reason any more: the kubelet may be loading the model just now."""

    def __post_init__(self) -> None:
        for name in ("restarts_per_hour_max", "refused_after_ms", "engine_dead_after_ms"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, and is {getattr(self, name)}")
        if self.answered_for_ms < 1:
            raise ValueError(f"answered_for_ms must be at least 1, not {self.answered_for_ms}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One restart that was asked for, with its evidence. ``number`` tells the spells of one long outage apart."""

    at_ms: int
    since_ms: int
    number: int
    verdict: Verdict
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The demands so far, oldest first. Lives in the sidecar's memory, which outlives the model container's restarts."""

    demands: tuple[Demand, ...] = ()

    def within_hour(self, now_ms: int) -> int:
        return sum(1 for demand in self.demands if now_ms - demand.at_ms < HOUR_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """The answer to the kubelet, and why."""

    is_alive: bool
    reason: str


def answer_liveness(record: Record, judgement: Judgement, settings: LivenessSettings, now_ms: int) -> tuple[Record, Liveness]:
    """Whether the server should be left alone. One spell of a hang or an outage is one demand, however often it is asked."""
    number, words = _due(judgement, settings, now_ms)
    if number is None:
        return record, Liveness(is_alive=True, reason=words)
    if any((demand.since_ms, demand.number) == (judgement.since_ms, number) for demand in record.demands):
        return record, Liveness(is_alive=False, reason=words)
    made = record.within_hour(now_ms)
    if made >= settings.restarts_per_hour_max:
        limit = f"{made} of {settings.restarts_per_hour_max} restarts were asked for within the hour"
        return record, Liveness(is_alive=True, reason=f"{words}; not failing, since {limit}: a person is needed")
    demand = Demand(
        at_ms=now_ms, since_ms=judgement.since_ms, number=number, verdict=judgement.verdict, evidence=judgement.evidence
    )
    return replace(record, demands=(*record.demands, demand)[-RECORD_MAX:]), Liveness(is_alive=False, reason=words)


def _due(judgement: Judgement, settings: LivenessSettings, now_ms: int) -> tuple[int | None, str]:
    """Which restart of this spell is due now, or None, with the words for it."""
    words = f"{judgement.verdict}: {judgement.evidence}"
    lasted_ms, age_ms = now_ms - judgement.since_ms, now_ms - judgement.at_ms
    if judgement.cause is not None and age_ms > settings.answered_for_ms:
        return None, f"{words}; but nothing has confirmed that for {duration(age_ms)}"
    match judgement.verdict, judgement.cause:
        case Verdict.HUNG, _:
            return 0, words
        case Verdict.DEAD, Cause.ENGINE_DEAD:
            if lasted_ms >= settings.engine_dead_after_ms:
                return 0, words
            return None, f"{words}; for {duration(lasted_ms)}, of {duration(settings.engine_dead_after_ms)} until it counts"
        case Verdict.DEAD, _:
            spell_ms = settings.refused_after_ms + settings.answered_for_ms
            number, into_ms = divmod(lasted_ms, spell_ms)
            if into_ms >= settings.refused_after_ms:
                return number, words
            return None, f"{words}; for {duration(into_ms)}, of {duration(settings.refused_after_ms)} that a load may take"
        case _:
            return None, words
