"""What comes close together is handed on together, in order, and what comes alone is not kept waiting."""

from collections.abc import Callable
from typing import Any

import pytest

from extproc.processor.attempt import AnswerKind, Attempt, AttemptOver, AttemptSignal, BodyReceived
from extproc.processor.gathering import TURN_S_MAX, TURN_S_MIN, TURN_S_PER_DELTA, Gathering, HandOn
from tests.unit.processor.stage import A


class FakeLoop:
    """A loop whose clock and timers the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due: list[Callable[[], None]] = []
        self.delay_s = 0.0
        self.faults: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.due.append(callback)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context)

    def advance(self) -> None:
        self.now_s += self.delay_s
        due, self.due = self.due, []
        for callback in due:
            callback()


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def gathering(loop: FakeLoop) -> Gathering:
    return Gathering(loop)  # type: ignore[arg-type]


def test_what_comes_alone_is_handed_on_at_once(loop: FakeLoop, gathering: Gathering):
    handed_on: list[int] = []
    for number in range(3):
        gathering.add(lambda number=number: handed_on.append(number))
        assert handed_on[-1] == number
        loop.now_s += TURN_S_MIN
    assert loop.due == []


def test_what_follows_closely_goes_together_in_its_order(loop: FakeLoop, gathering: Gathering):
    handed_on: list[int] = []
    for number in range(4):
        gathering.add(lambda number=number: handed_on.append(number))
    assert handed_on == [0]
    assert len(loop.due) == 1
    loop.advance()
    assert handed_on == [0, 1, 2, 3]


def test_nothing_overtakes_what_waits(loop: FakeLoop, gathering: Gathering):
    handed_on: list[int] = []
    for number in range(2):
        gathering.add(lambda number=number: handed_on.append(number))
    loop.now_s += 10 * TURN_S_MIN  # the timer is late
    gathering.add(lambda: handed_on.append(2))
    assert handed_on == [0]
    loop.advance()
    assert handed_on == [0, 1, 2]


@pytest.mark.parametrize(("deltas", "turn_s"), [(2, TURN_S_MIN), (9, 8 * TURN_S_PER_DELTA), (500, TURN_S_MAX)])
def test_the_more_a_turn_had_the_longer_is_the_next(loop: FakeLoop, gathering: Gathering, deltas: int, turn_s: float):
    def nothing() -> None:
        pass

    for _ in range(deltas):  # the first goes at once
        gathering.add(nothing)
    assert loop.delay_s == TURN_S_MIN
    loop.advance()
    gathering.add(nothing)
    assert loop.delay_s == pytest.approx(turn_s)


def test_a_pause_makes_turns_short_again(loop: FakeLoop, gathering: Gathering):
    handed_on: list[int] = []
    for number in range(500):
        gathering.add(lambda number=number: handed_on.append(number))
    loop.advance()
    loop.now_s += 2 * TURN_S_MAX
    gathering.add(lambda: handed_on.append(500))
    assert handed_on[-1] == 500
    gathering.add(lambda: handed_on.append(501))
    assert loop.delay_s == TURN_S_MIN


def test_one_stream_s_fault_costs_the_others_nothing(loop: FakeLoop, gathering: Gathering):
    handed_on: list[int] = []

    def fail() -> None:
        raise LookupError("a fault")

    gathering.add(fail)
    gathering.add(lambda: handed_on.append(1))
    gathering.add(fail)
    gathering.add(lambda: handed_on.append(3))
    loop.advance()
    assert handed_on == [1, 3]
    assert [str(fault["exception"]) for fault in loop.faults] == ["a fault", "a fault"]


class Gathered:
    """An attempt past its boundary, whose gathering the test empties, and what came of its bytes."""

    def __init__(self, *, relays: bool = True) -> None:
        self.relays = relays
        self.waiting: list[HandOn] = []
        self.relayed: list[bytes] = []
        self.signals: list[AttemptSignal] = []
        self.attempt = Attempt(
            number=1, attempt_id="att_1", replica=A, started_ms=0, put=self.signals.append, gather=self.waiting.append
        )
        self.attempt.kind = AnswerKind.EVENTS
        self.attempt.relay = self.relay

    def relay(self, data: bytes) -> bool:
        if self.relays:
            self.relayed.append(data)
        return self.relays

    def hand_all_on(self) -> None:
        waiting, self.waiting[:] = self.waiting[:], []
        for hand_on in waiting:
            hand_on()


def test_pieces_that_come_meanwhile_are_one():
    gathered = Gathered()
    gathered.attempt.body_received(b"a")
    gathered.attempt.body_received(b"b")
    assert len(gathered.waiting) == 1
    gathered.hand_all_on()
    gathered.attempt.body_received(b"c")
    gathered.hand_all_on()
    assert (gathered.relayed, gathered.signals) == ([b"ab", b"c"], [])


def test_what_is_not_relayed_is_signalled_once_and_kept():
    gathered = Gathered(relays=False)
    gathered.attempt.body_received(b"a")
    gathered.hand_all_on()
    gathered.attempt.body_received(b"b")
    gathered.hand_all_on()
    assert gathered.signals == [BodyReceived(gathered.attempt)]
    assert gathered.attempt.take() == b"ab"


@pytest.mark.parametrize("relays", [True, False])
def test_the_end_does_not_overtake_what_was_gathered(*, relays: bool):
    gathered = Gathered(relays=relays)
    gathered.attempt.body_received(b"a")
    gathered.attempt.attempt_ended(None)
    over = AttemptOver(gathered.attempt, None)
    assert gathered.relayed == ([b"a"] if relays else [])
    assert gathered.signals == ([over] if relays else [BodyReceived(gathered.attempt), over])
    gathered.hand_all_on()
    assert len(gathered.signals) == (1 if relays else 2)


def test_nothing_of_a_closed_attempt_is_handed_on():
    gathered = Gathered()
    gathered.attempt.body_received(b"a")
    gathered.attempt.close()
    gathered.hand_all_on()
    assert (gathered.relayed, gathered.signals) == ([], [])
