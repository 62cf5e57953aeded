"""Many streams at once, and streams that share a connection."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from extproc.contract import headers as names
from tests.real_envoy.acts import GOOD
from tests.real_envoy.h2_client import H2Client
from tests.real_envoy.stage import STREAMED_CHAT, WHOLE_CHAT, Stage, open_stage
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
