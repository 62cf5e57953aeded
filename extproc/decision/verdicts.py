"""The words of health: verdicts, what each allows, and what a judgement is made of (DESIGN section 8).

Milliseconds are of one clock of the caller's that never goes back.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.decision.looks import Look


class Verdict(StrEnum):
    """What a replica is, as far as it is known."""

    STARTING = "starting"
    """Has never answered yet; never a reason to restart, however long it takes (K8-07)."""
    IDLE = "idle"
    BUSY = "busy"
    """Requests are in flight and the engine moves, however slowly (HL-10)."""
    SUSPECT = "suspect"
    """Work is in flight and nothing moved since the last look: not a failure yet (R23)."""
    HUNG = "hung"
    """Work is in flight, and nothing moved over both waits and the whole grace."""
    RESTARTED = "restarted"
    """Another process than at the last look; an answer is asked for before it counts as healthy (R24)."""
    DEAD = "dead"
    """Answered before, and now refuses connections or says itself that its engine is dead."""
    PAUSED = "paused"
    """Put to sleep or paused by its operator: standing still is what it was told to do (HL-09)."""
    REACHABLE = "reachable"
    """A proxy whose ``/v1/models`` answers. Its backends are judged by themselves (R25)."""
    UNKNOWN = "unknown"
    """No signal, a stale one, or one without the series that it takes. Never idle, never hung."""


class Placement(StrEnum):
    """Whether a new attempt may go there."""

    PREFERRED = "preferred"
    LAST_RESORT = "last_resort"
    """Only where no preferred replica is left."""
    WITHHELD = "withheld"


PLACEMENT: Final[dict[Verdict, Placement]] = {
    Verdict.STARTING: Placement.WITHHELD,
    Verdict.IDLE: Placement.PREFERRED,
    Verdict.BUSY: Placement.PREFERRED,
    Verdict.SUSPECT: Placement.LAST_RESORT,
    Verdict.HUNG: Placement.WITHHELD,
    Verdict.RESTARTED: Placement.WITHHELD,
    Verdict.DEAD: Placement.WITHHELD,
    Verdict.PAUSED: Placement.WITHHELD,
    Verdict.REACHABLE: Placement.PREFERRED,
    # A judgement may lift this one to LAST_RESORT, where the server is known to serve though its load is not.
    Verdict.UNKNOWN: Placement.WITHHELD,
}


class Cause(StrEnum):
    """The proof behind ``hung`` and ``dead``."""

    ENGINE_STANDS_STILL = "engine_stands_still"
    """Requests run or wait by its own metrics, and no series of that engine moved."""
    ATTEMPT_UNHEARD = "attempt_unheard"
    """The metrics show no work, yet attempts of this gateway hear nothing, and nothing moved."""
    NO_ANSWER_WHEN_IDLE = "no_answer_when_idle"
    """The metrics show no work, yet one token does not come, and nothing moved."""
    ENGINE_DEAD = "engine_dead"
    """The server itself says so: ``/health`` 503."""
    CONNECTION_REFUSED = "connection_refused"
    """Nothing listens any more. Also what a restart looks like from outside, so liveness is slow to act on it (R27)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """How patient health is. Raises ValueError where the values contradict each other."""

    interval_ms: int = 5_000
    """Between two readings of one replica. One reading costs vLLM a few ms of its API server, and the engine nothing."""
    waits_min: int = 2
    """Readings in a row without any movement before ``hung`` (R23). They must be at least half an interval apart."""
    hung_after_ms: int = 60_000
    """Standing still at least this long before ``hung``: longer than a first-use kernel compile or one slow step takes."""
    stale_after_ms: int = 20_000
    """A reading older than this says nothing (K8-06)."""
    answer_deadline_ms: int = 10_000
    """For one token of an idle engine, which takes milliseconds."""
    answer_every_ms: int = 60_000
    """An idle engine is asked for a token this often, at most."""

    def __post_init__(self) -> None:
        for name in ("interval_ms", "waits_min", "answer_deadline_ms", "answer_every_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.hung_after_ms < self.interval_ms:
            raise ValueError(f"hung_after_ms ({self.hung_after_ms}) must be at least interval_ms ({self.interval_ms})")
        if self.stale_after_ms < self.interval_ms:
            raise ValueError(f"stale_after_ms ({self.stale_after_ms}) must be at least interval_ms ({self.interval_ms})")

    @property
    def wait_ms_min(self) -> int:
        """Less than this between two readings is no wait: extra looks must not shorten the patience."""
        return max(1, self.interval_ms // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What the caller knows about a replica without asking it.

    ``attempts_in_flight`` counts the caller's own; 0 means that none of them is there, so that a gauge that froze after a
    mass cancel (FACTS A) proves nothing. ``last_output_at_ms`` is when content of any of them last came; keep-alive comments
    come from the API server and do not count.
    """

    attempts_in_flight: int
    last_output_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLook:
    """What to look at next, and not before when."""

    look: Look
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict with its evidence in words, and what to do next.

    ``since_ms`` is when this verdict began (of its cause, for hung and dead), ``at_ms`` when it was last confirmed.
    """

    verdict: Verdict
    evidence: str
    placement: Placement
    at_ms: int
    since_ms: int
    next: NextLook
    cause: Cause | None = None

    @property
    def is_placeable(self) -> bool:
        """Whether a new attempt may go there at all."""
        return self.placement is not Placement.WITHHELD


def duration(ms: float) -> str:
    """A length of time for a person: ``40 ms``, ``0.4 s``, ``12 s``, ``30 min``."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 1000:.0f} s" if ms < 600_000 else f"{ms / 60_000:.0f} min"
