"""A replica that fails before anything was delivered: the client gets another one's whole answer, or an honest status (R2).

Every case leaves no trace of the failed attempt in what the client receives (CASES areas 1 to 3).
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from extproc.sse.dialects import Dialect
from tests.real_envoy.acts import GOOD, LARGE, Act, answers, breaks_off, hang_up, refuse, sends, streamed, writes
from tests.real_envoy.stage import STREAMED_CHAT, Stage, open_stage
from tests.unit.sse.streams import WHOLE_STREAMS, D, E, F, R, T, chat, data, named

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("gateway")) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(gateway_stage: Stage) -> AsyncIterator[Stage]:
    yield gateway_stage
    gateway_stage.leave_nothing()


REPEATED = {
    "reset before the headers": (refuse, "replica_gone"),
    "en-09 closed before the headers": (hang_up, "replica_gone"),
    "half of a head": (writes(b"HTTP/1.1 200 OK\r\ncontent-ty"), "replica_gone"),
    "no HTTP": (writes(b"\x16\x03\x01 garbage\r\n\r\n"), "replica_gone"),
    "broken chunk after the headers": (writes(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"), "replica_gone"),
    "only headers": (breaks_off(), "replica_gone"),
    "headers above every limit": (writes(b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000 + b"\r\n\r\n"), "replica_gone"),
    "an upgrade": (writes(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"), "replica_gone"),
    "status 500": (answers("500 Internal Server Error", b'{"error":{"message":"boom"}}'), "engine_error"),
    "status 502": (answers("502 Bad Gateway", b"<html>", content_type="text/html"), "engine_error"),
    "sse-05 only comments": (sends(b": wait\n\n", b": wait\n\n"), "engine_error"),
    "sse-14 error under 200": (answers("200 OK", b'{"error":{"message":"x","code":503}}'), "engine_error"),
    "sse-14 empty 200": (answers("200 OK", content_type="text/event-stream"), "engine_error"),
    "sse-14 empty 200 of no type": (writes(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), "engine_error"),
    "fc-01 role chunk": (breaks_off(R), "replica_gone"),
    "fc-01 null content": (breaks_off(chat({"role": "assistant", "content": None})), "replica_gone"),
    "fc-01 empty delta": (breaks_off(chat({})), "replica_gone"),
    "fc-02 empty reasoning": (breaks_off(R, chat({"reasoning": ""})), "replica_gone"),
    "fc-03 empty deltas": (breaks_off(R, T(""), T(""), T("")), "replica_gone"),
    "fc-04 prompt token ids": (breaks_off(chat({"role": "assistant", "content": ""}, prompt_token_ids=[1])), "replica_gone"),
    "first delta torn": (breaks_off(R, T("torn")[:-1]), "replica_gone"),
    "err-01 error after the role": (sends(R, E, D), "engine_error"),
    "err-01 error first": (sends(E, D), "engine_error"),
    "err-01 error as text": (sends(data({"error": "boom"})), "engine_error"),
    "err-06 DONE alone": (sends(D), "engine_error"),
    "err-06 role and DONE": (sends(R, D), "engine_error"),
    "no JSON": (sends(b"data: {nothing\n\n"), "engine_error"),
    "k8-04 abort": (sends(R, F("abort"), D), "engine_error"),
    "not an answer": (answers("200 OK", b"<html>hello</html>", content_type="text/html"), "engine_error"),
}


@pytest.mark.parametrize(("act", "cause"), REPEATED.values(), ids=REPEATED)
async def test_a_failure_before_the_first_delta_leaves_no_trace(stage: Stage, act: Act, cause: str) -> None:
    client = await stage.ask()
    first = await stage.attempt()
    await act(first)
    second = await stage.attempt()
    assert not client.received
    await second.stream(GOOD)
    answer = await client.answer()

    assert answer.body == GOOD
    assert (answer.status, answer.broken, answer.attempts) == (200, False, 2)
    assert first.replica != second.replica
    assert (first.request_id, first.body) == (second.request_id, second.body) == (answer.request_id, STREAMED_CHAT)
    assert first.attempt_id != second.attempt_id
    facts = await stage.facts(answer.request_id)
    assert facts["outcome"] == "completed"
    assert [attempt["cause"] for attempt in facts["attempts"]] == [cause, None]


FIRST_EVENT_ERRORS = {
    "fc-09": (
        Dialect.RESPONSES,
        named("error", {"type": "error", "sequence_number": 2, "error": {"code": None, "message": "x"}}),
    ),
    "err-09": (Dialect.MESSAGES, named("error", {"type": "error", "error": {"type": "overloaded_error", "message": "x"}})),
}


@pytest.mark.parametrize(("dialect", "event"), FIRST_EVENT_ERRORS.values(), ids=FIRST_EVENT_ERRORS)
async def test_an_error_as_the_first_event_is_repeated(stage: Stage, dialect: Dialect, event: bytes) -> None:
    body, path = streamed(dialect)
    client = await stage.ask(body, path=path)
    await (await stage.attempt()).stream(event)
    await (await stage.attempt()).stream(WHOLE_STREAMS[dialect])
    assert (await client.answer()).body == WHOLE_STREAMS[dialect]


async def test_a_replica_that_breaks_off_the_requests_upload_is_replaced(stage: Stage) -> None:
    client = await stage.ask(LARGE, ("x-test", "unread"))
    (await stage.attempt()).reset()
    second = await stage.attempt()
    await second.stream(GOOD)
    answer = await client.answer()
    assert (answer.status, answer.body, answer.attempts) == (200, GOOD, 2)


async def test_two_failures_are_an_honest_502_that_no_sdk_repeats(stage: Stage) -> None:
    client = await stage.ask()
    for _ in range(2):
        await (await stage.attempt()).stream(R, E, D)
    answer = await client.answer()

    assert answer.status == 502
    assert (answer.head.get("content-type"), answer.head.get("x-should-retry")) == ("application/json", "false")
    error = answer.json["error"]
    assert (error["code"], error["partial_output"], error["delivered_output_tokens"]) == ("attempts_exhausted", False, 0)
    assert (error["request_id"], error["retryable"], error["attempts"]) == (answer.request_id, False, 2)
    assert error["upstream_error"]["message"] == "boom"
    assert (await stage.facts(answer.request_id))["outcome"] == "failed"


async def test_an_overloaded_replicas_request_goes_to_one_with_room(stage: Stage) -> None:
    client = await stage.ask()
    await (await stage.attempt()).answer(b"{}", ("retry-after", "9"), status="429 Too Many Requests")
    await (await stage.attempt()).stream(GOOD)
    answer = await client.answer()
    assert (answer.status, answer.body, answer.attempts) == (200, GOOD, 2)


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_where_no_replica_has_room_the_refusal_is_handed_on(stage: Stage, status: str) -> None:
    client = await stage.ask()
    await (await stage.attempt()).answer(b"{}", ("retry-after", "3"), status="503 Service Unavailable")
    await (await stage.attempt()).answer(b"{}", ("retry-after", "7"), status=status)
    answer = await client.answer()
    assert (answer.status, answer.head.all("retry-after")) == (int(status[:3]), ["7"])
    assert (answer.head.get("x-should-retry"), answer.json["error"]["code"]) == ("false", "overloaded")
