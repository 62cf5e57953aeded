"""Clients and replicas that keep to no measure: what each may cost, and that others are served meanwhile."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from extproc.app.demonstration.apis import PATHS
from extproc.sse.dialects import Dialect
from extproc.sse.framing import EVENT_BYTES_MAX
from tests.real_envoy.acts import GOOD
from tests.real_envoy.apart import MEGABYTE, Gateway, Growth, StartGateway, error_of, last_error, pour
from tests.real_envoy.h2_client import H2Client
from tests.real_envoy.stage import STREAMED_CHAT
from tests.real_envoy.wire import LIMIT_S, TEST_MARK, encode_chunk, encode_head
from tests.unit.sse.streams import D, F, R, T

CHAT = PATHS[Dialect.CHAT]
SILENT = 3_000
CROWD = 250
"""grpcio turns requests away at random while more than 1,000 wait to be taken up."""


# --- clients that do not read ------------------------------------------------------------------------------------------


async def test_a_client_that_stops_reading_is_let_go_and_its_replica_freed(start_gateway: StartGateway) -> None:
    """By the listener's TCP_USER_TIMEOUT: the one wait here that is a time."""
    gateway = await start_gateway(client_stall_ms_max=2_000)
    ((client, attempt),) = await gateway.running(1)
    growth = Growth(gateway.processor)
    client.stop_reading()
    await pour(attempt, T("x" * 4000), 40)
    await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)
    facts = await gateway.facts(attempt.request_id)
    assert (facts["outcome"], facts["reason"]) == ("cancelled", "client_gone")
    assert growth.bytes < 32 * MEGABYTE
    assert (await gateway.served()).body == GOOD


async def test_an_h2_stream_that_nobody_reads_is_reset_and_its_neighbour_is_not(
    start_gateway: StartGateway, eventually: Any
) -> None:
    """TCP says nothing here, since the connection is read: the overload manager looks for the stream that holds the most."""
    gateway = await start_gateway(heap_bytes_max=96 * MEGABYTE)
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
async def test_thousands_of_bodies_that_never_come_cost_little_and_harm_nobody(
    start_gateway: StartGateway, eventually: Any
) -> None:
    """Each crowd is followed by a client that behaves: once that one is served, the processor has taken up all before it."""
    gateway = await start_gateway(upload_s_max=3_600)
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


async def test_a_body_that_comes_byte_by_byte_is_ended(start_gateway: StartGateway) -> None:
    """Every byte is a sign of life, so no idle timeout ever sees it."""
    gateway = await start_gateway(upload_s_max=1)
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


async def test_the_limit_of_an_upload_is_none_of_the_answer(start_gateway: StartGateway) -> None:
    """The time itself is under test: a prefill that lasts longer than an upload may."""
    gateway = await start_gateway(upload_s_max=1)
    client = await gateway.ask()
    attempt = await gateway.attempt()
    await asyncio.sleep(2)
    await attempt.begin()
    await attempt.send(R, T("Hi"))
    await client.until(b"Hi")
    await asyncio.sleep(1.5)
    await attempt.end(F("stop"), D)
    assert (await client.answer()).body == R + T("Hi") + F("stop") + D


async def test_a_body_above_the_limit_is_refused_before_it_is_all_there(start_gateway: StartGateway) -> None:
    """20 MB that are allowed are test_requests.py's; these say no length beforehand."""
    gateway = await start_gateway("--max-request-bytes", str(MEGABYTE))
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


async def test_a_flooding_replica_waits_and_is_not_held_in_memory(start_gateway: StartGateway) -> None:
    gateway = await start_gateway()
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


async def test_a_flood_that_is_no_answer_is_not_held_for_ever(start_gateway: StartGateway) -> None:
    gateway = await start_gateway()
    client = await gateway.ask()
    attempt = await gateway.attempt()
    await attempt.begin()
    sent = await pour(attempt, b": " + b"x" * 4000 + b"\n\n", 200)
    assert 64 <= sent < 200
    answer = await client.answer()
    assert (answer.status, answer.attempts, error_of(answer)["code"]) == (502, 1, "response_too_large")


async def test_one_event_of_five_megabytes_passes_whole(start_gateway: StartGateway) -> None:
    gateway = await start_gateway()
    ((client, attempt),) = await gateway.running(1)
    event = T("x" * (5 * MEGABYTE))
    await attempt.end(event, F("stop"), D)
    assert (await client.answer()).body == R + T("[0]") + event + F("stop") + D


@pytest.mark.parametrize("begun", [False, True], ids=["before the first delta", "after it"])
async def test_an_event_without_end_is_given_up(start_gateway: StartGateway, begun: bool) -> None:
    """Bytes of an unfinished event go to nobody, so there is a most of them."""
    gateway = await start_gateway()
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


async def test_events_without_end_are_ended_by_the_routes_own_deadline(start_gateway: StartGateway, run_directory: Path) -> None:
    policy = run_directory / "policy.json"
    policy.write_text(json.dumps({"deadlines": {"first_delta_ms": 12_000, "total_ms": 12_000}}))
    gateway = await start_gateway("--policy", str(policy))
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
