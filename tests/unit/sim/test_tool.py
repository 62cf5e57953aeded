"""An attempt that acts outside: its call carries the request's key, not the attempt's (R12)."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from extproc.sim.faults import Fault, What, Where

ASK = {"messages": [{"role": "user", "content": "x"}], "stream": True, "metadata": {"sim_tool": "charge"}}
Send = Callable[..., Awaitable]


@pytest.fixture
async def tool() -> AsyncIterator[tuple[str, list]]:
    calls: list[tuple[dict[str, str], bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        calls.append((dict(request.headers), await request.read()))
        return web.json_response({"done": True})

    app = web.Application()
    app.router.add_post("/charge", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/charge", calls
    await runner.cleanup()


async def test_tool_is_called_before_the_first_token(own_replica: Callable[..., object], send: Send, tool: tuple) -> None:
    url, calls = tool
    async with own_replica(tool_url=url, faults=(Fault(where=Where.AFTER_TOOL, what=What.CLOSE, times=1),)) as replica:
        headers = {"x-deltafence-request-id": "req_1", "x-deltafence-attempt-id": "att_1"}
        cut = await (await send(replica, ASK, headers=headers)).read_to_end()
        assert (cut.end, cut.text) == ("cut", "")
        whole = await (await send(replica, ASK, headers=headers)).read_to_end()
        assert whole.end == "clean"
        records = await replica.log()
    assert [(call["x-deltafence-request-id"], call["x-deltafence-tool-call"]) for call, _ in calls] == [("req_1", "call_07")] * 2
    assert calls[0][1] == calls[1][1]
    assert [record["tool_calls"][0]["status"] for record in records] == [200, 200]
    assert records[1]["tool_calls"][0]["at"] < records[1]["first_token_at"]


async def test_request_without_the_mark_calls_nothing(own_replica: Callable[..., object], send: Send, tool: tuple) -> None:
    url, calls = tool
    async with own_replica(tool_url=url) as replica:
        await (await send(replica)).read_to_end()
    assert calls == []


async def test_unreachable_tool_is_on_record(own_replica: Callable[..., object], send: Send) -> None:
    async with own_replica(tool_url="http://127.0.0.1:9/") as replica:
        assert (await (await send(replica, ASK)).read_to_end()).end == "clean"
        assert (await replica.log())[0]["tool_calls"][0]["status"] == 0
