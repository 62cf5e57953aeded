"""One session's timers: its deadlines, and the moments at which it has to look at something or say something."""

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from extproc.decision import events
from extproc.decision.policy import Policy


class Due(Enum):
    """Signal: a session's own timer."""

    KEEP_ALIVE = auto()
    """The route wants a sign of life towards the client."""
    LINGER = auto()
    """Every choice has finished and the stream's own last event did not come in time (CASES SSE-11)."""
    IDLE = auto()
    """Time to look how long the attempt has been silent."""


class Timers:
    """Puts a Due or a DeadlinePassed when its time has come. Times in milliseconds, as the policy has them.

    Invariant: of each there is one handle at most, however often a long request looks for silence or gives signs of life.
    """

    def __init__(self, policy: Policy, put: Callable[[Due | events.DeadlinePassed], None]) -> None:
        self._policy = policy
        self._put = put
        self._handles: dict[Due | events.DeadlinePassed, asyncio.TimerHandle] = {}

    def start(self, *, stream: bool) -> None:
        """The request begins. ``stream``: only a streamed answer can hold signs of life."""
        deadlines = self._policy.deadlines
        self._later(deadlines.first_delta_ms, events.DeadlinePassed(deadline=events.Deadline.FIRST_DELTA))
        self._later(deadlines.total_ms, events.DeadlinePassed(deadline=events.Deadline.TOTAL))
        if deadlines.idle_ms:
            self.look_for_silence(deadlines.idle_ms)
        if self._policy.keep_alive.after_ms and stream:
            self._later(self._policy.keep_alive.after_ms, Due.KEEP_ALIVE)

    def wait_for_last_event(self) -> None:
        """Every choice has finished: the stream's own last event has this long to come (CASES SSE-11)."""
        self._later(self._policy.deadlines.finish_linger_ms, Due.LINGER)

    def keep_alive_again(self) -> None:
        """A sign of life was given; the next one is due."""
        self._later(self._policy.keep_alive.interval_ms, Due.KEEP_ALIVE)

    def look_for_silence(self, after_ms: int) -> None:
        """Look how long the attempt has been silent."""
        self._later(after_ms, Due.IDLE)

    def cancel(self) -> None:
        """The session is over."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _later(self, delay_ms: int, signal: Due | events.DeadlinePassed) -> None:
        self._handles[signal] = asyncio.get_running_loop().call_later(delay_ms / 1000, self._put, signal)
