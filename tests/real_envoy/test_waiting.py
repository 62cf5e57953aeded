"""Streams in which the wait is the point: keep-alive before the first delta, linger after the finish, and a slow answer (R5)."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from extproc.app.demonstration.apis import PATHS, request_body
from extproc.contract import headers as names
from extproc.sse.dialects import Dialect
from tests.real_envoy.acts import GOOD
from tests.real_envoy.stage import STREAMED_CHAT, WHOLE_CHAT, Stage, open_stage
from tests.real_envoy.wire import LIMIT_S
from tests.unit.sse.streams import D, F, R, T, usage

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMMENT = b": keep-alive\n"
POLICY = {"keep_alive": {"after_ms": 100, "interval_ms": 1000}, "deadlines": {"finish_linger_ms": 100}}
ENVOY_DEFAULT_TIMEOUT_S = 15.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("gateway"), POLICY) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(gateway_stage: Stage) -> AsyncIterator[Stage]:
    yield gateway_stage
    gateway_stage.leave_nothing()


async def test_can_03_head_and_comments_come_before_the_first_delta(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await client.until(COMMENT)
    await attempt.begin(("x-late", "1"))
    await attempt.send(R)
    while client.received.count(COMMENT) < 2:
        await client.until_more()
    await attempt.end(T("Good"), F("stop"), D)
    answer = await client.answer()
    assert answer.body.removeprefix(COMMENT * 2).replace(COMMENT, b"") == GOOD
    assert (answer.status, answer.head.get("content-type")) == (200, "text/event-stream; charset=utf-8")
    assert (answer.request_id, answer.head.get("x-late")) == (attempt.request_id, None)


async def test_can_03_comments_say_nothing_about_delivery(stage: Stage) -> None:
    client = await stage.ask()
    first = await stage.attempt()
    await client.until(COMMENT)
    await first.begin()
    await first.send(R)
    first.reset()
    second = await stage.attempt()
    await second.stream(GOOD)
    answer = await client.answer()
    assert answer.body.replace(COMMENT, b"") == GOOD
    assert len((await stage.facts(answer.request_id))["attempts"]) == 2


@pytest.mark.parametrize("dialect", Dialect)
async def test_can_03_an_exhausted_retry_is_told_in_band(stage: Stage, dialect: Dialect) -> None:
    client = await stage.ask(request_body(dialect, model="m", stream=True), path=PATHS[dialect])
    first = await stage.attempt()
    await client.until(COMMENT)
    first.reset()
    (await stage.attempt()).reset()
    answer = await client.answer()
    assert (answer.status, answer.broken) == (200, False)
    line, _, rest = answer.body.rpartition(b"data: ")[2].partition(b"\n")
    assert rest == b"\n"
    error = json.loads(line)["error"]
    assert (error["code"], error["partial_output"], error["delivered_output_tokens"]) == ("attempts_exhausted", False, 0)
    assert error["request_id"] == answer.request_id
    facts = await stage.facts(answer.request_id)
    assert (facts["outcome"], facts["first_delta_sent"]) == ("failed", False)


async def test_can_03_a_request_error_is_told_in_band_too(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await client.until(COMMENT)
    await attempt.answer(b'{"error":"prompt too long"}', status="400 Bad Request")
    answer = await client.answer()
    error = json.loads(answer.body.replace(COMMENT, b"").removeprefix(b"data: "))["error"]
    assert (error["reason"], error["partial_output"]) == ("request_error_400", False)
    assert "prompt too long" in error["message"]


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_can_03_nothing_but_events_follows_the_early_head(stage: Stage, encoding: str) -> None:
    client = await stage.ask()
    first = await stage.attempt()
    await client.until(COMMENT)
    await first.answer(b'{"choices":[]}', ("content-encoding", encoding))
    await (await stage.attempt()).stream(GOOD)
    assert (await client.answer()).body.replace(COMMENT, b"") == GOOD


async def test_can_03_an_answer_that_is_not_streamed_gets_no_early_head(stage: Stage) -> None:
    whole, streamed = await stage.ask(WHOLE_CHAT), await stage.ask(STREAMED_CHAT)
    attempts = {attempt.body: attempt for attempt in [await stage.attempt(), await stage.attempt()]}
    await streamed.until(COMMENT)
    assert not whole.received
    await attempts[STREAMED_CHAT].stream(GOOD)
    await attempts[WHOLE_CHAT].answer(b"{}", status="404 Not Found")
    assert (await whole.answer()).status == 404


async def test_sse_11_silence_after_the_finish_ends_a_whole_answer(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(R, T("Hi"), F("stop"))
    answer = await client.answer()
    assert (answer.body, answer.broken) == (R + T("Hi") + F("stop"), False)
    assert (await stage.facts(answer.request_id))["outcome"] == "completed"
    await asyncio.wait_for(attempt.gone.wait(), LIMIT_S)


async def test_sse_11_the_wait_is_for_all_choices(stage: Stage) -> None:
    body = json.dumps({"model": "m", "stream": True, "n": 2, "messages": []}).encode()
    client = await stage.ask(body)
    attempt = await stage.attempt()
    other = F("stop").replace(b'"index":0', b'"index":1')
    await attempt.begin()
    await attempt.send(R, T("Hi"), F("stop"))
    await client.until(b'"finish_reason":"stop"')
    await attempt.end(other, usage(2), D)
    assert (await client.answer()).body == R + T("Hi") + F("stop") + other + usage(2) + D


async def test_en_07_slowness_is_no_failure(stage: Stage) -> None:
    """The time itself is under test: Envoy's default limit for a whole answer, spent before and after the first delta at once."""
    late, slow = await stage.ask(STREAMED_CHAT, ("x-who", "late")), await stage.ask(STREAMED_CHAT, ("x-who", "slow"))
    attempts = {attempt.head.get("x-who"): attempt for attempt in [await stage.attempt(), await stage.attempt()]}
    await attempts["slow"].begin()
    await attempts["slow"].send(R, T("Hi"))
    await slow.until(b"Hi")
    await asyncio.sleep(ENVOY_DEFAULT_TIMEOUT_S + 2)
    await attempts["slow"].end(F("stop"), D)
    await attempts["late"].stream(GOOD)
    answers = [await slow.answer(), await late.answer()]
    assert [answer.body.replace(COMMENT, b"") for answer in answers] == [R + T("Hi") + F("stop") + D, GOOD]
    assert [answer.head.get(names.ATTEMPTS) for answer in answers] == ["1", "1"]
