"""A judgement as JSON: what ``/verdict``, ``deltafence health --json`` and the admin pages show.

Moments are told as seconds ago or from now, since the caller's clock means nothing elsewhere.
"""

from extproc.decision.backends import pair_engines
from extproc.decision.findings import History, Reading
from extproc.decision.liveness import Record
from extproc.decision.stalls import load_words, movement_words
from extproc.decision.verdicts import Judgement

Json = dict[str, object]


def encode_judgement(judgement: Judgement, now_ms: int) -> Json:
    """The verdict with its evidence, for how long it has held, and when it is looked at again."""
    return {
        "verdict": str(judgement.verdict),
        "evidence": judgement.evidence,
        "cause": None if judgement.cause is None else str(judgement.cause),
        "placement": str(judgement.placement),
        "for_s": _seconds(now_ms - judgement.since_ms),
        "judged_s_ago": _seconds(now_ms - judgement.at_ms),
        "next": {"look": str(judgement.next.look), "in_s": _seconds(judgement.next.at_ms - now_ms)},
    }


def encode_history(history: History, now_ms: int) -> Json:
    """The judgement with the two readings behind it, older first."""
    readings = [reading for reading in (history.previous, history.latest) if reading is not None]
    return encode_judgement(history.judgement, now_ms) | {
        "is_proxy": history.is_proxy,
        "readings": [_encode_reading(reading, now_ms) for reading in readings],
        "between": _encode_movement(history),
    }


def encode_record(record: Record, now_ms: int) -> list[Json]:
    """The restarts that were asked for, with their evidence, oldest first (R27)."""
    return [
        {"s_ago": _seconds(now_ms - demand.at_ms), "verdict": str(demand.verdict), "evidence": demand.evidence}
        for demand in record.demands
    ]


def _encode_reading(reading: Reading, now_ms: int) -> Json:
    return {
        "s_ago": _seconds(now_ms - reading.at_ms),
        "started_at_s": reading.page.started_at_s,
        "engines": [
            {"engine": engine.engine, "model": engine.model} | {str(series): value for series, value in engine.values.items()}
            for engine in reading.page.engines
        ],
    }


def _encode_movement(history: History) -> list[Json]:
    """What moved between the two readings, engine by engine."""
    if history.previous is None or history.latest is None:
        return []
    return [
        {"engine": after.engine, "load": load_words(after), "moved": movement_words(before, after) or None}
        for before, after in pair_engines(history.previous.page, history.latest.page)
    ]


def _seconds(ms: int) -> float:
    return round(ms / 1000, 3)
