"""A guard that says what the test tells it to, over real sockets."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from extproc.contract import headers
from extproc.contract.guard import HEARTBEAT_PATH

TOKEN = "a-shared-secret"


class Clock:
    """The processor's clock, which the test moves."""

    def __init__(self) -> None:
        self.now_ms = 70_000

    def __call__(self) -> int:
        return self.now_ms


class ScriptedGuard:
    """Its clock is a number that the test sets; while ``is_answering`` is cleared, calls arrive and are not answered."""

    def __init__(self) -> None:
        self.boot_id = "boot_a"
        self.now_ms = 1_000_000
        self.status = 200
        self.cancel_state = "stopped"
        self.body: bytes | None = None
        self.is_answering = asyncio.Event()
        self.is_answering.set()
        self.beats: list[dict[str, Any]] = []
        self.cancels: list[str] = []
        self.arrived = asyncio.Condition()
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._address: tuple[str, int] = ("127.0.0.1", 0)

    async def _answer(self, request: web.Request) -> web.Response:
        assert request.headers[headers.TOKEN] == TOKEN
        cancelled = re.fullmatch(r"/_deltafence/v1/attempts/([^/]+)/cancel", request.path)
        async with self.arrived:
            if request.path == HEARTBEAT_PATH:
                self.beats.append(await request.json())
            elif cancelled is not None:
                self.cancels.append(cancelled[1])
            self.arrived.notify_all()
        stamp = {"boot_id": self.boot_id, "now_ms": self.now_ms}
        await self.is_answering.wait()
        if self.body is not None:
            return web.Response(status=self.status, body=self.body)
        more = {"attempts": []} if cancelled is None else {"state": self.cancel_state, "published_chunks": 0}
        return web.json_response(stamp | more, status=self.status)

    async def heard(self, *, beats: int = 0, cancels: int = 0) -> None:
        """Wait until this many calls have arrived in all."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.beats) >= beats and len(self.cancels) >= cancels)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        listener = socket.create_server(self._address)
        self._address = listener.getsockname()
        self.url = f"http://127.0.0.1:{self._address[1]}"
        await web.SockSite(self._runner, listener).start()

    async def stop(self) -> None:
        """From here on connections are refused."""
        assert self._runner is not None
        self.is_answering.set()
        await self._runner.cleanup()


@asynccontextmanager
async def scripted_guard() -> AsyncIterator[ScriptedGuard]:
    guard = ScriptedGuard()
    await guard.start()
    try:
        yield guard
    finally:
        await guard.stop()
