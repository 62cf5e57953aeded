"""A guard on a real uvicorn in this process, on a clock that the test moves."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import uvicorn

from extproc.worker import LeaseGuard
from extproc.worker.settings import GuardSettings
from tests.unit.worker.guarded_replica import TOKEN, GuardedReplica, ScriptedApp


@pytest.fixture
def settings(tmp_path: Path) -> GuardSettings:
    return GuardSettings(token=TOKEN.encode(), state_dir=tmp_path)


@pytest.fixture
def http() -> str:
    """uvicorn's HTTP parser; vLLM's images have httptools, and where it is missing uvicorn falls back to h11."""
    return "httptools"


@pytest.fixture
async def replica(http: str, settings: GuardSettings) -> AsyncIterator[GuardedReplica]:
    app = ScriptedApp()
    listener = socket.create_server(("127.0.0.1", 0))
    async with aiohttp.ClientSession() as session:
        replica = GuardedReplica(url=f"http://127.0.0.1:{listener.getsockname()[1]}", app=app, session=session)
        guard = LeaseGuard(app, settings=settings, now_ms=lambda: replica.now_ms)
        replica.guard = guard
        server = uvicorn.Server(uvicorn.Config(guard, lifespan="off", log_config=None, http=http))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            replica.boot_id = (await (await replica.heartbeat()).json())["boot_id"]
            yield replica
        finally:
            await replica.leave()
            server.should_exit = True
            await serving
            guard.close()
