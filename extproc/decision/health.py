"""Health: what came of a look goes in, a verdict with its evidence and the next look come out (R20-R27, DESIGN section 8).

    history, judgement = judge(history, observation, settings, now_ms, knowledge)

The caller waits until ``judgement.next.at_ms``, takes ``judgement.next.look``, and judges again. That order is the whole
safety of it: a short answer is only ever the next look of an idle engine (R21), and ``hung`` takes two waits, the grace, and
the question whether the engine was paused.

What is never evidence for ``hung``: a look that failed or timed out, an HTTP error (a restart causes those, R27), a missing
series, a proxy's numbers (R25).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from extproc.decision.findings import Doubt, Finding, History, Moment, is_engine_dead, judge_failure, kept, unknown
from extproc.decision.looks import Look, Observation, Outcome
from extproc.decision.readings import judge_metrics
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

_Rule = Callable[[History, Moment], tuple[History, Finding]]


def judge(
    history: History,
    observation: Observation,
    settings: HealthSettings,
    now_ms: int,
    knowledge: Knowledge | None = None,
) -> tuple[History, Judgement]:
    """Take one observation into account. ``observation`` should be of the look that the last judgement asked for."""
    moment = Moment(observation=observation, settings=settings, now_ms=now_ms, knowledge=knowledge)
    history, finding = _RULES[observation.look](history, moment)
    if finding.verdict is Verdict.HUNG:
        history = replace(history, doubt=Doubt(verdict=Verdict.UNKNOWN, words="was hung, and has not answered since"))
    last = history.judgement
    due_ms = history.looked_at_ms + settings.interval_ms
    ordinary = NextLook(
        look=Look.MODELS if history.is_proxy else Look.METRICS,
        # A short answer that took longer than the interval is followed by a pause: others wait for the turn to ask for theirs.
        at_ms=due_ms if due_ms > now_ms else now_ms + settings.interval_ms,
    )
    judgement = Judgement(
        verdict=finding.verdict,
        evidence=finding.evidence,
        placement=finding.placement or PLACEMENT[finding.verdict],
        at_ms=now_ms if finding.is_confirmed else last.at_ms,
        since_ms=last.since_ms if (last.verdict, last.cause) == (finding.verdict, finding.cause) else now_ms,
        next=ordinary if finding.look is None else NextLook(look=finding.look, at_ms=now_ms),
        cause=finding.cause,
    )
    return replace(history, judgement=judgement), judgement


def current(judgement: Judgement, settings: HealthSettings, now_ms: int) -> Judgement:
    """The judgement as it stands at a later moment: one that nobody confirmed for too long is unknown (K8-06)."""
    age_ms = now_ms - judgement.at_ms
    if not judgement.is_placeable or age_ms <= settings.stale_after_ms:
        return judgement
    return replace(
        judgement,
        verdict=Verdict.UNKNOWN,
        placement=Placement.WITHHELD,
        since_ms=judgement.at_ms + settings.stale_after_ms,
        evidence=f"not looked at for {duration(age_ms)}; was {judgement.verdict}: {judgement.evidence}",
    )


def _judge_models(history: History, moment: Moment) -> tuple[History, Finding]:
    history = replace(history, looked_at_ms=moment.now_ms)
    observation = moment.observation
    if observation.models is not None:
        words = f"a proxy: /v1/models lists {observation.models}; its backends are to be checked directly"
        history = replace(history, has_answered=True, good_at_ms=moment.now_ms)
        return history, Finding(verdict=Verdict.REACHABLE, evidence=words)
    if observation.is_ok:
        return replace(history, has_answered=True), Finding(
            verdict=Verdict.UNKNOWN, evidence="/v1/models answered 200 without a list of models"
        )
    history, finding = judge_failure(history, moment)
    return history, replace(finding, look=None)


def _judge_health(history: History, moment: Moment) -> tuple[History, Finding]:
    observation, was = moment.observation, history.judgement
    if observation.outcome is Outcome.REFUSED:
        return judge_failure(history, moment)
    if observation.status == 503 and history.has_answered:
        words = "its /health answers 503: it says itself that its engine is dead"
        return history, Finding(verdict=Verdict.DEAD, evidence=words, cause=Cause.ENGINE_DEAD)
    if not observation.is_ok:
        return history, unknown(history, moment, was.evidence) if was.verdict is Verdict.UNKNOWN else kept(history)
    history = replace(history, has_answered=True)
    if is_engine_dead(history):
        words = "its /health answers 200 again, and has not answered a request since"
        return replace(history, doubt=Doubt(verdict=Verdict.RESTARTED, words=words)), Finding(
            verdict=Verdict.RESTARTED, evidence=words
        )
    if was.verdict in (Verdict.STARTING, Verdict.UNKNOWN):
        words = f"{was.evidence}; /health answers 200"
        history = replace(history, good_at_ms=moment.now_ms)
        return history, Finding(verdict=Verdict.UNKNOWN, evidence=words, placement=Placement.LAST_RESORT)
    return history, kept(history)


def _judge_paused(history: History, moment: Moment) -> tuple[History, Finding]:
    proof = history.proof
    if proof is None:
        return history, kept(history)
    history = replace(history, proof=None)
    if moment.observation.paused:
        words = f"paused by its operator (/is_paused): {proof.words}"
        doubt = Doubt(verdict=Verdict.PAUSED, words=words)
        return replace(history, tracks=history.tracks.anew(moment.now_ms), doubt=doubt), Finding(
            verdict=Verdict.PAUSED, evidence=words
        )
    return history, Finding(verdict=Verdict.HUNG, evidence=proof.words, cause=proof.cause)


def _judge_short_answer(history: History, moment: Moment) -> tuple[History, Finding]:
    observation, latest = moment.observation, history.latest
    if observation.is_ok:
        return _judge_answered(history, moment, f"a short answer came in {duration(observation.took_ms)}")
    if observation.outcome is Outcome.GAVE_WAY or observation.status == 429 or latest is None:
        return history, kept(history)
    if observation.outcome is Outcome.READ_TIMEOUT:
        tracks = history.tracks.after_no_answer(latest.page, moment.now_ms - observation.took_ms, moment.now_ms)
        words = f"nothing runs or waits by its metrics, yet a short answer did not come in {duration(observation.took_ms)}"
        history = replace(history, tracks=tracks)
        if history.judgement.verdict in (Verdict.HUNG, Verdict.PAUSED):
            return history, kept(history)
        return history, Finding(verdict=Verdict.SUSPECT, evidence=words)
    if observation.outcome is not Outcome.ANSWERED:
        return judge_failure(history, moment)
    if observation.status < 500:
        return _judge_answered(history, moment, f"it can't be asked (a short answer got {observation.status})")
    words = f"a short answer failed with {observation.status}; errors never count towards a restart (R27)"
    history = replace(history, doubt=Doubt(verdict=Verdict.UNKNOWN, words=words))
    return history, Finding(verdict=Verdict.UNKNOWN, evidence=words, look=Look.HEALTH)


def _judge_answered(history: History, moment: Moment, words: str) -> tuple[History, Finding]:
    history = replace(
        history,
        doubt=None,
        tracks=replace(history.tracks, unanswered=None),
        answered_at_ms=moment.now_ms,
        answer_words=words,
    )
    return history, Finding(verdict=Verdict.IDLE, evidence=f"nothing runs or waits; {words}")


_RULES: Final[dict[Look, _Rule]] = {
    Look.METRICS: judge_metrics,
    Look.MODELS: _judge_models,
    Look.HEALTH: _judge_health,
    Look.PAUSED: _judge_paused,
    Look.SHORT_ANSWER: _judge_short_answer,
}
