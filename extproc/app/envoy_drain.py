"""Lets the running requests of an Envoy end: at a stop of ``deltafence up``, and in a pod's preStop hook.

An answer that comes late says nothing of the requests: a machine with too much to do is no reason to cut them. So Envoy is
asked again until the limit; only one that is gone ends the drain before.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from extproc.app.envoy_process import EnvoyAdmin

POLL_S: Final = 0.05

Answer = TypeVar("Answer")


async def drain_envoy(admin: EnvoyAdmin, *, limit_s: float, settle_s: float = 0.0) -> int:
    """Turn clients away and wait for the running requests; how many are left at the limit. Times are counted from the call.

    ``settle_s``: load balancers' time to look elsewhere. Raises aiohttp.ClientError where Envoy is gone, and TimeoutError where
    its last answer before the limit did not come.
    """
    deadline = time.monotonic() + limit_s
    await _insist(admin.start_drain, deadline)
    await asyncio.sleep(min(settle_s, limit_s))
    await _requests_left(admin, deadline)
    await _insist(admin.close_front, deadline)
    # A request may have slipped in between the last look and the closed door.
    return await _requests_left(admin, deadline)


async def _requests_left(admin: EnvoyAdmin, deadline: float) -> int:
    """Waits for none; how many there are at the deadline."""
    while True:
        running = await _insist(admin.running_requests, deadline)
        if running == 0 or time.monotonic() >= deadline:
            return running
        await asyncio.sleep(POLL_S)


async def _insist(ask: Callable[[], Awaitable[Answer]], deadline: float) -> Answer:
    """Asked again for as long as the answer is late. What a drain asks may be asked twice."""
    while True:
        try:
            return await ask()
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise
