"""What SIGTERM, Ctrl-C and a closed terminal ask for."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """The first signal is a wish that ``wished`` tells; the second cancels the task that installed this."""

    def __init__(self) -> None:
        self.wished: Final = asyncio.Event()
        self.insisted = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Only in the main thread's event loop."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._receive, task)
        try:
            yield
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)

    def _receive(self, task: asyncio.Task[object]) -> None:
        if self.wished.is_set() and not self.insisted:
            self.insisted = True
            task.cancel()
        self.wished.set()
