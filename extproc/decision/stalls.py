"""What stands still, since when, and over how many waits (R22, R23).

Any movement of any series counts as progress, per engine: vLLM 0.32 records neither steps nor tokens while a lone long prompt
is prefilled in chunks, and only the KV cache's use moves then (FACTS A). Gauges travel with the engine's own output, so even
their change proves a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from extproc.decision.backends import engine_key
from extproc.decision.exposition import PROOF, EngineReading, Page, Series
from extproc.decision.verdicts import Cause, HealthSettings, Knowledge, duration

Signature = Mapping[str, Mapping[Series, float]]


def signature_of(*engines: EngineReading) -> Signature:
    """All that could move on these engines."""
    return {engine_key(engine): engine.values for engine in engines}


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One thing that is watched for movement.

    ``waits`` counts looks that found it unmoved since ``still_since_ms``. ``proof_since_ms`` and ``proof_waits`` count only the
    time in which somebody was there to suffer from it, as far as the caller knows.
    """

    signature: Signature
    still_since_ms: int
    counted_at_ms: int
    proof_since_ms: int
    waits: int = 0
    proof_waits: int = 0

    @classmethod
    def begin(cls, signature: Signature, now_ms: int) -> "Track":
        return cls(signature=signature, still_since_ms=now_ms, counted_at_ms=now_ms, proof_since_ms=now_ms)

    def after(self, signature: Signature, now_ms: int, settings: HealthSettings) -> "Track":
        """One more look: it moved, or it stood still for another wait, or too little time passed to tell."""
        if signature != self.signature:
            return Track.begin(signature, now_ms)
        return self.waited(now_ms) if now_ms - self.counted_at_ms >= settings.wait_ms_min else self

    def waited(self, now_ms: int) -> "Track":
        """One more wait without movement."""
        return replace(self, waits=self.waits + 1, proof_waits=self.proof_waits + 1, counted_at_ms=now_ms)

    def unwitnessed(self, now_ms: int) -> "Track":
        """Nobody of ours is there: standing still proves nothing yet, and what is proved later starts from here."""
        return replace(self, proof_since_ms=now_ms, proof_waits=0)

    def heard(self, at_ms: int | None) -> "Track":
        """Output that reached the caller since then is movement too, whatever the series say."""
        return self if at_ms is None or at_ms <= self.still_since_ms else Track.begin(self.signature, at_ms)

    def is_proof(self, now_ms: int, settings: HealthSettings) -> bool:
        """Whether both the waits and the grace have passed."""
        return self.proof_waits >= settings.waits_min and now_ms - self.proof_since_ms >= settings.hung_after_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracks:
    """Everything that is watched on one replica.

    ``unheard`` exists while this gateway's attempts are there and the metrics show no work; ``unanswered`` while an idle
    engine owes a short answer. ``moved`` says whether the last look found any movement.
    """

    engines: Mapping[str, Track]
    unheard: Track | None = None
    unanswered: Track | None = None
    moved: bool = False

    def after(self, page: Page, settings: HealthSettings, now_ms: int, knowledge: Knowledge | None) -> "Tracks":
        """Compare one more page of the same process."""
        heard_at_ms = knowledge.last_output_at_ms if knowledge else None
        engines: dict[str, Track] = {}
        for engine in page.engines:
            signature = signature_of(engine)
            before = self.engines.get(engine_key(engine), Track.begin(signature, now_ms))
            track = before.after(signature, now_ms, settings) if engine.in_flight else Track.begin(signature, now_ms)
            # Output can only be laid at an engine's door where there is one engine.
            track = track.heard(heard_at_ms) if len(page.engines) == 1 else track
            engines[engine_key(engine)] = track.unwitnessed(now_ms) if is_nobody_there(knowledge) else track
        moved = any(
            track.signature != self.engines[key].signature or (track.waits == 0 and self.engines[key].waits > 0)
            for key, track in engines.items()
            if key in self.engines
        )
        return Tracks(
            engines=engines,
            unheard=self._unheard_after(page, settings, now_ms, knowledge),
            unanswered=None if moved or page.in_flight else self.unanswered,
            moved=moved,
        )

    def _unheard_after(self, page: Page, settings: HealthSettings, now_ms: int, knowledge: Knowledge | None) -> Track | None:
        if knowledge is None or not knowledge.attempts_in_flight or page.in_flight:
            return None
        signature = signature_of(*page.engines)
        before = self.unheard or Track.begin(signature, now_ms)
        return before.after(signature, now_ms, settings).heard(knowledge.last_output_at_ms)

    def after_no_answer(self, page: Page, asked_at_ms: int, now_ms: int) -> "Tracks":
        """An idle engine let the deadline for one token pass."""
        before = self.unanswered or Track.begin(signature_of(*page.engines), asked_at_ms)
        return replace(self, unanswered=before.waited(now_ms))

    def anew(self, now_ms: int) -> "Tracks":
        """Patience begins again, for instance because the engine was paused until now."""
        return Tracks(
            engines={key: Track.begin(track.signature, now_ms) for key, track in self.engines.items()},
            unheard=self.unheard and Track.begin(self.unheard.signature, now_ms),
            unanswered=self.unanswered and Track.begin(self.unanswered.signature, now_ms),
        )


def is_nobody_there(knowledge: Knowledge | None) -> bool:
    """Whether the caller knows that no request of its own is on the replica."""
    return knowledge is not None and not knowledge.attempts_in_flight


NOTHING_TRACKED: Final = Tracks(engines={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Something stood still over at least one wait; ``unprovable`` says why that can't be called hung now."""

    cause: Cause
    track: Track
    words: str
    unprovable: str = ""
    missing: tuple[Series, ...] = ()


def find_stall(page: Page, tracks: Tracks, now_ms: int, knowledge: Knowledge | None) -> Stall | None:
    """What has stood still the longest, or None."""
    stalls = [
        _standing_engine(engine, tracks.engines[engine_key(engine)], len(page.engines) > 1, now_ms, knowledge)
        for engine in page.engines
        if engine.in_flight
    ]
    if tracks.unheard is not None and knowledge is not None:
        stalls.append(_unheard_attempts(tracks.unheard, knowledge, now_ms))
    if tracks.unanswered is not None:
        stalls.append(_missing_answer(tracks.unanswered, now_ms))
    waited = [stall for stall in stalls if stall.track.waits]
    # What can be proved goes first: an engine that may only look still must not hide one that does stand still.
    return min(waited, key=lambda stall: (bool(stall.unprovable or stall.missing), stall.track.still_since_ms), default=None)


def _standing_engine(
    engine: EngineReading, track: Track, is_one_of_several: bool, now_ms: int, knowledge: Knowledge | None
) -> Stall:
    steps = engine.values.get(Series.STEPS)
    stand = "" if steps is None else f" (steps stand at {steps:.0f})"
    label = f"engine {engine.engine}: " if is_one_of_several else ""
    return Stall(
        cause=Cause.ENGINE_STANDS_STILL,
        track=track,
        words=f"{label}{load_words(engine)}; nothing moved in {duration(now_ms - track.still_since_ms)}{stand}",
        # Another gateway's requests may be there; that gateway then holds the proof, and nothing here waits for it.
        unprovable="no request of ours is there, and gauges freeze after a mass cancel" if is_nobody_there(knowledge) else "",
        missing=engine.missing(PROOF),
    )


def _unheard_attempts(track: Track, knowledge: Knowledge, now_ms: int) -> Stall:
    return Stall(
        cause=Cause.ATTEMPT_UNHEARD,
        track=track,
        words=f"0 running by its metrics, yet {knowledge.attempts_in_flight} of our attempts wait there; "
        f"nothing moved or came in {duration(now_ms - track.still_since_ms)}",
    )


def _missing_answer(track: Track, now_ms: int) -> Stall:
    return Stall(
        cause=Cause.NO_ANSWER_WHEN_IDLE,
        track=track,
        words=f"nothing runs or waits by its metrics, yet {track.waits} short answers did not come "
        f"and nothing moved in {duration(now_ms - track.still_since_ms)}",
    )


def load_words(engine: EngineReading) -> str:
    """``2 running``, ``2 running, 3 waiting``."""
    waiting = engine.values[Series.WAITING]
    return f"{engine.values[Series.RUNNING]:.0f} running" + (f", {waiting:.0f} waiting" if waiting else "")


_MOVEMENT_WORDS: Final = (
    (Series.STEPS, "steps"),
    (Series.GENERATED_TOKENS, "tokens"),
    (Series.PROMPT_TOKENS, "prompt tokens"),
    (Series.FINISHED_REQUESTS, "requests finished"),
)


def movement_words(before: EngineReading, after: EngineReading) -> str:
    """What moved between two readings of one engine, in the words that say most: ``107 steps``; empty if nothing did."""
    for series, word in _MOVEMENT_WORDS:
        gained = after.values.get(series, 0.0) - before.values.get(series, 0.0)
        if gained > 0:
            return f"{gained:.0f} {word}"
    for series in sorted(after.values):
        if after.values[series] != before.values.get(series):
            return f"{series.value} {before.values.get(series, 0.0):.6g} -> {after.values[series]:.6g}"
    return ""
