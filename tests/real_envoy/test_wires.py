"""What the wires between Envoy and a processor have to bear, whichever was chosen: Envoy's own death, and clients that leave."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from extproc.app.addresses import ReplicaAddress
from extproc.app.children import Child, start_child
from extproc.links.listening import free_port
from tests.real_envoy.raw_client import Client
from tests.real_envoy.scripted_replica import Attempt, scripted_replicas
from tests.real_envoy.stage import STREAMED_CHAT
from tests.real_envoy.wire import LIMIT_S, TEST_MARK, encode_head
from tests.unit.sse.streams import D, F, R, T

WIRES = {
    "grpc-h1": ("--transport", "grpc", "--egress-protocol", "h1"),
    "grpc-h2": ("--transport", "grpc", "--egress-protocol", "h2"),
    "http2-h2": ("--transport", "http2", "--egress-protocol", "h2"),
}


@dataclass
class Gateway:
    """Envoy and one processor, started apart, so that either can die alone."""

    url: str
    admin: str
    envoy: Child
    arrivals: asyncio.Queue[Attempt]
    http: httpx.AsyncClient
    eventually: Callable[..., Awaitable[Any]]
    clients: list[Client] = field(default_factory=list)

    async def ask(self, host: str = "g") -> Client:
        client = await Client.connect(self.url)
        self.clients.append(client)
        headers = [("host", host), (TEST_MARK, "1"), ("content-length", str(len(STREAMED_CHAT)))]
        head = encode_head("POST /v1/chat/completions HTTP/1.1", headers)
        await client.write(head + STREAMED_CHAT)
        return client

    async def attempt(self) -> Attempt:
        return await asyncio.wait_for(self.arrivals.get(), LIMIT_S)

    async def facts(self, request_id: str) -> dict[str, Any]:
        """Once it has ended."""

        async def ended() -> Any:
            facts = (await self.http.get(f"{self.admin}/deltafence/v1/requests/{request_id}")).json()
            return facts if facts.get("outcome") else None

        facts: dict[str, Any] = await self.eventually(ended, f"{request_id} has ended")
        return facts


@pytest.fixture(params=WIRES.values(), ids=WIRES)
async def gateway(
    request: pytest.FixtureRequest,
    start_envoy: Any,
    eventually: Any,
    run_directory: Path,
    capfd: pytest.CaptureFixture[str],
) -> AsyncIterator[Gateway]:
    """At its end nothing may have broken: a client that left, or an Envoy that died, is no fault of the processor's."""
    socket, egress, admin = run_directory / "p1.sock", run_directory / "egress.sock", f"127.0.0.1:{free_port()}"
    arrivals: asyncio.Queue[Attempt] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        replicas = await stack.enter_async_context(scripted_replicas(arrivals, "a", "b"))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=LIMIT_S))
        words = [word for replica in replicas for word in ("--replica", replica.url)]
        command = [sys.executable, "-m", "extproc.app", "processor", "--socket", socket, "--egress", egress, *words]
        processor = await start_child("processor", [*command, "--admin", admin, *request.param])
        stack.push_async_callback(processor.kill)

        async def is_ready() -> bool:
            return (await http.get(f"http://{admin}/readyz")).status_code == 200

        await eventually(is_ready, "the processor is ready")
        envoy = await start_envoy([ReplicaAddress.parse(replica.url) for replica in replicas])
        gateway = Gateway(
            url=envoy.url, admin=f"http://{admin}", envoy=envoy.child, arrivals=arrivals, http=http, eventually=eventually
        )
        yield gateway
        for client in gateway.clients:
            client.close()
    logged = capfd.readouterr().err
    assert "serving" in logged
    assert "Traceback" not in logged, logged[-6000:]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
async def test_envoys_death_cancels_requests_and_blames_no_replica(gateway: Gateway, number: signal.Signals):
    """FACTS C12: egress and ext_proc break at once; every client is gone, so nothing may be repeated."""
    clients = [await gateway.ask() for _ in range(20)]
    attempts = [await gateway.attempt() for _ in clients]
    for index, attempt in enumerate(attempts):
        if index % 2:
            await attempt.begin()
            await attempt.send(R + T("Hi"))
    # Which client has which attempt is Envoy's to know; ten of them hear.
    heard = [asyncio.create_task(client.until(T("Hi"))) for client in clients]
    while sum(task.done() for task in heard) < len(attempts[1::2]):
        await asyncio.wait(heard, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.01)
    for task in heard:
        task.cancel()
    gateway.envoy.process.send_signal(number)
    for attempt in attempts:
        facts = await gateway.facts(attempt.request_id)
        assert (facts["outcome"], facts["reason"], len(facts["attempts"])) == ("cancelled", "client_gone", 1)
    assert gateway.arrivals.empty(), "nothing was repeated"


async def test_clients_that_leave_in_crowds_harm_nobody_else(gateway: Gateway):
    """Envoy ends an HTTP/2 connection on which too many young streams were reset; attempts that are not theirs live on."""
    staying = await gateway.ask()
    stays = await gateway.attempt()
    await stays.begin()
    await stays.send(R + T("Hi"))
    for _ in range(12):
        crowd = [await gateway.ask() for _ in range(50)]
        attempts = [await gateway.attempt() for _ in crowd]
        for client in crowd:
            client.close()
        for attempt in attempts:
            await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)
            attempt.close()
    await stays.end(T(" there") + F("stop") + D)
    answer = await staying.answer()
    assert (answer.status, answer.body) == (200, R + T("Hi") + T(" there") + F("stop") + D)


async def test_a_head_that_http2_does_not_allow_harms_nobody_else(gateway: Gateway):
    """User information in ``Host``, which HTTP/1.1 takes: with HTTP/2 Envoy would end the connection that all attempts share."""
    neighbour = await gateway.ask()
    running = await gateway.attempt()
    await running.begin()
    await running.send(R, T("Hi"))
    await neighbour.until(b'"Hi"')
    client = await gateway.ask(host="me@g")
    attempt = await gateway.attempt()
    assert attempt.head.get("host") == "g"
    await attempt.stream(R, T("Yes"), F("stop"), D)
    assert (await client.answer()).body == R + T("Yes") + F("stop") + D
    await running.end(F("stop"), D)
    assert (await neighbour.answer()).body == R + T("Hi") + F("stop") + D
