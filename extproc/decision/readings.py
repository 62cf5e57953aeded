"""The rules for a reading of ``/metrics``: restarted, several backends, asleep, standing still, busy, idle (R21-R25)."""

from dataclasses import replace

from extproc.decision.backends import Backend, engine_key
from extproc.decision.exposition import Page, Series
from extproc.decision.findings import Doubt, Finding, History, Moment, Reading, is_engine_dead, judge_failure, kept, unknown
from extproc.decision.looks import Look
from extproc.decision.stalls import NOTHING_TRACKED, Stall, find_stall, load_words, movement_words
from extproc.decision.verdicts import Cause, Verdict, duration


def judge_metrics(history: History, moment: Moment) -> tuple[History, Finding]:
    history = replace(history, looked_at_ms=moment.now_ms)
    page = moment.observation.page
    if page is None:
        return judge_failure(history, moment)
    history = replace(history, has_answered=True, proof=None)
    if page.missing:
        names = ", ".join(f"vllm:{series}" for series in page.missing)
        words = f"{names} {'is' if len(page.missing) == 1 else 'are'} missing from /metrics"
        return history, unknown(history, moment, words, look=Look.HEALTH)
    backends, backend = history.backends.after(page)
    history = replace(
        history,
        backends=backends,
        previous=history.latest,
        latest=Reading(page=page, at_ms=moment.now_ms),
        good_at_ms=moment.now_ms,
    )
    if backend is Backend.SEVERAL:
        words = "start times or counters jump between readings: several backends answer here, so it is a proxy"
        return replace(history, is_proxy=True), Finding(verdict=Verdict.UNKNOWN, evidence=words, look=Look.MODELS)
    if backend is Backend.RESTARTED:
        doubt = Doubt(verdict=Verdict.RESTARTED, words="another process than at the last reading")
        history = replace(history, previous=None, tracks=NOTHING_TRACKED, doubt=doubt, answered_at_ms=None)
    tracks = history.tracks.after(page, moment.settings, moment.now_ms, moment.knowledge)
    history = replace(history, tracks=tracks, doubt=None if tracks.moved else history.doubt)
    if is_engine_dead(history) and not tracks.moved and backend is not Backend.RESTARTED:
        return history, replace(kept(history), look=Look.HEALTH)
    return _judge_load(history, page, moment)


def _judge_load(history: History, page: Page, moment: Moment) -> tuple[History, Finding]:
    if any(engine.values.get(Series.AWAKE) == 0 for engine in page.engines):
        asleep = Finding(verdict=Verdict.PAUSED, evidence="asleep: vllm:engine_sleep_state says that it is not awake")
        return replace(history, tracks=history.tracks.anew(moment.now_ms)), asleep
    stall = find_stall(page, history.tracks, moment.now_ms, moment.knowledge)
    if stall is not None:
        return _judge_stall(history, page, stall, moment)
    if not page.in_flight:
        return history, _judge_idle(history, page, moment)
    load = ", ".join(filter(None, (_engine_words(history, page, index, moment) for index in range(len(page.engines)))))
    if history.doubt is not None:
        words = f"{history.doubt.words}; {load}, progress is judged at the next reading"
        return history, Finding(verdict=history.doubt.verdict, evidence=words)
    return history, Finding(verdict=Verdict.BUSY, evidence=load)


def _judge_idle(history: History, page: Page, moment: Moment) -> Finding:
    nothing = "nothing runs or waits"
    waiting = moment.knowledge.attempts_in_flight if moment.knowledge else 0
    if waiting:
        # An attempt of ours is on its way into the engine: it is the question, and nothing else is asked.
        verdict = history.doubt.verdict if history.doubt else Verdict.BUSY
        return Finding(verdict=verdict, evidence=f"{nothing} by its metrics; {waiting} of our attempts have just arrived")
    look = Look.SHORT_ANSWER if _may_ask(history, page, moment) else None
    if history.doubt is not None:
        return Finding(verdict=history.doubt.verdict, evidence=f"{history.doubt.words}; {nothing}", look=look)
    if history.answered_at_ms is None:
        return Finding(verdict=Verdict.IDLE, evidence=f"{nothing}; no short answer was asked for yet", look=look)
    ago = duration(moment.now_ms - history.answered_at_ms)
    return Finding(verdict=Verdict.IDLE, evidence=f"{nothing}; {history.answer_words} {ago} ago", look=look)


def _may_ask(history: History, page: Page, moment: Moment) -> bool:
    """Whether an idle engine may and should be asked for one token now."""
    if page.in_flight or not page.model or not history.backends.is_settled:
        return False
    if moment.knowledge and moment.knowledge.attempts_in_flight:
        return False
    if history.doubt or history.tracks.unanswered or history.answered_at_ms is None:
        return True
    return moment.now_ms - history.answered_at_ms >= moment.settings.answer_every_ms


def _judge_stall(history: History, page: Page, stall: Stall, moment: Moment) -> tuple[History, Finding]:
    was = history.judgement.verdict
    again = Look.SHORT_ANSWER if stall.cause is Cause.NO_ANSWER_WHEN_IDLE and _may_ask(history, page, moment) else None
    if was is Verdict.HUNG:
        # The proof stands until something moves; that those who suffered from it have left since does not undo it.
        return history, Finding(verdict=Verdict.HUNG, evidence=stall.words, cause=stall.cause, look=again)
    if stall.unprovable:
        words = f"{stall.words}; no proof of a hang: {stall.unprovable}"
        return history, Finding(verdict=Verdict.SUSPECT, evidence=words, look=Look.HEALTH)
    if not stall.track.is_proof(moment.now_ms, moment.settings):
        if was is Verdict.PAUSED:
            return history, kept(history)
        grace = f"hung after {moment.settings.waits_min} waits and {duration(moment.settings.hung_after_ms)}"
        return history, Finding(verdict=Verdict.SUSPECT, evidence=f"{stall.words} ({grace})", look=again or Look.HEALTH)
    if stall.missing:
        names = ", ".join(f"vllm:{series}" for series in stall.missing)
        return history, unknown(history, moment, f"{stall.words}; no proof of a hang without {names}", look=Look.HEALTH)
    verdict = was if was is Verdict.PAUSED else Verdict.SUSPECT
    return replace(history, proof=stall), Finding(verdict=verdict, evidence=stall.words, look=Look.PAUSED)


def _engine_words(history: History, page: Page, index: int, moment: Moment) -> str:
    """One engine's load and movement; empty where it has no work and is not alone."""
    engine = page.engines[index]
    if not engine.in_flight:
        return ""
    label = f"engine {engine.engine}: " if len(page.engines) > 1 else ""
    olds = {engine_key(old): old for old in history.previous.page.engines} if history.previous else {}
    before = olds.get(engine_key(engine))
    if history.previous is None or before is None:
        return f"{label}{load_words(engine)}; first reading"
    movement = movement_words(before, engine) or "nothing moved"
    return f"{label}{load_words(engine)}; {movement} in {duration(moment.now_ms - history.previous.at_ms)}"
