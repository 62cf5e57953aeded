"""The one place where a session waits: everything that concerns its request comes through here, in order."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

Signal = TypeVar("Signal")


class Inbox(Generic[Signal]):
    """A queue for one reader on one event loop. Not bounded: what feeds it bounds itself (see Attempt.body_received)."""

    def __init__(self) -> None:
        self._signals: deque[Signal] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the reader waits, and nothing has come for it: no signal, and no cancellation."""
        return self._waiter is not None and not self._waiter.done()

    def put(self, signal: Signal) -> None:
        """Add a signal and wake the reader."""
        self._signals.append(signal)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Nobody reads any more: forget what has come, and what it holds."""
        self._signals.clear()

    async def get(self) -> Signal:
        """The oldest signal; waits for one. Only one reader at a time."""
        while not self._signals:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._signals.popleft()
