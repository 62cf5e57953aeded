"""The drain of an Envoy: the order of its steps, its limit, and answers that come late or not at all."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from extproc.app import envoy_drain, envoy_process
from extproc.app.envoy_drain import drain_envoy
from extproc.app.envoy_process import EnvoyAdmin

RUNNING = "http.front.downstream_rq_active"


class AdminOfEnvoy:
    """Envoy's admin interface, as far as a drain asks it; ``running`` is what each look at the gauge shows."""

    def __init__(self) -> None:
        self.running = [0]
        self.posted: list[str] = []
        self.late: set[str] = set()
        """Paths, each of which gets no answer once."""
        self.silent = False

    async def answer(self, request: web.Request) -> web.Response:
        if self.silent or request.path in self.late:
            self.late.discard(request.path)
            await asyncio.Event().wait()
        if request.method == "POST":
            self.posted.append(request.path_qs)
            return web.Response()
        value = self.running.pop(0) if len(self.running) > 1 else self.running[0]
        return web.json_response({"stats": [{"name": RUNNING, "value": value}]})


@pytest.fixture
async def envoy(tmp_path: Path) -> AsyncIterator[AdminOfEnvoy]:
    envoy = AdminOfEnvoy()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", envoy.answer)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "admin.sock")).start()
    yield envoy
    await runner.cleanup()


@pytest.fixture
async def admin(envoy: AdminOfEnvoy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EnvoyAdmin]:
    monkeypatch.setattr(envoy_drain, "POLL_S", 0)
    async with EnvoyAdmin.at(tmp_path / "admin.sock") as admin:
        yield admin


@pytest.fixture
async def hasty(envoy: AdminOfEnvoy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EnvoyAdmin]:
    """By which an answer is soon late."""
    monkeypatch.setattr(envoy_process, "ADMIN_ANSWER_S_MAX", 0.2)
    async with EnvoyAdmin.at(tmp_path / "admin.sock") as admin:
        yield admin


async def test_requests_end_before_the_front_closes(admin: EnvoyAdmin, envoy: AdminOfEnvoy) -> None:
    envoy.running = [3, 2, 1, 0]
    assert await drain_envoy(admin, limit_s=60) == 0
    assert envoy.posted == ["/healthcheck/fail", "/drain_listeners?graceful&inboundonly", "/drain_listeners?inboundonly"]
    assert envoy.running == [0]


async def test_a_request_that_slipped_in_has_its_time_too(admin: EnvoyAdmin, envoy: AdminOfEnvoy) -> None:
    envoy.running = [0, 1, 1, 0]
    assert await drain_envoy(admin, limit_s=60) == 0
    assert envoy.running == [0]


async def test_at_the_limit_the_rest_is_left_to_the_processor(admin: EnvoyAdmin, envoy: AdminOfEnvoy) -> None:
    envoy.running = [2]
    assert await drain_envoy(admin, settle_s=5, limit_s=0) == 2
    assert envoy.posted[-1] == "/drain_listeners?inboundonly"


@pytest.mark.parametrize("late", ["/healthcheck/fail", "/drain_listeners", "/stats"])
async def test_an_answer_that_comes_late_cuts_no_request(hasty: EnvoyAdmin, envoy: AdminOfEnvoy, late: str) -> None:
    envoy.running = [2, 1, 0]
    envoy.late = {late}
    assert await drain_envoy(hasty, limit_s=60) == 0
    assert envoy.late == set()
    assert envoy.running == [0]
    assert set(envoy.posted) == {"/healthcheck/fail", "/drain_listeners?graceful&inboundonly", "/drain_listeners?inboundonly"}


async def test_an_envoy_that_stands_still_is_waited_for_until_the_limit_only(hasty: EnvoyAdmin, envoy: AdminOfEnvoy) -> None:
    envoy.silent = True
    with pytest.raises(TimeoutError):
        await drain_envoy(hasty, limit_s=0)


async def test_an_envoy_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    async with EnvoyAdmin.at(tmp_path / "nobody.sock") as admin:
        with pytest.raises(aiohttp.ClientConnectionError):
            await drain_envoy(admin, limit_s=3_600)
