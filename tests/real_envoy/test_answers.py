"""Whole answers, and replicas' refusals: what a client receives of them, byte for byte (CASES areas 1 to 3)."""

import gzip
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from extproc.sse.dialects import Dialect
from tests.real_envoy.acts import (
    GOOD,
    HI,
    LARGE,
    WHOLE_ANSWER,
    Act,
    answer_to,
    answers,
    breaks_off,
    sends,
    streamed,
    writes,
)
from tests.real_envoy.scripted_replica import Attempt
from tests.real_envoy.stage import STREAMED_CHAT, WHOLE_CHAT, Stage, open_stage
from tests.unit.sse.streams import (
    CHAT_STREAM,
    CHAT_TOOL_STREAM,
    PING,
    WHOLE_STREAMS,
    D,
    E,
    F,
    R,
    T,
    chat,
    chat_chunk,
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


# --- event streams -----------------------------------------------------------------------------------------------------

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
