"""A request's timeline as geometry: bars, marks and a scale, for the picture on its page. Pure.

Time runs linearly from the admission to the end (or to now). What would be narrower than a hair is drawn as one, since a
fence of 3 ms in an answer of a minute is still what the reader has come for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from extproc.decision.effects import Outcome
from extproc.journal.records import EventKind, JournalEvent, RequestFacts

LEFT: Final = 96.0
"""Room for the rows' names, in the picture's units."""
WIDTH: Final = 720.0
ROW_HEIGHT: Final = 34.0
TOP: Final = 28.0
HAIR: Final = 2.0
TICKS_MAX: Final = 6
STEPS_MS: Final = tuple(factor * 10**power for power in range(12) for factor in (1, 2, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch of time. ``kind`` is its class in the style sheet."""

    kind: str
    x: float
    width: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment. ``kind`` is its class in the style sheet."""

    kind: str
    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The request, or one of its attempts."""

    name: str
    y: float
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A moment on the scale."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The whole picture."""

    width: float
    height: float
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]


class _Scale:
    def __init__(self, begin_ms: int, end_ms: int) -> None:
        self.begin_ms = begin_ms
        self.length_ms = max(1, end_ms - begin_ms)

    def x(self, at_ms: int) -> float:
        share = min(1.0, max(0.0, (at_ms - self.begin_ms) / self.length_ms))
        return round(LEFT + share * (WIDTH - LEFT - 12), 1)

    def bar(self, kind: str, from_ms: int, to_ms: int) -> Bar:
        x = self.x(from_ms)
        return Bar(kind=kind, x=x, width=max(HAIR, round(self.x(to_ms) - x, 1)), label=f"{kind}: {length(to_ms - from_ms)}")

    def mark(self, kind: str, at_ms: int, label: str) -> Mark:
        return Mark(kind=kind, x=self.x(at_ms), label=f"{label} at {length(at_ms - self.begin_ms)}")


def draw(facts: RequestFacts, events: Sequence[JournalEvent], now_ms: int) -> Timeline:
    """The timeline of one request. ``events`` are in order; an open request's reaches to ``now_ms``."""
    end_ms = facts.ended_at_ms if facts.ended_at_ms is not None else max(now_ms, facts.admitted_at_ms)
    scale = _Scale(facts.admitted_at_ms, end_ms)
    rows = [Row(name="request", y=TOP, bars=_phases(scale, events, end_ms), marks=_request_marks(scale, facts))]
    for number, attempt in enumerate(facts.attempts, start=1):
        own = [event for event in events if event.attempt_id == attempt.attempt_id]
        rows.append(_attempt_row(scale, number, own, end_ms))
    height = TOP + ROW_HEIGHT * len(rows) + 6
    return Timeline(width=WIDTH, height=height, rows=tuple(rows), ticks=_ticks(scale))


def length(ms: int) -> str:
    """A length of time for people."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms // 60_000} min {ms % 60_000 // 1000} s"


def _phases(scale: _Scale, events: Sequence[JournalEvent], end_ms: int) -> tuple[Bar, ...]:
    """The phases one after the other, each from the event that began it."""
    begins: list[tuple[str, int]] = []
    crossed = False
    for event in events:
        crossed = crossed or event.kind is EventKind.FIRST_DELTA_SENT
        match event.kind:
            case EventKind.ADMITTED:
                begins.append(("admitted", event.at_ms))
            case EventKind.ATTEMPT_STARTED:
                begins.append(("prefill", event.at_ms))
            case EventKind.ATTEMPT_FAILED if not crossed:
                begins.append(("fencing", event.at_ms))
            case EventKind.FIRST_DELTA_SENT:
                begins.append(("decode", event.at_ms))
    ends = [at_ms for _, at_ms in begins[1:]] + [end_ms]
    return tuple(scale.bar(phase, from_ms, to_ms) for (phase, from_ms), to_ms in zip(begins, ends, strict=True))


def _request_marks(scale: _Scale, facts: RequestFacts) -> tuple[Mark, ...]:
    marks = []
    if facts.first_delta_at_ms is not None:
        marks.append(scale.mark("boundary", facts.first_delta_at_ms, "first delta sent"))
    if facts.ended_at_ms is not None:
        kind = "good-end" if facts.outcome == Outcome.COMPLETED else "bad-end"
        marks.append(scale.mark(kind, facts.ended_at_ms, str(facts.outcome)))
    return tuple(marks)


def _attempt_row(scale: _Scale, number: int, events: Sequence[JournalEvent], end_ms: int) -> Row:
    at = {event.kind: event.at_ms for event in events}
    started_ms = at.get(EventKind.ATTEMPT_STARTED, scale.begin_ms)
    failed_ms, cancelled_ms = at.get(EventKind.ATTEMPT_FAILED), at.get(EventKind.CANCEL_SENT)
    settled_ms = at.get(EventKind.FENCED, at.get(EventKind.FENCE_GIVEN_UP))
    over_ms = min(moment for moment in (failed_ms, cancelled_ms, end_ms) if moment is not None)
    bars = [scale.bar("attempt", started_ms, over_ms)]
    marks = []
    if failed_ms is not None:
        fence = "fence" if EventKind.FENCED in at else "no-fence"
        bars.append(scale.bar(fence, failed_ms, settled_ms if settled_ms is not None else end_ms))
        marks.append(scale.mark("failure", failed_ms, "failed"))
    if cancelled_ms is not None:
        marks.append(scale.mark("cancel", cancelled_ms, "told to stop"))
    if EventKind.RESPONSE_STARTED in at:
        marks.append(scale.mark("head", at[EventKind.RESPONSE_STARTED], "response head"))
    return Row(name=f"attempt {number}", y=TOP + ROW_HEIGHT * number, bars=tuple(bars), marks=tuple(marks))


def _ticks(scale: _Scale) -> tuple[Tick, ...]:
    step_ms = next((step for step in STEPS_MS if scale.length_ms / step <= TICKS_MAX), STEPS_MS[-1])
    moments = range(0, scale.length_ms + 1, step_ms)
    return tuple(Tick(x=scale.x(scale.begin_ms + moment), label=length(moment) if moment else "0") for moment in moments)
