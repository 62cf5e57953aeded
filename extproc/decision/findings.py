"""What the rules of health share: what they remember, what they may look at, and what they say.

``health.judge`` makes a judgement out of a finding; the rules are in ``readings`` (the metrics page) and ``health`` (the rest).
"""

from dataclasses import dataclass, field, replace

from extproc.decision.backends import Backends
from extproc.decision.exposition import Page
from extproc.decision.looks import Look, Observation, Outcome
from extproc.decision.stalls import NOTHING_TRACKED, Stall, Tracks
from extproc.decision.verdicts import (
    PLACEMENT,
    Cause,
    HealthSettings,
    Judgement,
    Knowledge,
    NextLook,
    Placement,
    Verdict,
    duration,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One page and when it was read."""

    page: Page
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why an idle replica does not count as idle until it has answered: its verdict and words until then."""

    verdict: Verdict
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is remembered of one replica between two looks.

    ``is_proxy`` is declared, or found and then kept. ``looked_at_ms`` is the last ordinary look, ``good_at_ms`` the last one that
    told something. ``proof`` is a stall that needs only the question whether the engine was paused to be called hung.
    """

    judgement: Judgement
    is_proxy: bool
    has_answered: bool
    previous: Reading | None = None
    latest: Reading | None = None
    looked_at_ms: int = 0
    good_at_ms: int | None = None
    backends: Backends = field(default_factory=Backends)
    tracks: Tracks = NOTHING_TRACKED
    doubt: Doubt | None = None
    answered_at_ms: int | None = None
    answer_words: str = ""
    proof: Stall | None = None

    @classmethod
    def begin(cls, now_ms: int, *, is_proxy: bool = False, expected_up: bool = False) -> "History":
        """A replica that was never looked at. ``expected_up``: a refused connection is dead, not starting."""
        first = NextLook(look=Look.MODELS if is_proxy else Look.METRICS, at_ms=now_ms)
        judgement = Judgement(
            verdict=Verdict.UNKNOWN if expected_up else Verdict.STARTING,
            evidence="not looked at yet",
            placement=PLACEMENT[Verdict.STARTING],
            at_ms=now_ms,
            since_ms=now_ms,
            next=first,
        )
        return cls(judgement=judgement, is_proxy=is_proxy, has_answered=expected_up, looked_at_ms=now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a rule may look at besides the history."""

    observation: Observation
    settings: HealthSettings
    now_ms: int
    knowledge: Knowledge | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a rule says; the rest of the judgement follows from it. Without ``look`` the next look is the ordinary one."""

    verdict: Verdict
    evidence: str
    look: Look | None = None
    cause: Cause | None = None
    placement: Placement | None = None
    is_confirmed: bool = True
    """False where an earlier proof is kept though this look told nothing."""


def judge_failure(history: History, moment: Moment) -> tuple[History, Finding]:
    """A look without a whole, good answer."""
    observation, was = moment.observation, history.judgement
    words = f"{observation.look}: {observation.words}"
    if observation.outcome is Outcome.REFUSED:
        history = replace(history, backends=history.backends.after_outage(), proof=None)
        if history.has_answered:
            return history, Finding(verdict=Verdict.DEAD, evidence=words, cause=Cause.CONNECTION_REFUSED)
    look = Look.HEALTH if observation.outcome is Outcome.ANSWERED and observation.look is Look.METRICS else None
    if not history.has_answered:
        since = duration(moment.now_ms - was.since_ms)
        return history, Finding(verdict=Verdict.STARTING, evidence=f"nothing has answered yet, for {since}; {words}", look=look)
    return history, unknown(history, moment, words, look=look)


def unknown(history: History, moment: Moment, words: str, look: Look | None = None) -> Finding:
    """Unknown; a placeable replica stays a last resort while its last good look is fresh, while content of an attempt there
    came lately (slow is not dead, R5), or while ``/health`` is still to be asked."""
    if history.judgement.verdict is Verdict.HUNG or is_engine_dead(history):
        # No new evidence does not undo a proof.
        return replace(kept(history), look=look, is_confirmed=False)
    output_at_ms = moment.knowledge.last_output_at_ms if moment.knowledge else None
    oldest_ms = moment.now_ms - moment.settings.stale_after_ms
    is_fresh = any(at_ms is not None and at_ms >= oldest_ms for at_ms in (history.good_at_ms, output_at_ms))
    is_lifted = history.judgement.is_placeable and (is_fresh or look is Look.HEALTH)
    placement = Placement.LAST_RESORT if is_lifted else Placement.WITHHELD
    return Finding(verdict=Verdict.UNKNOWN, evidence=words, look=look, placement=placement)


def kept(history: History) -> Finding:
    """The last judgement stands."""
    was = history.judgement
    return Finding(verdict=was.verdict, evidence=was.evidence, cause=was.cause, placement=was.placement)


def is_engine_dead(history: History) -> bool:
    return history.judgement.cause is Cause.ENGINE_DEAD
