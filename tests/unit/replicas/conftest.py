from collections.abc import AsyncIterator

import aiohttp
import pytest

from extproc.replicas.guard_client import GuardClient
from tests.unit.replicas.scripted_guard import TOKEN, Clock, ScriptedGuard, scripted_guard


@pytest.fixture
async def guard() -> AsyncIterator[ScriptedGuard]:
    async with scripted_guard() as guard:
        yield guard


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(clock: Clock) -> AsyncIterator[GuardClient]:
    async with aiohttp.ClientSession() as session:
        yield GuardClient(session=session, token=TOKEN, clock_ms=clock)
