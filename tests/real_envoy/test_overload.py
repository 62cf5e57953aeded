"""A gateway that is full, or has lost a processor: who is turned away is told so, and running streams are unharmed."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

from extproc.contract import headers as names
from tests.real_envoy.acts import GOOD
from tests.real_envoy.apart import MEGABYTE, Gateway, StartGateway, error_of
from tests.real_envoy.h2_client import H2Client
from tests.real_envoy.stage import STREAMED_CHAT
from tests.real_envoy.wire import LIMIT_S
from tests.unit.sse.streams import D, F, R, T

FLOOD = 2_000
AT_ONCE = 100
"""Below the 128 streams that Envoy grants one HTTP/2 connection."""
STANDSTILL_S = 5.0
"""More than lies between two pings of Envoy's, so that one stays unanswered; less than it waits for the answer."""


async def flood(gateway: Gateway, count: int) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """Status, Retry-After and error of so many requests on one HTTP/2 connection."""
    client = await H2Client.connect(gateway.front)
    for _ in range(count // AT_ONCE):
        numbers = [await client.ask(STREAMED_CHAT) for _ in range(AT_ONCE)]
        for number in numbers:
            answer = await client.answer(number)
            yield answer.headers[":status"], answer.headers.get("retry-after", ""), json.loads(answer.body)["error"]
    client.close()


async def test_a_flood_of_requests_to_a_full_gateway_gets_503s_and_harms_no_running_stream(start_gateway: StartGateway) -> None:
    gateway = await start_gateway("--max-streams", "10")
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


async def test_envoys_own_limit_is_a_503_too_and_harms_no_running_stream(start_gateway: StartGateway) -> None:
    """Circuit breaker of the processors' cluster: the requests above it never reach a processor."""
    gateway = await start_gateway(streams_max=40)
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


async def test_connections_above_the_limit_leave_others_their_attempts(start_gateway: StartGateway, eventually: Any) -> None:
    """Attempts come in through a listener of Envoy's too: clients may not use up its share of the connections."""
    gateway = await start_gateway(streams_max=20)
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


async def test_full_connections_to_the_replicas_are_told_as_such(start_gateway: StartGateway) -> None:
    """Ordinary requests and attempts share the replicas' circuit breaker; what it refuses has reached no replica."""
    gateway = await start_gateway(streams_max=2)
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


async def test_bodies_beyond_the_room_for_them_are_turned_away_until_others_are_answered(start_gateway: StartGateway) -> None:
    """Each is allowed; it is their number that would fill the memory."""
    megabyte = json.dumps({"model": "m", "stream": True, "messages": [], "padding": "x" * MEGABYTE}).encode()
    gateway = await start_gateway("--max-bodies-bytes", str(5 * MEGABYTE // 2))
    first, second = await gateway.ask(megabyte), await gateway.ask(megabyte)
    attempts = [await gateway.attempt(), await gateway.attempt()]
    refused = await (await gateway.ask(megabyte)).answer()
    assert (refused.status, refused.head.get("retry-after")) == (503, "5")
    assert (error_of(refused)["code"], error_of(refused)["attempts"]) == ("overloaded", 0)
    for attempt in attempts:
        await attempt.begin()
        await attempt.send(R, T("Hi"))
    for client in (first, second):  # past their first token, nobody repeats them
        await client.until(b"Hi")
    third = await gateway.ask(megabyte)
    await (await gateway.attempt()).stream(GOOD)
    assert (await third.answer()).body == GOOD
    for attempt in attempts:
        await attempt.end(F("stop"), D)
    for client in (first, second):
        assert (await client.answer()).body == R + T("Hi") + F("stop") + D


async def test_a_killed_processor_breaks_only_its_own_streams_and_the_other_takes_over(
    start_gateway: StartGateway,
) -> None:
    gateway = await start_gateway(processors=2)
    pairs = await gateway.running(12)
    killed, survivor = gateway.processors[0], gateway.admins[1]
    theirs = [
        (client, attempt)
        for client, attempt in pairs
        if (await gateway.http.get(f"{survivor}/deltafence/v1/requests/{attempt.request_id}")).status_code == 200
    ]
    assert 0 < len(theirs) < len(pairs)
    await killed.kill()
    for client, attempt in pairs:
        if (client, attempt) not in theirs:
            assert (await client.answer()).broken
            await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)
    for _ in range(20):
        assert (await gateway.served()).body == GOOD
    for client, attempt in theirs:
        await attempt.end(F("stop"), D)
        answer = await client.answer()
        assert (answer.broken, answer.body.endswith(F("stop") + D)) == (False, True)


async def test_a_processor_that_has_no_core_for_some_seconds_keeps_its_streams(start_gateway: StartGateway) -> None:
    gateway = await start_gateway()
    ((client, attempt),) = await gateway.running(1)
    process = gateway.processors[0].process
    answer = asyncio.create_task(client.answer())
    process.send_signal(signal.SIGSTOP)
    try:
        # Not a wait for something to happen: for that long nothing may happen.
        await asyncio.wait({answer}, timeout=STANDSTILL_S)
        assert not answer.done(), answer
    finally:
        process.send_signal(signal.SIGCONT)
    await attempt.end(F("stop"), D)
    assert (await answer).body == R + T("[0]") + F("stop") + D
