"""One request's timeline as geometry: who did what, when, as everybody outside the processor saw it. Pure.

Rows from top to bottom: the client's socket, one row for each attempt at its replica, the processor's own words (journal and
decisions). Time runs linearly from the sending of the request to the last thing that is known of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from extproc.faults.answers import Answer
from extproc.faults.evidence import CONTENT_KINDS, AttemptEvidence, Evidence
from extproc.faults.expectations import Ending
from extproc.journal.records import EventKind

LEFT: Final = 92.0
WIDTH: Final = 860.0
ROW_HEIGHT: Final = 30.0
TOP: Final = 8.0
HAIR: Final = 1.5
TICKS: Final = 5
SHOWN_EVENTS: Final = {
    EventKind.FIRST_DELTA_SENT: "boundary",
    EventKind.ATTEMPT_FAILED: "failed",
    EventKind.FENCED: "fenced",
    EventKind.FENCE_GIVEN_UP: "failed",
    EventKind.REPEAT_REFUSED: "refused",
    EventKind.CANCEL_SENT: "cancel",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time; ``kind`` is its class in the style sheet, ``lane`` 0 the row's whole height, 1 its lower edge."""

    kind: str
    x: float
    width: float
    label: str
    lane: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment."""

    kind: str
    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Row:
    """One party."""

    name: str
    y: float
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment of the scale."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole timeline."""

    width: float
    height: float
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class _Scale:
    begin: float
    length: float

    def x(self, at: float) -> float:
        share = min(1.0, max(0.0, (at - self.begin) / self.length))
        return round(LEFT + share * (WIDTH - LEFT - 10), 1)

    def bar(self, kind: str, begin: float, end: float, label: str, lane: int = 0) -> Bar:
        x = self.x(begin)
        return Bar(kind, x, max(HAIR, round(self.x(end) - x, 1)), label, lane)

    def ms(self, at: float) -> str:
        return f"{(at - self.begin) * 1000:.0f} ms"


def draw(evidence: Evidence, answer: Answer) -> Picture:
    """The picture of one request."""
    begin, end = evidence.client.sent_at, max(_moments(evidence))
    scale = _Scale(begin, max(0.001, end - begin))
    rows = [_client(evidence, answer, scale)]
    rows += [_attempt(number, attempt, scale, end) for number, attempt in enumerate(evidence.attempts, start=1)]
    rows.append(_processor(evidence, scale))
    placed = tuple(Row(row.name, TOP + number * ROW_HEIGHT, row.bars, row.marks) for number, row in enumerate(rows))
    ticks = tuple(
        Tick(scale.x(begin + scale.length * step / TICKS), scale.ms(begin + scale.length * step / TICKS))
        for step in range(TICKS + 1)
    )
    return Picture(WIDTH, TOP + len(rows) * ROW_HEIGHT + 20, placed, ticks)


def _moments(evidence: Evidence) -> Iterator[float]:
    yield evidence.client.sent_at
    yield from (at for at in (evidence.client.over_at, evidence.client.closed_at) if at is not None)
    for attempt in evidence.attempts:
        yield from (at for at in (attempt.received_at, attempt.over_at) if at is not None)


def _client(evidence: Evidence, answer: Answer, scale: _Scale) -> Row:
    client = evidence.client
    marks = [Mark("delta", scale.x(at), f"{scale.ms(at)}: {text.strip()}") for at, text in answer.contents]
    bars = []
    if client.pieces:
        bars.append(
            scale.bar("delivery", client.pieces[0].at, client.pieces[-1].at, f"first byte at {scale.ms(client.pieces[0].at)}")
        )
    over = client.over_at
    if over is not None:
        bars.insert(0, scale.bar("waiting", client.sent_at, over, f"over at {scale.ms(over)}"))
        kind = "good" if answer.ending is Ending.COMPLETE else "bad"
        marks.append(Mark(kind, scale.x(over), f"{scale.ms(over)}: {answer.ending}"))
    return Row("client", 0, tuple(bars), tuple(marks))


def _attempt(number: int, attempt: AttemptEvidence, scale: _Scale, end: float) -> Row:
    over = attempt.over_at if attempt.over_at is not None else end
    bars = [
        scale.bar(
            "attempt", attempt.received_at, over, f"attempt {attempt.attempt_id}, ended {attempt.ended or 'with its process'}"
        )
    ]
    if attempt.first_lease_until is not None:
        until = min(attempt.first_lease_until, over)
        bars.append(scale.bar("lease", attempt.received_at, until, f"first grant until {scale.ms(attempt.first_lease_until)}", 1))
        if over > until:
            bars.append(scale.bar("renewed", until, over, "renewed by heartbeats", 1))
    if attempt.stopped_from is not None:
        stopped_until = min(attempt.stopped_until or end, end)
        bars.append(scale.bar("stopped", attempt.stopped_from, stopped_until, "its process is stopped"))
    chunks = [chunk for chunk in attempt.published if chunk.kind in CONTENT_KINDS]
    marks = [Mark("delta", scale.x(chunk.at), f"{scale.ms(chunk.at)}: published {chunk.text.strip()}") for chunk in chunks]
    if attempt.process_ended_at is not None:
        marks.append(Mark("fault", scale.x(attempt.process_ended_at), f"{scale.ms(attempt.process_ended_at)}: its process ends"))
    elif attempt.fault is not None:
        marks.append(Mark("fault", scale.x(_fault_at(attempt)), attempt.fault))
    return Row(f"{number} {attempt.replica}", 0, tuple(bars), tuple(marks))


def _fault_at(attempt: AttemptEvidence) -> float:
    """Its place is behind the last chunk before it; what came afterwards was let go on."""
    before = attempt.published[-1].at if attempt.published else attempt.received_at
    return before if attempt.ended != "fault" or attempt.ended_at is None else attempt.ended_at


def _processor(evidence: Evidence, scale: _Scale) -> Row:
    marks = []
    for entry in evidence.journal:
        at = entry.at_ms / 1000 - evidence.client.wall_offset_s
        kind = SHOWN_EVENTS.get(EventKind(entry.kind), "word")
        detail = ", ".join(f"{name} {value}" for name, value in entry.detail.items() if value is not None)
        marks.append(Mark(kind, scale.x(at), f"{scale.ms(at)}: {entry.kind} {detail}"))
    return Row("journal", 0, (), tuple(marks))
