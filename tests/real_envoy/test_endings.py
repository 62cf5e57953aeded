"""A replica that fails after something was delivered: one terminal event, or, once the answer has its finish, nothing (R9, R10).

What the client receives is the replica's own whole events, byte for byte, and then at most our one event (CASES areas 1 to 4).
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from extproc.sse.dialects import Dialect
from tests.real_envoy.acts import (
    GOOD,
    HI,
    LARGE,
    Act,
    answer_to,
    breaks_off,
    goes_on,
    hang_up,
    refuse,
    sends,
    streamed,
    tears,
    writes,
)
from tests.real_envoy.stage import Stage, open_stage
from tests.unit.sse.streams import (
    TEXT_BLOCK,
    WHOLE_STREAMS,
    D,
    E,
    F,
    R,
    T,
    chat,
    chat_chunk,
    data,
    message_start,
    named,
    text_delta,
    usage,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("gateway")) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(gateway_stage: Stage) -> AsyncIterator[Stage]:
    yield gateway_stage
    gateway_stage.leave_nothing()


TORN = T("torn")[:-1]
TOOL_START = chat({"tool_calls": [{"index": 0, "id": "t1", "function": {"name": "run", "arguments": ""}}]})
INTERRUPTED = {
    "sse-11 clean end": (HI, goes_on(), "engine_error"),
    "closed": (HI, hang_up, "replica_gone"),
    "reset": (HI, refuse, "replica_gone"),
    "torn event": (HI, tears(TORN), "replica_gone"),
    "torn event and clean end": (HI, goes_on(TORN), "engine_error"),
    "broken chunk": (HI, writes(b"zz\r\n"), "replica_gone"),
    "err-01": (HI, goes_on(E, D), "engine_error"),
    "err-01 beside choices": (HI, goes_on(chat_chunk([{"index": 0, "delta": {}}], error={"message": "b"})), "engine_error"),
    "err-04 flat": (HI, goes_on(data({"type": "error", "code": "x", "message": "m"}), D), "engine_error"),
    "DONE without a finish": (HI, goes_on(D), "engine_error"),
    "k8-04 abort": (HI, goes_on(F("abort"), D), "engine_error"),
    "fc-02 reasoning": (R + chat({"reasoning": "Ok"}), hang_up, "replica_gone"),
    "fc-02 reasoning_content": (R + chat({"reasoning_content": "k"}), hang_up, "replica_gone"),
    "fc-03 whitespace": (R + T("") + T(" "), hang_up, "replica_gone"),
    "fc-04 token ids": (R + chat({}, token_ids=[17]), hang_up, "replica_gone"),
    "fc-06 echoed prompt": (R + T("the prompt"), hang_up, "replica_gone"),
    "id-01 a call's name": (R + TOOL_START, hang_up, "replica_gone"),
    "crlf": (HI.replace(b"\n", b"\r\n"), hang_up, "replica_gone"),
}


@pytest.mark.parametrize(("delivered", "act", "reason"), INTERRUPTED.values(), ids=INTERRUPTED)
async def test_a_failure_after_the_first_delta_ends_with_one_terminal_event(
    stage: Stage, delivered: bytes, act: Act, reason: str
) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(delivered)
    await client.until_body(delivered)
    await act(attempt)
    answer = await client.answer()

    assert answer.body.startswith(delivered)
    error = only_event(answer.body[len(delivered) :])["error"]
    assert (answer.status, answer.broken, answer.attempts) == (200, False, 1)
    assert error.pop("message")
    error.pop("upstream_error", None)
    assert error == {
        "type": "upstream_error",
        "param": None,
        "code": "upstream_decode_interrupted",
        "request_id": answer.request_id,
        "partial_output": True,
        "delivered_output_tokens": 1,
        "delivered_output_tokens_source": "counted",
        "retryable": False,
        "reason": reason,
        "attempts": 1,
    }
    facts = await stage.facts(answer.request_id)
    assert (facts["outcome"], facts["reason"], facts["delivered_output_tokens"]) == ("interrupted", reason, 1)
    assert len(facts["attempts"]) == 1


async def test_output_that_a_replica_sent_with_its_failure_was_never_delivered(stage: Stage) -> None:
    """R2: the boundary is delivery, not generation."""
    client = await stage.ask()
    await (await stage.attempt()).stream(HI + E + D)
    await (await stage.attempt()).stream(GOOD)
    answer = await client.answer()
    assert (answer.body, answer.attempts) == (GOOD, 2)


def only_event(body: bytes) -> Any:
    """The one event that ``body`` is, by its data."""
    text = body.decode()
    assert text.startswith("data: ") and text.endswith("\n\n") and text.count("\n") == 2, body  # noqa: PT018
    return json.loads(text.removeprefix("data: "))


@pytest.mark.parametrize("dialect", [Dialect.RESPONSES, Dialect.MESSAGES])
async def test_a_named_dialects_terminal_event_is_named_and_numbered(stage: Stage, dialect: Dialect) -> None:
    stream = WHOLE_STREAMS[dialect]
    beginning = b"".join(event + b"\n\n" for event in stream.split(b"\n\n")[:5])
    answer = await answer_to(stage, breaks_off(beginning), *streamed(dialect))
    assert answer.body.startswith(beginning + b"event: error\ndata: ")
    payload = json.loads(answer.body.rpartition(b"data: ")[2])
    assert (payload["type"], payload["error"]["code"]) == ("error", "upstream_decode_interrupted")
    assert payload.get("sequence_number") == (5 if dialect is Dialect.RESPONSES else None)


async def test_err_07_and_err_08_an_upstream_error_event_is_not_followed_by_a_second(stage: Stage) -> None:
    beginning = message_start() + TEXT_BLOCK + text_delta("Hi")
    event = named("error", {"type": "error", "error": {"type": "internal_error", "message": "2 validation errors for X"}})
    body, path = streamed(Dialect.MESSAGES)
    client = await stage.ask(body, path=path)
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(beginning)
    await client.until_body(beginning)
    await attempt.end(event)
    answer = await client.answer()
    assert answer.body.startswith(beginning)
    assert answer.body.count(b"event: error") == 1
    error = json.loads(answer.body.rpartition(b"data: ")[2])["error"]
    assert (error["code"], error["reason"]) == ("upstream_decode_interrupted", "engine_error")
    assert error["upstream_error"] == {"message": "2 validation errors for X", "type": "internal_error", "code": None}


FINISHED = HI + F("stop")
SAFE = {
    "error after the finish": (sends(FINISHED, E, D), FINISHED + D),
    "error after the finish and no DONE": (sends(FINISHED, E), FINISHED),
    "cut after the finish": (breaks_off(FINISHED), FINISHED),
    "torn event after the finish": (breaks_off(FINISHED, b"data: {"), FINISHED),
    "no JSON after the finish": (sends(FINISHED, b"data: {\n\n", D), FINISHED + b"data: {\n\n" + D),
    "usage after the finish": (sends(FINISHED, usage(1), D), FINISHED + usage(1) + D),
    "sse-12 error after DONE": (sends(FINISHED + D + E), FINISHED + D),
    "sse-12 event after DONE": (sends(FINISHED + D, data({"meta": 1})), FINISHED + D),
    "sse-12 cut after DONE": (breaks_off(FINISHED + D), FINISHED + D),
    "garbage after the body": (
        writes(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%sgarbage" % (len(GOOD), GOOD)),
        GOOD,
    ),
}


@pytest.mark.parametrize(("act", "body"), SAFE.values(), ids=SAFE)
async def test_nothing_spoils_a_finished_answer(stage: Stage, act: Act, body: bytes) -> None:
    answer = await answer_to(stage, act)
    assert answer.body == body
    assert (answer.status, answer.broken, answer.attempts) == (200, False, 1)
    assert (await stage.facts(answer.request_id))["outcome"] == "completed"


async def test_en_12_a_reset_after_a_complete_answer_to_a_half_read_request_is_no_failure(stage: Stage) -> None:
    client = await stage.ask(LARGE, ("x-test", "unread"))
    attempt = await stage.attempt()
    await attempt.stream(GOOD)
    await client.until(D)
    attempt.reset()
    answer = await client.answer()
    assert (answer.status, answer.body, answer.broken, answer.attempts) == (200, GOOD, False, 1)
