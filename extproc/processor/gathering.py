"""Deltas of many streams wait for each other, for a millisecond at most, and share the wake-ups that each would cost alone.

What a delta costs in the kernel and in the transport (threads woken, completions fetched, system calls) is paid once per turn of
the loop where several go in one. With few streams nothing waits: a delta that comes a millisecond after the last goes at once.
"""

import asyncio
from collections.abc import Callable
from typing import Final

GATHER_S: Final = 0.001
"""Two milliseconds save nothing more (measured), and clients see tokens tens of milliseconds apart."""

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

    def add(self, hand_on: HandOn) -> None:
        """A Gather: at once where the last time was ``GATHER_S`` ago, else together with all that is added meanwhile."""
        if self._waiting:
            self._waiting.append(hand_on)
            return
        now_s = self._loop.time()
        if now_s - self._last_s >= GATHER_S:
            self._last_s = now_s
            hand_on()
            return
        self._waiting.append(hand_on)
        self._loop.call_later(GATHER_S, self._hand_all_on)

    def _hand_all_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._last_s = self._loop.time()
        for hand_on in waiting:
            try:
                hand_on()
            except Exception as error:  # one stream's fault may not cost the others their deltas
                self._loop.call_exception_handler({"message": "a delta could not be handed on", "exception": error})
