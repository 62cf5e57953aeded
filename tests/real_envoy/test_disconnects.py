"""A client that leaves: its replica's work stops, no further attempt starts, the journal says who left (R5, CASES area 4)."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from extproc.contract import headers as names
from tests.real_envoy.acts import GOOD
from tests.real_envoy.h2_client import H2Client
from tests.real_envoy.raw_client import Client
from tests.real_envoy.scripted_replica import Attempt
from tests.real_envoy.stage import STREAMED_CHAT, WHOLE_CHAT, Stage, open_stage
from tests.real_envoy.wire import LIMIT_S, encode_head
from tests.unit.sse.streams import D, F, R, T

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEAVE: dict[str, Callable[[Client], None]] = {"FIN": Client.close, "RST": Client.reset, "half-close": Client.half_close}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("gateway")) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(gateway_stage: Stage) -> AsyncIterator[Stage]:
    yield gateway_stage
    gateway_stage.leave_nothing()


async def is_stopped(stage: Stage, attempt: Attempt, attempts: int = 1) -> None:
    """The replica's connection is closed, and the journal knows of a client that left and of no other attempt."""
    await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)
    facts = await stage.facts(attempt.request_id)
    assert (facts["outcome"], facts["reason"], facts["error_code"]) == ("cancelled", "client_gone", None)
    assert len(facts["attempts"]) == attempts
    assert [event["kind"] for event in facts["events"]].count("cancel_sent") == 1


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
async def test_while_it_uploads_nothing_is_started(stage: Stage, leave: Callable[[Client], None]) -> None:
    client = await stage.connect()
    head = encode_head("POST /v1/chat/completions HTTP/1.1", [("host", "g"), ("x-test", "1"), ("content-length", "1000000")])
    await client.write(head + STREAMED_CHAT)
    leave(client)
    # The next request's attempt is the first of all: nothing of the other one ever reached a replica.
    other = await stage.ask()
    attempt = await stage.attempt()
    await attempt.stream(GOOD)
    assert (await other.answer()).request_id == attempt.request_id


@pytest.mark.parametrize("body", [STREAMED_CHAT, WHOLE_CHAT], ids=["streamed", "whole"])
@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
async def test_can_04_while_it_waits_for_the_answer(stage: Stage, leave: Callable[[Client], None], body: bytes) -> None:
    """Closing one's half of an HTTP/1.1 connection counts as leaving: Envoy takes it for that."""
    client = await stage.ask(body)
    attempt = await stage.attempt()
    leave(client)
    await is_stopped(stage, attempt)


async def test_can_04_while_a_whole_answer_is_under_way(stage: Stage) -> None:
    client = await stage.ask(WHOLE_CHAT)
    attempt = await stage.attempt()
    await attempt.begin(content_type="application/json")
    await attempt.send(b'{"choices":[')
    client.close()
    await is_stopped(stage, attempt)


async def test_after_headers_and_role_chunk(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(R)
    client.close()
    await is_stopped(stage, attempt)


async def test_in_its_second_attempt(stage: Stage) -> None:
    client = await stage.ask()
    (await stage.attempt()).reset()
    second = await stage.attempt()
    client.close()
    await is_stopped(stage, second, attempts=2)


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
async def test_mid_stream(stage: Stage, leave: Callable[[Client], None]) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(R, T("Hi"))
    await client.until(b"Hi")
    leave(client)
    await is_stopped(stage, attempt)
    facts = await stage.facts(attempt.request_id)
    assert (facts["first_delta_sent"], facts["partial_output"], facts["delivered_output_tokens"]) == (True, True, 1)


@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "mid-stream"])
async def test_a_reset_h2_stream_leaves_its_neighbours_alone(stage: Stage, begun: bool) -> None:
    client = await H2Client.connect(stage.front)
    leaving, staying = (
        await client.ask(STREAMED_CHAT, ("x-who", "leaving")),
        await client.ask(STREAMED_CHAT, ("x-who", "staying")),
    )
    arrived = {attempt.head.get("x-who"): attempt for attempt in [await stage.attempt(), await stage.attempt()]}
    for attempt in arrived.values():
        await attempt.begin()
        await attempt.send(R, *([T("Hi")] if begun else []))
    if begun:
        await client.until(leaving, b"Hi")
    await client.reset(leaving)
    await is_stopped(stage, arrived["leaving"])
    await arrived["staying"].end(T("Good"), F("stop"), D)
    answer = await client.answer(staying)
    assert answer.body.endswith(T("Good") + F("stop") + D)
    assert answer.headers[names.ATTEMPTS] == "1"
    client.close()


async def test_can_02_a_client_that_leaves_at_done_has_a_whole_answer(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(GOOD)
    await client.until(D)
    client.reset()
    facts = await stage.facts(attempt.request_id)
    assert (facts["outcome"], facts["reason"], facts["partial_output"]) == ("completed", "finished", False)


async def test_can_02_a_client_that_leaves_at_the_finish_has_a_whole_answer(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(R, T("Hi"), F("stop"))
    await client.until(b'"finish_reason":"stop"')
    client.reset()
    await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)
    facts = await stage.facts(attempt.request_id)
    assert (facts["outcome"], facts["reason"], facts["partial_output"]) == ("completed", "finished", False)


async def test_can_02_the_replica_is_free_at_done_not_at_the_connections_end(stage: Stage) -> None:
    """The replica's stream hangs after its DONE; the client has its end and the journal its outcome all the same."""
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(GOOD)
    answer = await client.answer()
    assert (answer.body, answer.broken) == (GOOD, False)
    await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)
    assert (await stage.facts(attempt.request_id))["outcome"] == "completed"
