"""deltafence drain: the order of its steps, its limit, and an Envoy that is gone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from extproc.app import drain_command
from extproc.app.drain_command import drain, drain_envoy

RUNNING = "http.front.downstream_rq_active"


class AdminOfEnvoy:
    """Envoy's admin interface, as far as a drain asks it; ``running`` is what each look at the gauge shows."""

    def __init__(self, running: list[int]) -> None:
        self.running = running
        self.posted: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.posted.append(request.path_qs)
            return web.Response()
        value = self.running.pop(0) if len(self.running) > 1 else self.running[0]
        return web.json_response({"stats": [{"name": RUNNING, "value": value}]})


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


@pytest.fixture
async def admin(socket: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdminOfEnvoy]:
    monkeypatch.setattr(drain_command, "POLL_S", 0)
    admin = AdminOfEnvoy([0])
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", admin.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    yield admin
    await runner.cleanup()


async def test_streams_end_before_the_front_closes(admin: AdminOfEnvoy, socket: Path) -> None:
    admin.running = [3, 2, 1, 0]
    assert await drain_envoy(socket, settle_s=0, limit_s=60) == 0
    assert admin.posted == ["/healthcheck/fail", "/drain_listeners?graceful&inboundonly", "/drain_listeners?inboundonly"]
    assert admin.running == [0]


async def test_a_request_that_slipped_in_has_its_time_too(admin: AdminOfEnvoy, socket: Path) -> None:
    admin.running = [0, 1, 1, 0]
    assert await drain_envoy(socket, settle_s=0, limit_s=60) == 0
    assert admin.running == [0]


async def test_at_the_limit_the_rest_is_left_to_the_processor(admin: AdminOfEnvoy, socket: Path) -> None:
    admin.running = [2]
    assert await drain_envoy(socket, settle_s=5, limit_s=0) == 2
    assert admin.posted[-1] == "/drain_listeners?inboundonly"


def test_an_envoy_that_is_gone_does_not_hold_up_a_stop(socket: Path) -> None:
    result = CliRunner().invoke(drain, ["--envoy-admin", str(socket)])
    assert result.exit_code == 0
    assert "Envoy does not answer" in result.output


@pytest.mark.parametrize(("left", "said"), [(0, "every stream has ended"), (2, "2 streams are left to the processor")])
def test_it_says_how_it_ended(socket: Path, monkeypatch: pytest.MonkeyPatch, left: int, said: str) -> None:
    async def ended(admin_socket: Path, *, settle_s: float, limit_s: float) -> int:
        assert (admin_socket, settle_s, limit_s) == (socket, 3.0, 90.0)
        return left

    monkeypatch.setattr(drain_command, "drain_envoy", ended)
    result = CliRunner().invoke(drain, ["--envoy-admin", str(socket), "--settle", "3s", "--limit", "90s"])
    assert (result.exit_code, result.output) == (0, f"{said}\n")
