"""Many streams, streams that share a connection, and replicas or clients that break every measure."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from extproc.contract import headers as names
from tests.real_envoy.acts import GOOD
from tests.real_envoy.h2_client import H2Client
from tests.real_envoy.raw_client import Client
from tests.real_envoy.scripted_replica import Attempt
from tests.real_envoy.stage import STREAMED_CHAT, WHOLE_CHAT, Stage, open_stage
from tests.real_envoy.wire import LIMIT_S
from tests.unit.sse.streams import D, F, R, T

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEGABYTE = 1 << 20
MANY = 1_100
"""Above Envoy's default circuit breakers of 1,024."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("gateway")) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(gateway_stage: Stage) -> AsyncIterator[Stage]:
    yield gateway_stage
    gateway_stage.leave_nothing()


async def test_en_03_more_streams_at_once_than_envoys_defaults_allow(stage: Stage) -> None:
    clients = [await stage.ask() for _ in range(MANY)]
    attempts = [await stage.attempt() for _ in range(MANY)]
    for attempt in attempts:
        await attempt.begin()
        await attempt.send(R, T(attempt.request_id))
    for client in clients:
        await client.until(b'"content":"req_')
    for attempt in attempts:
        await attempt.end(F("stop"), D)
    answers = [await client.answer() for client in clients]
    assert all(answer.body == R + T(answer.request_id) + F("stop") + D for answer in answers)
    assert {(answer.status, answer.broken, answer.attempts) for answer in answers} == {(200, False, 1)}
    assert len({answer.request_id for answer in answers}) == MANY


@pytest.mark.parametrize("begun", [False, True], ids=["before the first delta", "after it"])
async def test_id_02_one_streams_failure_is_nothing_to_its_neighbour(stage: Stage, begun: bool) -> None:
    client = await H2Client.connect(stage.front)
    numbers = {who: await client.ask(STREAMED_CHAT, ("x-who", who)) for who in ("failing", "healthy")}
    attempts = {attempt.head.get("x-who"): attempt for attempt in [await stage.attempt(), await stage.attempt()]}
    for who, attempt in attempts.items():
        await attempt.begin()
        await attempt.send(R, *([T(who)] if begun or who == "healthy" else []))
    await client.until(numbers["healthy"], b"healthy")
    if begun:
        await client.until(numbers["failing"], b"failing")

    attempts["failing"].reset()
    if begun:
        failing = await client.answer(numbers["failing"])
        assert json.loads(failing.body.rpartition(b"data: ")[2])["error"]["code"] == "upstream_decode_interrupted"
    else:
        second = await stage.attempt()
        assert second.request_id == attempts["failing"].request_id
        await second.stream(GOOD)
        failing = await client.answer(numbers["failing"])
        assert bytes(failing.body) == GOOD
    await attempts["healthy"].end(F("stop"), D)
    healthy = await client.answer(numbers["healthy"])
    assert bytes(healthy.body) == R + T("healthy") + F("stop") + D
    assert (healthy.headers[names.ATTEMPTS], healthy.reset_code, failing.reset_code) == ("1", None, None)
    client.close()


async def test_en_09_a_pooled_connection_that_the_replica_closes_costs_no_request(stage: Stage) -> None:
    """A replica's idle timeout races with the next request, which is then lost before it was read."""
    seen = []
    while True:
        client = await stage.ask(WHOLE_CHAT)
        attempt = await stage.attempt()
        if attempt.writer in seen:
            break
        seen.append(attempt.writer)
        assert len(seen) <= len(stage.replicas), "no connection is ever used again"
        await attempt.answer(b'{"choices":[{"index":0,"message":{},"finish_reason":"stop"}]}')
        await client.answer()
    attempt.close()
    second = await stage.attempt()
    await second.answer(b'{"choices":[{"index":0,"message":{},"finish_reason":"stop"}]}')
    answer = await client.answer()
    assert (answer.status, answer.attempts) == (200, 2)


def processor_of(stage: Stage) -> Path:
    """The directory in /proc of the gateway's processor."""
    admin = stage.admin.removeprefix("http://").encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"processor" in words and admin in words:
            return process
    raise AssertionError("no processor")


def memory(process: Path, field: str) -> int:
    """``VmRSS``: bytes in memory now; ``VmHWM``: most of them since the last 5 was written to clear_refs (proc(5))."""
    return int((process / "status").read_text().partition(f"{field}:")[2].split()[0]) * 1024


async def pour(attempt: Attempt, piece: bytes, megabytes: int) -> int:
    """Send pieces as fast as they are taken; how many megabytes went out before the other side was gone."""
    some = piece * (MEGABYTE // len(piece))
    for number in range(megabytes):
        try:
            await attempt.send(some)
        except ConnectionError:
            return number
    return megabytes


async def test_a_flooding_replica_waits_and_is_not_held_in_memory(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    processor = processor_of(stage)
    (processor / "clear_refs").write_text("5")
    before = memory(processor, "VmRSS")
    event = T("x" * 4000)

    async def count() -> int:
        total = 0
        while D not in client.received[-len(D) - 20 :]:
            await client.until(b"\n\n")
            total += len(client.received)
            client.received[: -len(D) - 20] = b""
            await asyncio.sleep(0)
        return total

    counting = asyncio.create_task(count())
    assert await pour(attempt, event, 100) == 100
    await attempt.end(F("stop"), D)
    await asyncio.wait_for(counting, LIMIT_S)
    assert memory(processor, "VmHWM") - before < 32 * MEGABYTE


async def test_a_flood_that_is_no_answer_is_not_held_for_ever(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    sent = await pour(attempt, b": " + b"x" * 4000 + b"\n\n", 200)
    assert 64 <= sent < 200
    answer = await client.answer()
    assert (answer.status, answer.attempts, answer.json["error"]["code"]) == (502, 1, "response_too_large")


async def test_a_client_that_stops_reading_is_let_go_and_its_replica_freed(stage: Stage) -> None:
    """By the listener's TCP_USER_TIMEOUT: the one wait here that is a time."""
    client: Client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(R, T("Hi"))
    await client.until(b"Hi")
    client.stop_reading()
    await pour(attempt, T("x" * 4000), 40)
    await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)
    facts = await stage.facts(attempt.request_id)
    assert (facts["outcome"], facts["reason"]) == ("cancelled", "client_gone")
