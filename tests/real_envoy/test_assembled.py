"""A processor and an Envoy that were started apart, as behind a mesh: what only their options can bring about."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from extproc.app.addresses import ReplicaAddress
from extproc.app.children import start_child
from tests.real_envoy.acts import GOOD
from tests.real_envoy.h2_client import H2Client
from tests.real_envoy.raw_client import Client
from tests.real_envoy.scripted_replica import Attempt, Replica, scripted_replicas
from tests.real_envoy.stage import STREAMED_CHAT
from tests.real_envoy.wire import LIMIT_S, encode_chunk, encode_head
from tests.unit.sse.streams import R, T

CHAT = "/v1/chat/completions"
BODY_LIMIT = 100_000

Start = Callable[..., Awaitable[str]]


@pytest.fixture
async def arrivals() -> asyncio.Queue[Attempt]:
    return asyncio.Queue()


@pytest.fixture
async def replicas(arrivals: asyncio.Queue[Attempt]) -> AsyncIterator[list[Replica]]:
    async with scripted_replicas(arrivals, "a", "b") as replicas:
        yield replicas


@pytest.fixture
async def start(start_envoy: Any, eventually: Any, run_directory: Path) -> AsyncIterator[Start]:
    """``await start(replicas of the processor, replicas of Envoy, *options of the processor)``: the front's URL."""
    socket, egress = run_directory / "p1.sock", run_directory / "egress.sock"

    async def listens() -> bool:
        _, writer = await asyncio.open_unix_connection(socket)
        writer.close()
        return True

    async with AsyncExitStack() as stack:

        async def start(to_processor: list[Replica], to_envoy: list[Replica], *options: str) -> str:
            words = [word for replica in to_processor for word in ("--replica", replica.url)]
            command = [sys.executable, "-m", "extproc.app", "processor", "--socket", socket, "--egress", egress, *words, *options]
            processor = await start_child("processor", command)
            stack.push_async_callback(processor.kill)
            await eventually(listens, "the processor listens")
            return (await start_envoy([ReplicaAddress.parse(replica.url) for replica in to_envoy])).url

        yield start


@pytest.fixture
async def ask() -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    """``await ask(url, body, *headers)``: a client that has sent a request, with a length unless ``headers`` frame it."""
    clients: list[Client] = []

    async def ask(url: str, body: bytes, *headers: tuple[str, str]) -> Client:
        clients.append(await Client.connect(url))
        framing = headers or (("content-length", str(len(body))),)
        await clients[-1].write(encode_head(f"POST {CHAT} HTTP/1.1", [("host", "g"), ("x-test", "1"), *framing]) + body)
        return clients[-1]

    yield ask
    for client in clients:
        client.close()


async def test_a_body_of_the_limit_passes_and_one_byte_more_is_a_413(start: Start, ask, replicas, arrivals) -> None:
    url = await start(replicas, replicas, "--max-request-bytes", str(BODY_LIMIT))
    passing = await ask(url, STREAMED_CHAT + b" " * (BODY_LIMIT - len(STREAMED_CHAT)))
    attempt = await asyncio.wait_for(arrivals.get(), LIMIT_S)
    assert len(attempt.body) == BODY_LIMIT
    await attempt.stream(GOOD)
    assert (await passing.answer()).body == GOOD

    declared = await ask(url, b"", ("content-length", str(BODY_LIMIT + 1)))
    chunked = await ask(url, encode_chunk(b" " * (BODY_LIMIT + 1)), ("transfer-encoding", "chunked"))
    for client in (declared, chunked):
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (413, "request_too_large")
        assert f"{BODY_LIMIT} bytes" in answer.json["error"]["message"]

    h2_client = await H2Client.connect(url)
    answer = await h2_client.answer(await h2_client.ask(b" " * (50 * BODY_LIMIT)))
    assert (answer.headers[":status"], json.loads(answer.body)["error"]["code"]) == ("413", "request_too_large")
    h2_client.close()


async def test_an_answer_from_another_replica_than_the_chosen_one_is_not_trusted(start: Start, ask, replicas, arrivals) -> None:
    """Envoy falls back silently from an address that it does not know, perhaps to another model (R8)."""
    url = await start(replicas[:1], replicas[1:])
    client = await ask(url, STREAMED_CHAT)
    attempt = await asyncio.wait_for(arrivals.get(), LIMIT_S)
    assert attempt.replica == "b"
    await attempt.begin()
    await attempt.send(R + T("Hi"))
    answer = await client.answer()
    assert (answer.status, answer.attempts, answer.json["error"]["code"]) == (503, 1, "source_attempt_not_fenced")
    assert f"Envoy sent the attempt to {replicas[1].address}, not to {replicas[0].address}" in answer.json["error"]["message"]
    await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)
    assert arrivals.empty()


async def test_more_streams_than_the_processor_may_serve_are_a_503(start: Start, ask, replicas, arrivals) -> None:
    url = await start(replicas, replicas, "--max-streams", "1")
    first = await ask(url, STREAMED_CHAT)
    attempt = await asyncio.wait_for(arrivals.get(), LIMIT_S)
    answer = await (await ask(url, STREAMED_CHAT)).answer()
    assert (answer.status, answer.json["error"]["code"], answer.head.get("x-should-retry")) == (503, "overloaded", "true")
    await attempt.stream(GOOD)
    assert (await first.answer()).body == GOOD
