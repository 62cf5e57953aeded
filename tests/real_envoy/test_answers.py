"""What a client receives, byte for byte, of what a replica sends: the public cases through the real gateway (CASES areas 1 to 3).

A streamed answer is either the replica's own bytes, or a beginning of them that ends with one whole event, and then our terminal
event. An answer of which nothing was delivered is another replica's whole answer, or an error with an honest status (R2, R9).
"""

import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from extproc.app.demonstration.apis import PATHS, request_body
from extproc.sse.dialects import Dialect
from tests.real_envoy.stage import STREAMED_CHAT, WHOLE_CHAT, Stage, open_stage
from tests.real_envoy.wire import Answer, Attempt
from tests.unit.sse.streams import (
    CHAT_STREAM,
    CHAT_TOOL_STREAM,
    PING,
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

GOOD = R + T("Good") + F("stop") + D
HI = R + T("Hi")
WHOLE_ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}], "spaced": 1}
).encode()
LARGE = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 8_000_000}]}).encode()

Act = Callable[[Attempt], Awaitable[object]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway_stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with open_stage(tmp_path_factory.mktemp("gateway")) as stage:
        yield stage


@pytest_asyncio.fixture(loop_scope="module")
async def stage(gateway_stage: Stage) -> AsyncIterator[Stage]:
    yield gateway_stage
    gateway_stage.leave_nothing()


def streamed(dialect: Dialect) -> tuple[bytes, str]:
    return request_body(dialect, model="m", stream=True), PATHS[dialect]


async def answer_to(stage: Stage, act: Act, body: bytes = STREAMED_CHAT, path: str = PATHS[Dialect.CHAT]) -> Answer:
    """The client's answer where the only attempt does ``act``."""
    client = await stage.ask(body, path=path)
    await act(await stage.attempt())
    return await client.answer()


# --- whole streams -----------------------------------------------------------------------------------------------------

CRLF = CHAT_STREAM.replace(b"\n", b"\r\n")
CR = CHAT_STREAM.replace(b"\n", b"\r")
UNCHANGED = {
    "plain": [CHAT_STREAM],
    "tool call": [CHAT_TOOL_STREAM],
    "sse-01 CRLF": [CRLF],
    "sse-01 CR": [CR],
    "sse-01 mixed": [R[:-1] + b"\r\n", T("Hi")[:-2] + b"\r\n\n", F("stop")[:-1] + b"\r", D],
    "sse-02 CR and LF in two chunks": [CRLF[:1] + CRLF[1:].partition(b"\r")[0] + b"\r", CRLF[1:].partition(b"\r")[2]],
    "sse-03 no space": [CHAT_STREAM.replace(b"data: ", b"data:")],
    "sse-04 ids and pings": [b"id: 7\n" + R, PING, T("Hi"), b": ping\n", F("stop") + D],
    "sse-05 frames without payload": [b"retry: 3000\n\n", b"event: ping\n\n", R, b"data:\n\n", T("Hi") + F("stop") + D],
    "sse-06 line separators inside JSON": [R + T("a\u2028b\u2029c\u0085d") + F("stop") + D],
    "sse-07 cut inside characters": [piece for byte in (R + T("北😀") + F("stop") + D) for piece in [bytes([byte])]],
    "sse-07 broken UTF-8": [R + T("Hi").replace(b"Hi", b"\xe5\x8c") + F("stop") + D],
    "sse-08 an event of 5 MB": [R + T("x" * 5_000_000), F("stop") + D],
    "sse-09 byte-order mark": [b"\xef\xbb", b"\xbf" + T("Hi") + T(" two") + F("stop") + D],
    "sse-11 no DONE": [HI + F("stop")],
    "fc-05 finish with the last text": [R + chat({"content": "."}, "length") + D],
    "fc-05 empty answer": [R + F("stop") + D],
    "fc-07 usage everywhere": [chat_chunk([]), R, T("Hi"), F("stop"), usage(2), D],
}


@pytest.mark.parametrize("pieces", UNCHANGED.values(), ids=UNCHANGED)
async def test_a_whole_stream_is_the_replicas_own_bytes(stage: Stage, pieces: list[bytes]) -> None:
    answer = await answer_to(stage, lambda attempt: attempt.stream(*pieces))

    assert answer.body == b"".join(pieces)
    assert (answer.status, answer.broken, answer.attempts) == (200, False, 1)
    assert (await stage.facts(answer.request_id))["outcome"] == "completed"


@pytest.mark.parametrize("dialect", Dialect)
async def test_every_dialects_stream_is_the_replicas_own_bytes(stage: Stage, dialect: Dialect) -> None:
    answer = await answer_to(stage, lambda attempt: attempt.stream(WHOLE_STREAMS[dialect]), *streamed(dialect))

    assert answer.body == WHOLE_STREAMS[dialect]
    assert answer.head.get("content-type") == "text/event-stream"


async def test_events_come_as_they_are_sent(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    await attempt.send(R)
    for word in ("one", "two", "three"):
        await attempt.send(T(word))
        await client.until(word.encode())
    await attempt.end(F("stop"), D)
    assert (await client.answer()).body == R + T("one") + T("two") + T("three") + F("stop") + D


async def test_interim_answers_and_trailers_go_no_further(stage: Stage) -> None:
    async def act(attempt: Attempt) -> None:
        await attempt.write(b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n")
        await attempt.begin()
        await attempt.send(GOOD)
        await attempt.write(b"0\r\nx-trailer: 1\r\n\r\n")

    client = await stage.ask()
    await act(await stage.attempt())
    answer = await client.answer()
    assert (answer.status, answer.body, answer.attempts) == (200, GOOD, 1)
    assert answer.head.get("link") is None


async def test_header_values_of_any_bytes_pass_both_ways(stage: Stage) -> None:
    value = 'caf\xe9 \u00c3\u00a9 "quoted", %25'  # latin-1 and UTF-8, as bytes of one character each
    client = await stage.ask(WHOLE_CHAT, ("x-own", value))
    attempt = await stage.attempt()
    await attempt.answer(WHOLE_ANSWER, ("x-own", value))
    assert (attempt.head.get("x-own"), (await client.answer()).head.get("x-own")) == (value, value)


async def test_sse_14_an_event_stream_by_another_name_is_read_all_the_same(stage: Stage) -> None:
    client = await stage.ask()
    first = await stage.attempt()
    await first.begin(content_type="text/plain")
    await first.end(R + E + D)
    second = await stage.attempt()
    await second.begin(content_type="text/plain")
    await second.end(GOOD)
    assert (await client.answer()).body == GOOD


# --- nothing was delivered ---------------------------------------------------------------------------------------------


async def refuse(attempt: Attempt) -> None:
    attempt.reset()


async def hang_up(attempt: Attempt) -> None:
    attempt.close()


def sends(*pieces: bytes) -> Act:
    return lambda attempt: attempt.stream(*pieces)


def breaks_off(*pieces: bytes) -> Act:
    async def act(attempt: Attempt) -> None:
        await attempt.begin()
        await attempt.send(*pieces)
        attempt.close()

    return act


def writes(data: bytes) -> Act:
    async def act(attempt: Attempt) -> None:
        await attempt.write(data)
        attempt.close()

    return act


def answers(status: str, body: bytes = b"", *more: tuple[str, str], content_type: str = "application/json") -> Act:
    return lambda attempt: attempt.answer(body, *more, status=status, content_type=content_type)


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


# --- the request's own error -------------------------------------------------------------------------------------------

REFUSALS = {
    "400": ("400 Bad Request", b'{"error" : {"message": "no \xc3\xa9", "code": 400}}\n', "application/json"),
    "404": ("404 Not Found", b'{"error":{"message":"no such model"}}', "application/json"),
    "409": ("409 Conflict", b"{}", "application/json"),
    "422 without a body": ("422 Unprocessable Entity", b"", "application/json"),
    "401 of another kind": ("401 Unauthorized", b"<html>\x00\xff</html>", "text/html"),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(("status", "body", "content_type"), REFUSALS.values(), ids=REFUSALS)
async def test_a_request_error_is_passed_on_unchanged(
    stage: Stage, status: str, body: bytes, content_type: str, stream: bool
) -> None:
    client = await stage.ask(STREAMED_CHAT if stream else WHOLE_CHAT)
    await (await stage.attempt()).answer(body, ("x-own", "1"), ("x-own", "2"), status=status, content_type=content_type)
    answer = await client.answer()
    assert (answer.status, answer.body, answer.attempts) == (int(status[:3]), body, 1)
    assert (answer.head.get("content-type"), answer.head.all("x-own")) == (content_type, ["1, 2"])
    assert answer.head.all("content-length") == [str(len(body))]
    assert (await stage.facts(answer.request_id))["reason"] == f"request_error_{status[:3]}"


async def test_a_request_error_that_breaks_off_is_a_failure_like_any_other(stage: Stage) -> None:
    client = await stage.ask()
    await writes(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 100\r\n\r\n{")(await stage.attempt())
    await (await stage.attempt()).stream(GOOD)
    assert (await client.answer()).body == GOOD


async def test_a_large_requests_early_refusal_arrives(stage: Stage) -> None:
    client = await stage.ask(LARGE, ("x-test", "unread"))
    attempt = await stage.attempt()
    await attempt.answer(b'{"error":"too long"}', ("connection", "close"), status="400 Bad Request")
    answer = await client.answer()
    assert (answer.status, answer.body) == (400, b'{"error":"too long"}')


# --- something was delivered -------------------------------------------------------------------------------------------


def goes_on(*pieces: bytes) -> Act:
    return lambda attempt: attempt.end(*pieces)


def tears(data: bytes) -> Act:
    async def act(attempt: Attempt) -> None:
        await attempt.send(data)
        attempt.close()

    return act


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


# --- a finished answer is safe -----------------------------------------------------------------------------------------

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


# --- answers that are not event streams --------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [WHOLE_CHAT, STREAMED_CHAT], ids=["whole", "stream was asked for"])
async def test_a_whole_answer_is_the_replicas_own_bytes(stage: Stage, body: bytes) -> None:
    answer = await answer_to(stage, answers("200 OK", WHOLE_ANSWER, ("x-own", "1")), body)
    assert (answer.status, answer.body, answer.attempts) == (200, WHOLE_ANSWER, 1)
    assert (answer.head.get("content-type"), answer.head.get("x-own")) == ("application/json", "1")
    assert answer.head.all("content-length") == [str(len(WHOLE_ANSWER))]


async def test_sse_08_an_event_above_the_limit_is_an_honest_502_and_not_asked_for_again(stage: Stage) -> None:
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin()
    with suppress(ConnectionError):  # the gateway need not wait for the last of it
        await attempt.send(R + T("x" * 17_000_000))
    answer = await client.answer()
    assert (answer.status, answer.attempts, answer.json["error"]["code"]) == (502, 1, "response_too_large")


async def test_a_whole_answer_of_20_mb_arrives(stage: Stage) -> None:
    whole = WHOLE_ANSWER.replace(b"Hi", b"x" * 20_000_000)
    answer = await answer_to(stage, answers("200 OK", whole), WHOLE_CHAT)
    assert answer.body == whole


@pytest.mark.parametrize(
    "act",
    [breaks_off(WHOLE_ANSWER[:-9]), writes(b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + WHOLE_ANSWER), sends(b"")],
    ids=["cut", "short of its length", "empty"],
)
async def test_a_whole_answer_is_repeated_until_it_is_whole(stage: Stage, act: Act) -> None:
    client = await stage.ask(WHOLE_CHAT)
    await act(await stage.attempt())
    await (await stage.attempt()).answer(WHOLE_ANSWER)
    answer = await client.answer()
    assert (answer.status, answer.body, answer.attempts) == (200, WHOLE_ANSWER, 2)


async def test_sse_13_encoded_bytes_pass_untouched(stage: Stage) -> None:
    encoded = gzip.compress(CHAT_STREAM)

    async def act(attempt: Attempt) -> None:
        await attempt.begin(("content-encoding", "gzip"))
        await attempt.end(encoded[:20], encoded[20:40], encoded[40:])

    answer = await answer_to(stage, act)
    assert (answer.body, answer.head.get("content-encoding")) == (encoded, "gzip")


async def test_sse_13_nothing_is_put_into_encoded_bytes(stage: Stage) -> None:
    encoded = gzip.compress(CHAT_STREAM)
    client = await stage.ask()
    attempt = await stage.attempt()
    await attempt.begin(("content-encoding", "gzip"))
    await attempt.send(encoded[:30])
    await client.until(encoded[:30])
    attempt.reset()
    answer = await client.answer()
    assert (answer.body, answer.broken) == (encoded[:30], True)
    assert (await stage.facts(answer.request_id))["outcome"] == "interrupted"


@pytest.mark.parametrize("body", [WHOLE_CHAT, STREAMED_CHAT], ids=["whole", "stream was asked for"])
async def test_sse_13_an_encoded_whole_answer_passes_untouched(stage: Stage, body: bytes) -> None:
    encoded = gzip.compress(WHOLE_ANSWER)
    answer = await answer_to(stage, answers("200 OK", encoded, ("content-encoding", "gzip")), body)
    assert (answer.status, answer.body, answer.head.get("content-encoding")) == (200, encoded, "gzip")


async def test_a_replicas_headers_arrive_without_what_is_between_neighbours(stage: Stage) -> None:
    forged = [("x-deltafence-attempts", "9"), ("x-envoy-own", "1"), ("keep-alive", "timeout=5"), ("x-served-by", "nobody")]
    kept = [("x-request-cost", "3"), ("link", "<a>"), ("link", "<b>"), ("set-cookie", "a=1"), ("set-cookie", "b=2")]
    answer = await answer_to(stage, answers("200 OK", WHOLE_ANSWER, *forged, *kept), WHOLE_CHAT)
    assert answer.attempts == 1
    assert {"keep-alive", "x-served-by", "x-envoy-own"}.isdisjoint(name for name, _ in answer.head.headers)
    assert (answer.head.all("x-request-cost"), answer.head.all("link")) == (["3"], ["<a>, <b>"])
    assert answer.head.all("set-cookie") == ["b=2"]
