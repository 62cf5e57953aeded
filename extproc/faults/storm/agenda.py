"""Virtual time: what will happen, in order. Things at one moment happen in the order in which they were put down."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Agenda:
    """A queue of calls by their moment; ``now_ms`` moves only in ``run_until``."""

    def __init__(self, *, begin_ms: float = 0.0) -> None:
        self.now_ms = begin_ms
        self.done = 0
        """Calls made so far."""
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._put = 0

    def after(self, delay_ms: float, action: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401  (the action's own)
        """Call ``action`` so much later."""
        assert delay_ms >= 0, f"{action} {delay_ms} ms ago"
        self._put += 1
        heappush(self._queue, (self.now_ms + delay_ms, self._put, action, arguments))

    def run_until(self, end_ms: float) -> None:
        """Let everything happen that is due before ``end_ms``, which is then the time."""
        while self._queue and self._queue[0][0] < end_ms:
            self.now_ms, _, action, arguments = heappop(self._queue)
            self.done += 1
            action(*arguments)
        self.now_ms = end_ms
