"""The worker's clock: one for all processes of a pod, and it goes on while the machine is suspended.

A lease must not grow by a suspension, so CLOCK_BOOTTIME is read where the system has it (Linux). Elsewhere the monotonic clock
serves, which is enough for development.
"""

import time
from collections.abc import Callable

NANOSECONDS_PER_MILLISECOND = 1_000_000

_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def worker_now_ms() -> int:
    """Milliseconds since an arbitrary start, rounded down, the same reading in every process of this machine."""
    return time.clock_gettime_ns(_CLOCK_ID) // NANOSECONDS_PER_MILLISECOND


ClockMs = Callable[[], int]
