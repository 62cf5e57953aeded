"""Overload and abuse: clients and replicas that keep to no measure, and a gateway that is full. Others are served meanwhile."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from extproc.app.addresses import ReplicaAddress
from extproc.app.children import start_child
from extproc.app.demonstration.apis import PATHS
from extproc.app.gateway_settings import free_port
from extproc.contract import headers as names
from extproc.sse.dialects import Dialect
from extproc.sse.framing import EVENT_BYTES_MAX
from tests.real_envoy.acts import GOOD
from tests.real_envoy.h2_client import H2Client
from tests.real_envoy.raw_client import Answer, Client
from tests.real_envoy.scripted_replica import Attempt, scripted_replicas
from tests.real_envoy.stage import STREAMED_CHAT, Stage
from tests.real_envoy.wire import LIMIT_S, TEST_MARK, encode_chunk, encode_head
from tests.unit.sse.streams import D, F, R, T

MEGABYTE = 1 << 20
CHAT = PATHS[Dialect.CHAT]
SILENT = 3_000
CROWD = 250
"""grpcio turns requests away at random while more than 1,000 wait to be taken up."""
FLOOD = 2_000
AT_ONCE = 100
"""Below the 128 streams that Envoy grants one HTTP/2 connection."""


@dataclass(kw_only=True)
class Gateway(Stage):
    """Envoy and one processor, started apart so that either can be given limits of its own."""

    processor: Path
    """Its directory in /proc."""
    envoy: Any
    """A RunningEnvoy of conftest.py."""

    async def served(self) -> Answer:
        """An ordinary client's answer, from the first byte to the last."""
        client = await self.ask()
        await (await self.attempt()).stream(GOOD)
        return await client.answer()

    async def running(self, count: int) -> list[tuple[Client, Attempt]]:
        """So many streams past their first delta, each client with its own attempt."""
        pairs = []
        for number in range(count):
            client = await self.ask()
            attempt = await self.attempt()
            await attempt.begin()
            await attempt.send(R, T(f"[{number}]"))
            await client.until(b"[%d]" % number)
            pairs.append((client, attempt))
        return pairs


StartGateway = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def start(start_envoy: Any, eventually: Any, run_directory: Path) -> AsyncIterator[StartGateway]:
    """``await start(*processor options, **fields of EnvoySettings)``."""
    async with AsyncExitStack() as stack:

        async def start_gateway(*options: str, **envoy_fields: Any) -> Gateway:
            arrivals: asyncio.Queue[Attempt] = asyncio.Queue()
            replicas = await stack.enter_async_context(scripted_replicas(arrivals, "a", "b"))
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=LIMIT_S))
            admin, log = f"127.0.0.1:{free_port('127.0.0.1')}", run_directory / "log"
            words = [word for replica in replicas for word in ("--replica", replica.url)]
            sockets = ["--socket", str(run_directory / "p1.sock"), "--egress", str(run_directory / "egress.sock")]
            command = [sys.executable, "-m", "extproc.app", "processor", *sockets, *words, "--admin", admin, *options]
            processor = await start_child("processor", command)
            stack.push_async_callback(processor.kill)

            async def is_ready() -> bool:
                return (await http.get(f"http://{admin}/readyz")).status_code == 200

            await eventually(is_ready, "the processor is ready")
            envoy = await start_envoy([ReplicaAddress.parse(replica.url) for replica in replicas], **envoy_fields)
            gateway = Gateway(
                replicas=replicas,
                arrivals=arrivals,
                front=envoy.url,
                admin=f"http://{admin}",
                log=log,
                http=http,
                processor=Path(f"/proc/{processor.process.pid}"),
                envoy=envoy,
            )
            stack.callback(gateway.leave_nothing)
            return gateway

        yield start_gateway


def memory(process: Path, field: str) -> int:
    """``VmRSS``: bytes in memory now; ``VmHWM``: most of them since the last 5 was written to clear_refs (proc(5))."""
    return int((process / "status").read_text().partition(f"{field}:")[2].split()[0]) * 1024


@dataclass
class Growth:
    """How far a process has grown at most since this was made."""

    process: Path

    def __post_init__(self) -> None:
        (self.process / "clear_refs").write_text("5")
        self.before = memory(self.process, "VmRSS")

    @property
    def bytes(self) -> int:
        return memory(self.process, "VmHWM") - self.before


async def pour(attempt: Attempt, piece: bytes, megabytes: int) -> int:
    """Send pieces as fast as they are taken; how many megabytes went out before the other side was gone."""
    some = piece * (MEGABYTE // len(piece))
    for number in range(megabytes):
        try:
            await attempt.send(some)
        except ConnectionError:
            return number
    return megabytes


def error_of(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = answer.json["error"]
    return error


def last_error(body: bytes) -> dict[str, Any]:
    """The error event that ends a stream."""
    error: dict[str, Any] = json.loads(body.rpartition(b"data: ")[2])["error"]
    return error


# --- clients that do not read ------------------------------------------------------------------------------------------


async def test_a_client_that_stops_reading_is_let_go_and_its_replica_freed(start: StartGateway) -> None:
    """By the listener's TCP_USER_TIMEOUT: the one wait here that is a time."""
    gateway = await start(client_stall_ms_max=2_000)
    ((client, attempt),) = await gateway.running(1)
    growth = Growth(gateway.processor)
    client.stop_reading()
    await pour(attempt, T("x" * 4000), 40)
    await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)
    facts = await gateway.facts(attempt.request_id)
    assert (facts["outcome"], facts["reason"]) == ("cancelled", "client_gone")
    assert growth.bytes < 32 * MEGABYTE
    assert (await gateway.served()).body == GOOD


async def test_an_h2_stream_that_nobody_reads_is_reset_and_its_neighbour_is_not(start: StartGateway, eventually: Any) -> None:
    """TCP says nothing here, since the connection is read: the overload manager looks for the stream that holds the most."""
    gateway = await start(heap_bytes_max=96 * MEGABYTE)
    client = await H2Client.connect(gateway.front, stream_window=65_535)
    numbers = {who: await client.ask(STREAMED_CHAT, ("x-who", who)) for who in ("stalled", "healthy")}
    attempts = {attempt.head.get("x-who"): attempt for attempt in [await gateway.attempt(), await gateway.attempt()]}
    for attempt in attempts.values():
        await attempt.begin()
        await attempt.send(R, T("Hi"))
    for number in numbers.values():
        await client.until(number, b"Hi")
    client.stop_reading(numbers["stalled"])
    assert await pour(attempts["stalled"], T("x" * 4000), 1_000) < 1_000
    assert (await client.answer(numbers["stalled"])).reset_code is not None
    await attempts["healthy"].end(F("stop"), D)
    assert bytes((await client.answer(numbers["healthy"])).body) == R + T("Hi") + F("stop") + D
    facts = await gateway.facts(attempts["stalled"].request_id)
    assert (facts["outcome"], facts["reason"]) == ("cancelled", "client_gone")
    client.close()


# --- clients that do not end their request -----------------------------------------------------------------------------


async def silent_clients(gateway: Gateway, count: int) -> None:
    """Requests whose bodies never come."""
    head = encode_head(f"POST {CHAT} HTTP/1.1", [("host", "g"), (TEST_MARK, "1"), ("content-length", "1000")])
    for _ in range(count):
        client = await gateway.connect()
        await client.write(head)


@pytest.mark.timeout(300)
async def test_thousands_of_requests_without_a_body_cost_little_and_harm_nobody(start: StartGateway, eventually: Any) -> None:
    """Each crowd is followed by a client that behaves: once that one is served, the processor has taken up all before it."""
    gateway = await start(upload_s_max=3_600)
    growth = Growth(gateway.processor)
    for _ in range(SILENT // CROWD):
        await silent_clients(gateway, CROWD)
        assert (await gateway.served()).body == GOOD

    async def only_they_wait() -> bool:
        return await gateway.envoy.admin.running_requests() == SILENT

    await eventually(only_they_wait, "every one of them is there")
    assert growth.bytes < SILENT * 64 * 1024
    for client in gateway.clients:
        client.close()

    async def none_waits() -> bool:
        return await gateway.envoy.admin.running_requests() == 0

    await eventually(none_waits, "Envoy has let go of them", limit_s=120)
    assert (await gateway.served()).body == GOOD


async def test_a_body_that_comes_byte_by_byte_is_ended(start: StartGateway) -> None:
    """Every byte is a sign of life, so no idle timeout ever sees it."""
    gateway = await start(upload_s_max=1)
    client = await gateway.connect()
    head = [("host", "g"), (TEST_MARK, "1"), ("transfer-encoding", "chunked")]
    await client.write(encode_head(f"POST {CHAT} HTTP/1.1", head))

    async def drip() -> None:
        while not client.at_end and b"\r\n\r\n" not in client.received:
            await client.write(encode_chunk(b" "))
            await asyncio.sleep(0.05)

    await asyncio.wait_for(drip(), LIMIT_S)
    answer = await client.answer()
    assert (answer.status, error_of(answer)["code"]) == (408, "request_timeout")
    assert (await gateway.served()).body == GOOD


async def test_the_limit_of_an_upload_is_none_of_the_answer(start: StartGateway) -> None:
    """The time itself is under test: a prefill that lasts longer than an upload may."""
    gateway = await start(upload_s_max=1)
    client = await gateway.ask()
    attempt = await gateway.attempt()
    await asyncio.sleep(2)
    await attempt.begin()
    await attempt.send(R, T("Hi"))
    await client.until(b"Hi")
    await asyncio.sleep(1.5)
    await attempt.end(F("stop"), D)
    assert (await client.answer()).body == R + T("Hi") + F("stop") + D


async def test_a_body_above_the_limit_is_refused_before_it_is_all_there(start: StartGateway) -> None:
    """20 MB that are allowed are test_requests.py's; these say no length beforehand."""
    gateway = await start("--max-request-bytes", str(MEGABYTE))
    growth = Growth(gateway.processor)
    client = await gateway.connect()
    await client.write(encode_head(f"POST {CHAT} HTTP/1.1", [("host", "g"), ("transfer-encoding", "chunked")]))
    for _ in range(20):
        if client.at_end or client.received:
            break
        try:
            await client.write(encode_chunk(b" " * MEGABYTE))
        except ConnectionError:
            break
    answer = await client.answer()
    assert (answer.status, error_of(answer)["code"]) == (413, "request_too_large")
    assert growth.bytes < 16 * MEGABYTE
    assert (await gateway.served()).body == GOOD


# --- replicas that send too much ---------------------------------------------------------------------------------------


async def test_a_flooding_replica_waits_and_is_not_held_in_memory(start: StartGateway) -> None:
    gateway = await start()
    client = await gateway.ask()
    attempt = await gateway.attempt()
    await attempt.begin()
    growth = Growth(gateway.processor)

    async def count() -> None:
        while D not in client.received[-len(D) - 20 :]:
            await client.until(b"\n\n")
            client.received[: -len(D) - 20] = b""
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert await pour(attempt, T("x" * 4000), 100) == 100
    await attempt.end(F("stop"), D)
    await asyncio.wait_for(counting, LIMIT_S)
    assert growth.bytes < 32 * MEGABYTE


async def test_a_flood_that_is_no_answer_is_not_held_for_ever(start: StartGateway) -> None:
    gateway = await start()
    client = await gateway.ask()
    attempt = await gateway.attempt()
    await attempt.begin()
    sent = await pour(attempt, b": " + b"x" * 4000 + b"\n\n", 200)
    assert 64 <= sent < 200
    answer = await client.answer()
    assert (answer.status, answer.attempts, error_of(answer)["code"]) == (502, 1, "response_too_large")


async def test_one_event_of_five_megabytes_passes_whole(start: StartGateway) -> None:
    gateway = await start()
    ((client, attempt),) = await gateway.running(1)
    event = T("x" * (5 * MEGABYTE))
    await attempt.end(event, F("stop"), D)
    assert (await client.answer()).body == R + T("[0]") + event + F("stop") + D


@pytest.mark.parametrize("begun", [False, True], ids=["before the first delta", "after it"])
async def test_an_event_without_end_is_given_up(start: StartGateway, begun: bool) -> None:
    """Bytes of an unfinished event go to nobody, so there is a most of them."""
    gateway = await start()
    if begun:
        ((client, attempt),) = await gateway.running(1)
    else:
        client, attempt = await gateway.ask(), await gateway.attempt()
        await attempt.begin()
    growth = Growth(gateway.processor)
    await attempt.send(b"data: ")
    assert await pour(attempt, b"x" * 4096, 200) < 200
    answer = await client.answer()
    assert growth.bytes < 4 * EVENT_BYTES_MAX
    if begun:
        error = last_error(answer.body)
        assert (error["code"], error["reason"]) == ("upstream_decode_interrupted", "response_too_large")
        assert not answer.broken
    else:
        assert (answer.status, error_of(answer)["code"]) == (502, "response_too_large")
    assert (await gateway.served()).body == GOOD


async def test_events_without_end_are_ended_by_the_routes_own_deadline(start: StartGateway, run_directory: Path) -> None:
    policy = run_directory / "policy.json"
    policy.write_text(json.dumps({"deadlines": {"first_delta_ms": 4_000, "total_ms": 4_000}}))
    gateway = await start("--policy", str(policy))
    ((client, attempt),) = await gateway.running(1)

    async def go_on() -> None:
        while not attempt.gone.is_set():
            try:
                await attempt.send(T("again"))
            except ConnectionError:
                break
            await asyncio.sleep(0.02)

    await asyncio.wait_for(go_on(), LIMIT_S)
    answer = await client.answer()
    assert not answer.broken
    assert last_error(answer.body)["code"] == "upstream_decode_interrupted"


# --- a gateway that is full --------------------------------------------------------------------------------------------


async def flood(gateway: Gateway, count: int) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """Status, Retry-After and error of so many requests on one HTTP/2 connection."""
    client = await H2Client.connect(gateway.front)
    for _ in range(count // AT_ONCE):
        numbers = [await client.ask(STREAMED_CHAT) for _ in range(AT_ONCE)]
        for number in numbers:
            answer = await client.answer(number)
            yield answer.headers[":status"], answer.headers.get("retry-after", ""), json.loads(answer.body)["error"]
    client.close()


async def test_a_flood_of_requests_to_a_full_gateway_gets_503s_and_harms_no_running_stream(start: StartGateway) -> None:
    gateway = await start("--max-streams", "10")
    pairs = await gateway.running(10)
    refusals = [refusal async for refusal in flood(gateway, FLOOD)]
    assert len(refusals) == FLOOD
    assert {(status, retry_after) for status, retry_after, _ in refusals} == {("503", "5")}
    assert {(error["code"], error["attempts"]) for _, _, error in refusals} == {("overloaded", 0)}
    for number, (client, attempt) in enumerate(pairs):
        await attempt.end(T(" and on"), F("stop"), D)
        answer = await client.answer()
        assert answer.body == R + T(f"[{number}]") + T(" and on") + F("stop") + D
    assert (await gateway.served()).body == GOOD


async def test_envoys_own_limit_is_a_503_too_and_harms_no_running_stream(start: StartGateway) -> None:
    """Circuit breaker of the processors' cluster: the requests above it never reach a processor."""
    gateway = await start(streams_max=40)
    client = await H2Client.connect(gateway.front)
    running = [await client.ask(STREAMED_CHAT) for _ in range(40)]
    attempts = [await gateway.attempt() for _ in running]
    for attempt in attempts:
        await attempt.begin()
        await attempt.send(R, T("Hi"))
    refusals = [refusal async for refusal in flood(gateway, 200)]
    assert {(status, retry_after) for status, retry_after, _ in refusals} == {("503", "5")}
    assert {(error["code"], error["reason"]) for _, _, error in refusals} == {("overloaded", "processors_full")}
    for attempt in attempts:
        await attempt.end(F("stop"), D)
    for number in running:
        assert bytes((await client.answer(number)).body) == R + T("Hi") + F("stop") + D
    client.close()


async def test_connections_above_the_limit_leave_running_clients_their_attempts(start: StartGateway, eventually: Any) -> None:
    """Attempts come in through a listener of Envoy's too: clients may not use up its share of the connections."""
    gateway = await start(streams_max=20)
    client = await H2Client.connect(gateway.front)
    first = await client.ask(STREAMED_CHAT)
    await (await gateway.attempt()).stream(GOOD)
    assert bytes((await client.answer(first)).body) == GOOD
    idle = [await gateway.connect() for _ in range(40)]

    async def some_are_refused() -> bool:
        return sum(each.at_end for each in idle) >= 20

    await eventually(some_are_refused, "connections above the limit are closed")
    second = await client.ask(STREAMED_CHAT)
    await (await gateway.attempt()).stream(GOOD)
    answer = await client.answer(second)
    assert (answer.headers[":status"], answer.headers[names.ATTEMPTS], bytes(answer.body)) == ("200", "1", GOOD)
    client.close()


async def test_full_connections_to_the_replicas_are_told_as_such(start: StartGateway) -> None:
    """Ordinary requests and attempts share the replicas' circuit breaker; what it refuses has reached no replica."""
    gateway = await start(streams_max=2)
    client = await H2Client.connect(gateway.front)
    running = [await client.ask(b"", path="/v1/embeddings") for _ in range(2)]
    attempts = [await gateway.attempt() for _ in running]
    waiting = [await client.ask(b"", path="/v1/embeddings") for _ in range(2)]
    refused = await client.answer(await client.ask(b"", path="/v1/embeddings"))
    assert (refused.headers[":status"], refused.headers["retry-after"]) == ("503", "5")
    assert json.loads(refused.body)["error"]["code"] == "overloaded"
    generation = await client.answer(await client.ask(STREAMED_CHAT))
    assert (generation.headers[":status"], generation.headers["retry-after"]) == ("503", "5")
    assert json.loads(generation.body)["error"]["code"] == "overloaded"
    for attempt in attempts:
        await attempt.answer(b"{}")
    for attempt in [await gateway.attempt() for _ in waiting]:
        await attempt.answer(b"{}")
    for number in running + waiting:
        assert (await client.answer(number)).headers[":status"] == "200"
    client.close()
