"""The picture's geometry: what came first is drawn left, and nothing is too short to be seen."""

import pytest

from extproc.app.status.timeline import HAIR, LEFT, TICKS_MAX, WIDTH, draw, length
from extproc.journal.records import EventKind, fold_all
from tests.unit.telemetry.events import BEGIN_MS, FIRST, HERE, INTERRUPTED, REFUSED, REPEATED, admitted, happened


def drawn(events, now_ms: int = 0):
    return draw(fold_all(events), events, now_ms)


def test_phases_follow_one_another_without_gaps() -> None:
    request = drawn(REPEATED).rows[0]
    assert [bar.kind for bar in request.bars] == ["admitted", "prefill", "fencing", "prefill", "decode"]
    for before, after in zip(request.bars, request.bars[1:], strict=False):
        assert before.x + before.width == pytest.approx(after.x, abs=HAIR)
    assert request.bars[0].x == LEFT
    assert request.bars[-1].x + request.bars[-1].width == pytest.approx(WIDTH - 12)


def test_each_attempt_has_its_row_with_its_fence() -> None:
    _, first, second = drawn(REPEATED).rows
    assert [bar.kind for bar in first.bars] == ["attempt", "fence"]
    assert first.bars[0].x + first.bars[0].width == pytest.approx(first.bars[1].x, abs=HAIR)
    assert [bar.kind for bar in second.bars] == ["attempt"]
    assert second.bars[0].x > first.bars[1].x
    assert first.bars[1].label == "fence: 250 ms"


def test_boundary_stands_between_prefill_and_decode() -> None:
    request, attempt = drawn(INTERRUPTED).rows
    boundary, end = request.marks
    assert (boundary.kind, end.kind) == ("boundary", "bad-end")
    assert request.bars[-1].kind == "decode"
    assert boundary.x == request.bars[-1].x
    assert boundary.label == "first delta sent at 200 ms"
    assert [mark.kind for mark in attempt.marks] == ["cancel"]


def test_fence_that_was_given_up_looks_like_none() -> None:
    assert [bar.kind for bar in drawn(REFUSED).rows[1].bars] == ["attempt", "no-fence"]


def test_three_milliseconds_in_an_hour_are_still_seen() -> None:
    events = (*REPEATED[:-1], happened(EventKind.ENDED, 3_600_000, outcome="completed", reason="finished"))
    assert all(bar.width >= HAIR for row in drawn(events).rows for bar in row.bars)


def test_open_request_reaches_to_now_and_has_no_end() -> None:
    events = (admitted(), happened(EventKind.ATTEMPT_STARTED, 1, FIRST, HERE))
    request = drawn(events, now_ms=BEGIN_MS + 5_000).rows[0]
    assert request.marks == ()
    assert request.bars[-1].label == "prefill: 5.0 s"


@pytest.mark.parametrize("end_ms", [0, 1, 7, 999, 12_345, 3_600_000, 10**9])
def test_scale_has_few_ticks_inside_the_picture(end_ms: int) -> None:
    ticks = drawn((admitted(), happened(EventKind.ENDED, end_ms, outcome="completed"))).ticks
    assert 1 <= len(ticks) <= TICKS_MAX + 1
    assert all(LEFT <= tick.x <= WIDTH for tick in ticks)


def test_clock_that_was_set_back_draws_nothing_outside() -> None:
    events = (
        admitted(),
        happened(EventKind.ATTEMPT_STARTED, -500, FIRST, HERE),
        happened(EventKind.ENDED, -100, outcome="failed"),
    )
    assert all(LEFT <= bar.x <= WIDTH for row in drawn(events).rows for bar in row.bars)


@pytest.mark.parametrize(("ms", "text"), [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (61_000, "1 min 1 s")])
def test_lengths_are_for_people(ms: int, text: str) -> None:
    assert length(ms) == text
