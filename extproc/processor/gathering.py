"""Deltas of many streams wait for each other, for milliseconds, and share the wake-ups that each would cost alone.

What a delta costs in the kernel and in the transport (threads woken, completions fetched, system calls) is paid once per turn of
the loop where several go in one. With few streams nothing waits: a delta that comes a millisecond after the last goes at once.
The more there is to do, the longer is a turn, so that a processor with much to do spends less on each.
"""

import asyncio
from collections.abc import Callable
from typing import Final

TURN_S_MIN: Final = 0.001
TURN_S_MAX: Final = 0.005
"""Clients see tokens tens of milliseconds apart; longer turns save little more (measured)."""
TURN_S_PER_DELTA: Final = 0.000_25
"""For each delta of the turn before: from 4,000 deltas a second on, turns grow to their longest."""

HandOn = Callable[[], None]
"""Hands on what has come for one stream."""
Gather = Callable[[HandOn], None]
"""Takes something to hand on, and does so soon."""


def at_once(hand_on: HandOn) -> None:
    """Gather nothing."""
    hand_on()


class Gathering:
    """What one event loop has to hand on, in the order in which it came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[HandOn] = []
        self._last_s = 0.0
        self._turn_s = TURN_S_MIN

    def add(self, hand_on: HandOn) -> None:
        """A Gather: at once where the last time was a turn ago, else together with all that is added meanwhile."""
        if self._waiting:
            self._waiting.append(hand_on)
            return
        now_s = self._loop.time()
        if now_s - self._last_s >= self._turn_s:
            self._last_s = now_s
            self._turn_s = TURN_S_MIN
            self._hand_on(hand_on)
            return
        self._waiting.append(hand_on)
        self._loop.call_later(self._turn_s, self._hand_all_on)

    def _hand_all_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._last_s = self._loop.time()
        self._turn_s = min(TURN_S_MAX, max(TURN_S_MIN, TURN_S_PER_DELTA * len(waiting)))
        for hand_on in waiting:
            self._hand_on(hand_on)

    def _hand_on(self, hand_on: HandOn) -> None:
        """One stream's fault may not cost the others their deltas, or the connection that their attempts share."""
        try:
            hand_on()
        except Exception as error:
            self._loop.call_exception_handler({"message": "a delta could not be handed on", "exception": error})
