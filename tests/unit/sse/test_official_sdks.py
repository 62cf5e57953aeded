"""The official SDKs raise on our terminal event, and the facts are in their error (R9, CASES ERR-04, ERR-09).

Their own stream classes read the bytes; only the network is replaced.
"""

from collections.abc import Callable

import anthropic
import httpx2
import openai
import pytest

from extproc.contract.errors import ClientError, ErrorCode
from extproc.sse.reading import Dialect, StreamReader
from extproc.sse.terminal import KEEP_ALIVE_COMMENT, error_body, terminal_event
from tests.unit.sse.streams import (
    RESPONSES_OPENING,
    TEXT_BLOCK,
    WHOLE_STREAMS,
    R,
    T,
    completion,
    message_start,
    response_text,
    text_delta,
)

STARTED = {
    Dialect.CHAT: R + T("Hi"),
    Dialect.COMPLETIONS: completion("Hi"),
    Dialect.RESPONSES: RESPONSES_OPENING + response_text("Hi", 4),
    Dialect.MESSAGES: message_start() + TEXT_BLOCK + text_delta("Hi"),
}
MESSAGES = [{"role": "user", "content": "Hello"}]


def client_error(code: ErrorCode) -> ClientError:
    return ClientError(
        code=code,
        message="the replica\u2028went away",
        request_id="req_01J",
        partial_output=code is ErrorCode.UPSTREAM_DECODE_INTERRUPTED,
        delivered_output_tokens=1,
        reason="replica_gone",
        attempts=1,
    )


def transport(status: int, body: bytes, content_type: str) -> httpx2.Client:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, content=body, headers={"content-type": content_type})

    return httpx2.Client(transport=httpx2.MockTransport(answer))


def stream(dialect: Dialect, body: bytes, status: int = 200, content_type: str = "text/event-stream") -> list[object]:
    """All events that the dialect's SDK gives for ``body``."""
    http = transport(status, body, content_type)
    to_openai = openai.OpenAI(base_url="http://gateway/v1", api_key="x", http_client=http, max_retries=0)
    to_anthropic = anthropic.Anthropic(base_url="http://gateway", api_key="x", http_client=http, max_retries=0)
    calls: dict[Dialect, Callable[[], object]] = {
        Dialect.CHAT: lambda: to_openai.chat.completions.create(model="m", messages=MESSAGES, stream=True),
        Dialect.COMPLETIONS: lambda: to_openai.completions.create(model="m", prompt="Hello", stream=True),
        Dialect.RESPONSES: lambda: to_openai.responses.create(model="m", input="Hello", stream=True),
        Dialect.MESSAGES: lambda: to_anthropic.messages.create(model="m", messages=MESSAGES, max_tokens=9, stream=True),
    }
    with http, calls[dialect]() as events:
        return list(events)


def raised(dialect: Dialect, body: bytes, status: int = 200, content_type: str = "text/event-stream") -> Exception:
    with pytest.raises((openai.APIError, anthropic.APIError)) as caught:
        stream(dialect, body, status, content_type)
    return caught.value


def facts_in(error: Exception) -> dict[str, object]:
    body = error.body
    return body["error"] if isinstance(error, anthropic.APIError) else body


@pytest.mark.parametrize("dialect", Dialect)
def test_a_whole_stream_raises_nothing(dialect: Dialect):
    assert stream(dialect, WHOLE_STREAMS[dialect])


@pytest.mark.parametrize("dialect", Dialect)
def test_the_terminal_event_raises_and_its_facts_are_in_the_error(dialect: Dialect):
    reader = StreamReader(dialect)
    reader.feed(STARTED[dialect])
    error = client_error(ErrorCode.UPSTREAM_DECODE_INTERRUPTED)
    caught = raised(dialect, STARTED[dialect] + terminal_event(dialect, error, reader.next_sequence_number))
    expected = {
        "code": "upstream_decode_interrupted",
        "message": "the replica\u2028went away",
        "request_id": "req_01J",
        "partial_output": True,
        "delivered_output_tokens": 1,
        "retryable": False,
        "reason": "replica_gone",
    }
    assert expected.items() <= facts_in(caught).items()


@pytest.mark.parametrize("dialect", Dialect)
def test_the_terminal_event_raises_where_it_is_the_first_event(dialect: Dialect):
    raised(dialect, KEEP_ALIVE_COMMENT + terminal_event(dialect, client_error(ErrorCode.ATTEMPTS_EXHAUSTED), None))


def test_the_openai_sdk_shows_code_and_message():
    caught = raised(Dialect.CHAT, terminal_event(Dialect.CHAT, client_error(ErrorCode.UPSTREAM_DECODE_INTERRUPTED), None))
    assert isinstance(caught, openai.APIError)
    assert (caught.code, caught.message) == ("upstream_decode_interrupted", "the replica\u2028went away")


def test_the_anthropic_sdk_shows_type_and_code():
    caught = raised(Dialect.MESSAGES, terminal_event(Dialect.MESSAGES, client_error(ErrorCode.UPSTREAM_DECODE_INTERRUPTED), None))
    assert isinstance(caught, anthropic.APIStatusError)
    assert (caught.type, caught.error_code, caught.status_code) == ("api_error", "upstream_decode_interrupted", 200)


@pytest.mark.parametrize("dialect", Dialect)
def test_the_error_body_before_the_boundary_is_in_the_error_too(dialect: Dialect):
    body = error_body(dialect, client_error(ErrorCode.NO_HEALTHY_REPLICA))
    caught = raised(dialect, body, 503, "application/json")
    assert caught.status_code == 503
    assert facts_in(caught)["code"] == "no_healthy_replica"
    assert facts_in(caught)["partial_output"] is False


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("first", [b"", b"id: 7\n"], ids=["plain", "after an id line"])
def test_sse_04_a_keep_alive_between_events_is_harmless(dialect: Dialect, first: bytes):
    events = [event + b"\n\n" for event in WHOLE_STREAMS[dialect].split(b"\n\n")[:-1]]
    assert stream(dialect, first + KEEP_ALIVE_COMMENT.join(events)) == stream(dialect, WHOLE_STREAMS[dialect])


def test_sse_04_a_ping_with_a_blank_line_is_not_harmless_after_an_id_line():
    with pytest.raises(ValueError, match="Expecting value"):
        stream(Dialect.CHAT, b"id: 7\n" + R + b": ping\n\n" + T("Hi"))


@pytest.mark.parametrize("event", [b'data: {"type":"error","code":"x","message":"m"}\n\n', b'data: {"error":null}\n\n'])
def test_err_04_the_flat_form_and_a_null_error_raise_nothing(event: bytes):
    assert len(stream(Dialect.CHAT, R + event)) == 2
