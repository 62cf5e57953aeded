"""Tool routes on the real Envoy: the ledger in front of a real HTTP server (R11, R12, R17.5)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import ToolEndpoint
from extproc.contract import headers as names
from extproc.decision.tool_call import CallState, ToolRoute
from extproc.links.listening import free_port
from extproc.processor import messages, protobuf
from extproc.processor.grpc_transport import BegunWrites, GrpcStream
from extproc.processor.tool_service import ToolService, ToolWorld
from extproc.replicas.http1_attempt_client import Http1AttemptClient
from extproc.routes.tool_route import read_tool_route
from extproc.storage.opening import open_database
from extproc.storage.owner import Owner
from extproc.tools.ledger import DurableLedger
from tests.real_envoy.scripted_tool import ScriptedTool

REQUEST = "req_01J00000000000000000000000"
KEYED = {names.REQUEST_ID: REQUEST, names.TOOL_CALL: "call_07"}


@dataclass
class ToolGateway:
    """An Envoy with one tool behind the ledger."""

    url: str
    tool: ScriptedTool
    ledger: DurableLedger

    async def states(self) -> list[CallState]:
        return [call.state for call in await self.ledger.calls(None, 10)]


async def serve_tools(service: ToolService, path: Path) -> grpc.aio.Server:
    """What Service does with the streams of tool routes, and nothing else."""

    async def process(_: AsyncIterator[Any], call: Any) -> None:
        stream = GrpcStream(call, BegunWrites())
        described = next(value for name, value in stream.initial_metadata if name == names.TOOL)
        first = await stream.read()
        assert first is not None
        await service.serve(stream, messages.request_headers(first), read_tool_route(described))

    server = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
    server.add_generic_rpc_handlers((protobuf.method_handlers(process),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


StartGateway = Callable[..., Awaitable[ToolGateway]]


@pytest.fixture
async def tool_gateway(start_envoy, echo_replica, run_directory: Path) -> AsyncIterator[StartGateway]:
    """``await tool_gateway(**fields of ToolRoute)``."""
    tool = ScriptedTool()
    await tool.start()
    database = await open_database(str(run_directory / "journal.db"))
    owner = Owner(database, "proc_a")
    await owner.announce()
    ledger = DurableLedger(database, owner)
    service = ToolService(
        ToolWorld(attempts=Http1AttemptClient(str(run_directory / "egress.sock")), ledger=ledger, key_secret=b"secret")
    )
    server = await serve_tools(service, run_directory / "p1.sock")

    async def start(port: int | None = None, **route: Any) -> ToolGateway:
        endpoint = ToolEndpoint(
            route=ToolRoute(name="mail", **route),
            address=echo_replica().address if port is None else _address(port),
        )
        tools_port = free_port()
        listen = Address(host="127.0.0.1", port=tools_port)
        await start_envoy([echo_replica("replica")], tools=(endpoint,), tools_listen=listen)
        return ToolGateway(f"http://127.0.0.1:{tools_port}/tools/mail", tool, ledger)

    start.tool = tool  # type: ignore[attr-defined]  # the tests' own handle
    yield start
    await service.stop(0)
    await server.stop(None)
    await database.close()
    await tool.stop()


def _address(port: int) -> ReplicaAddress:
    return ReplicaAddress(scheme="http", host="127.0.0.1", port=port)


async def start_with_tool(tool_gateway: Any, **route: Any) -> ToolGateway:
    gateway: ToolGateway = await tool_gateway(tool_gateway.tool.port, **route)
    return gateway


async def test_a_call_is_carried_out_once_and_its_repeats_get_its_answer(tool_gateway, client: httpx.AsyncClient):
    gateway = await start_with_tool(tool_gateway)
    answers = [await client.post(f"{gateway.url}/send?to=a", json={"text": "Hi"}, headers=KEYED) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert {answer.content for answer in answers} == {b'{"action": 1}'}
    assert [answer.headers.get(names.REPLAYED) for answer in answers] == [None, "true", "true"]
    (done,) = gateway.tool.log
    assert (done.method, done.path, done.body) == ("POST", "/send?to=a", '{"text":"Hi"}')
    assert done.key == f"{REQUEST}:call_07"
    assert names.TOOL not in done.headers


@pytest.mark.parametrize(
    ("coding", "piece_bytes", "code"),
    [("gzip", 1_000, "unsupported_content_encoding"), ("identity", 1 << 20, "request_too_large")],
)
async def test_a_call_refused_while_its_body_still_comes_is_told_in_words(tool_gateway, coding: str, piece_bytes: int, code: str):
    """The refusal is the answer to what has come so far: the caller sends no end before he has it."""
    gateway = await start_with_tool(tool_gateway)
    reader, writer = await asyncio.open_connection(*gateway.url.split("/")[2].split(":"))
    head = ("POST /tools/mail/send HTTP/1.1", "host: tools", "transfer-encoding: chunked", f"content-encoding: {coding}")
    keyed = (f"{name}: {value}" for name, value in KEYED.items())
    writer.write("\r\n".join((*head, *keyed, "", "")).encode())

    async def send() -> None:
        with suppress(OSError):
            for _ in range(9):
                writer.write(b"%x\r\n%s\r\n" % (piece_bytes, bytes(piece_bytes)))
                await writer.drain()

    sending = asyncio.create_task(send())
    answer = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", answer)
    assert length is not None, answer
    assert json.loads(await reader.readexactly(int(length[1])))["error"]["code"] == code
    sending.cancel()
    writer.close()
    assert gateway.tool.log == []


async def test_both_http_versions_of_a_caller_share_the_ledger(tool_gateway, client: httpx.AsyncClient):
    gateway = await start_with_tool(tool_gateway)
    await client.post(f"{gateway.url}/send", content=b"x" * 300_000, headers=KEYED)
    async with httpx.AsyncClient(http1=False, http2=True, timeout=30) as h2:
        again = await h2.post(f"{gateway.url}/send", content=b"x" * 300_000, headers=KEYED)
    assert (again.http_version, again.headers.get(names.REPLAYED)) == ("HTTP/2", "true")
    assert len(gateway.tool.log) == 1


async def test_a_caller_killed_while_the_tool_works_leaves_its_answer_for_the_next(tool_gateway, client: httpx.AsyncClient):
    """R17.5, the hard half: the tool has acted, and nobody has heard of it yet."""
    gateway = await start_with_tool(tool_gateway, wait_ms=30_000)
    gateway.tool.may_answer.clear()
    async with httpx.AsyncClient(timeout=30) as killed:
        first = asyncio.create_task(killed.post(f"{gateway.url}/send", content=b"x", headers=KEYED))
        await gateway.tool.acted.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    second = asyncio.create_task(client.post(f"{gateway.url}/send", content=b"x", headers=KEYED))
    gateway.tool.may_answer.set()
    answer = await second
    assert (answer.status_code, answer.json(), answer.headers.get(names.REPLAYED)) == (201, {"action": 1}, "true")
    assert len(gateway.tool.log) == 1


async def test_a_tool_that_breaks_off_is_unknown_and_not_called_again(tool_gateway, client: httpx.AsyncClient):
    gateway = await start_with_tool(tool_gateway)
    gateway.tool.breaks_off = True
    first = await client.post(f"{gateway.url}/send", content=b"x", headers=KEYED)
    assert (first.status_code, first.json()["error"]["code"]) == (502, "outcome_unknown")
    gateway.tool.breaks_off = False
    again = await client.post(f"{gateway.url}/send", content=b"x", headers=KEYED)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "outcome_unknown")
    assert len(gateway.tool.log) == 1
    assert await gateway.ledger.settle(f"mail/{REQUEST}:call_07", carried_out=False, answer=None, keep_ms=0)
    settled = await client.post(f"{gateway.url}/send", content=b"x", headers=KEYED)
    assert settled.status_code == 201


async def test_a_tool_that_is_down_has_seen_nothing(tool_gateway, client: httpx.AsyncClient, closed_port: int):
    gateway = await tool_gateway(closed_port)
    answer = await client.post(f"{gateway.url}/send", content=b"x", headers=KEYED)
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["retry-after"]) == (503, "tool_unreachable", "1")
    assert await gateway.states() == []


async def test_the_listener_tells_what_is_no_tool(tool_gateway, client: httpx.AsyncClient):
    gateway = await start_with_tool(tool_gateway)
    base = gateway.url.removesuffix("/mail")
    for path in ("/other/send", "/mailbox/send"):
        answer = await client.post(base + path, content=b"x")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert gateway.tool.log == []


async def test_a_processor_that_lets_go_of_a_call_does_not_let_it_through(
    start_envoy, echo_replica, start_processor, client: httpx.AsyncClient
):
    await start_processor()
    tool, port = echo_replica("tool"), free_port()
    endpoint = ToolEndpoint(route=ToolRoute(name="mail"), address=tool.address)
    await start_envoy([echo_replica("replica")], tools=(endpoint,), tools_listen=Address(host="127.0.0.1", port=port))
    answer = await client.post(f"http://127.0.0.1:{port}/tools/mail/send", content=b"x", headers={"x-stub": "let-go"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "processor_bypassed")
    assert tool.requests == []
