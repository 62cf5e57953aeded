import json
from typing import Any

import pytest

from extproc.contract.errors import FORMS, ClientError, ErrorCode
from extproc.sse.framing import Framer
from extproc.sse.reading import Dialect
from extproc.sse.terminal import KEEP_ALIVE_COMMENT, error_body, terminal_event


def client_error(code: ErrorCode = ErrorCode.UPSTREAM_DECODE_INTERRUPTED, message: str = "the replica went away") -> ClientError:
    return ClientError(
        code=code,
        message=message,
        request_id="req_01J",
        partial_output=True,
        delivered_output_tokens=7,
        reason="replica_gone",
        attempts=1,
        upstream_error={"message": "boom", "type": "InternalServerError", "code": 500},
    )


def payload_of(event: bytes) -> dict[str, Any]:
    (framed,) = Framer().feed(event)
    assert framed.data is not None
    return json.loads(framed.data)


R9_FIELDS = {
    "code": "upstream_decode_interrupted",
    "message": "the replica went away",
    "request_id": "req_01J",
    "partial_output": True,
    "delivered_output_tokens": 7,
    "retryable": False,
    "reason": "replica_gone",
}


@pytest.mark.parametrize("dialect", Dialect)
def test_the_terminal_event_is_one_whole_event_with_the_facts(dialect: Dialect):
    event = terminal_event(dialect, client_error(), 8)
    error = payload_of(event)["error"]
    assert R9_FIELDS.items() <= error.items()
    assert error["upstream_error"] == {"message": "boom", "type": "InternalServerError", "code": 500}
    assert event.endswith(b"\n\n")


@pytest.mark.parametrize("dialect", Dialect)
def test_sse_04_no_id_line_and_no_done_are_written(dialect: Dialect):
    event = terminal_event(dialect, client_error(), 8)
    assert not any(line.startswith((b"id:", b"retry:")) for line in event.split(b"\n"))
    assert b"[DONE]" not in event


@pytest.mark.parametrize("dialect", Dialect)
def test_sse_06_a_line_separator_in_the_message_splits_nothing(dialect: Dialect):
    event = terminal_event(dialect, client_error(message="a\u2028b\u2029c\u0085d\ne\rf\ud83d"), 8)
    assert event.isascii()
    assert payload_of(event)["error"]["message"] == "a\u2028b\u2029c\u0085d\ne\rf\ud83d"
    assert len(event.decode().splitlines()) == event.count(b"\n")


@pytest.mark.parametrize("dialect", [Dialect.CHAT, Dialect.COMPLETIONS])
def test_err_01_the_completion_apis_get_an_error_object_without_an_event_name(dialect: Dialect):
    event = terminal_event(dialect, client_error(), None)
    assert event.startswith(b'data: {"error":{')
    assert set(payload_of(event)) == {"error"}


@pytest.mark.parametrize(("sequence_number", "written"), [(8, 8), (None, 0)])
def test_fc_09_a_responses_error_is_nested_and_numbered_and_its_code_is_a_string(sequence_number: int | None, written: int):
    event = terminal_event(Dialect.RESPONSES, client_error(), sequence_number)
    payload = payload_of(event)
    assert event.startswith(b"event: error\n")
    assert (payload["type"], payload["sequence_number"]) == ("error", written)
    assert isinstance(payload["error"]["code"], str)


def test_err_09_a_messages_error_has_anthropics_shape():
    event = terminal_event(Dialect.MESSAGES, client_error(), None)
    payload = payload_of(event)
    assert event.startswith(b"event: error\n")
    assert (payload["type"], payload["error"]["type"], payload["request_id"]) == ("error", "api_error", "req_01J")


@pytest.mark.parametrize("code", ErrorCode)
@pytest.mark.parametrize("dialect", Dialect)
def test_every_code_has_a_body_in_every_dialect(code: ErrorCode, dialect: Dialect):
    body = json.loads(error_body(dialect, client_error(code)))
    assert body["error"]["code"] == code
    assert body["error"]["retryable"] is False
    if dialect is not Dialect.MESSAGES:
        assert set(body) == {"error"}
        assert body["error"]["type"] == ("upstream_error" if FORMS[code].status >= 500 else "invalid_request_error")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.ATTEMPTS_EXHAUSTED, "api_error"),
        (ErrorCode.INTERNAL_ERROR, "api_error"),
        (ErrorCode.NO_HEALTHY_REPLICA, "overloaded_error"),
        (ErrorCode.FIRST_DELTA_DEADLINE_EXCEEDED, "timeout_error"),
        (ErrorCode.REQUEST_TOO_LARGE, "request_too_large"),
        (ErrorCode.IDEMPOTENCY_KEY_REUSED, "invalid_request_error"),
    ],
)
def test_anthropic_clients_get_their_own_error_types(code: ErrorCode, kind: str):
    body = json.loads(error_body(Dialect.MESSAGES, client_error(code)))
    assert (body["type"], body["error"]["type"], body["error"]["details"]) == ("error", kind, {"error_code": code})


def test_sse_04_the_keep_alive_is_a_comment_that_ends_no_event():
    assert KEEP_ALIVE_COMMENT.startswith(b":")
    assert KEEP_ALIVE_COMMENT.count(b"\n") == 1
    framer = Framer()
    assert framer.feed(KEEP_ALIVE_COMMENT * 3) == []
    assert [event.data for event in framer.feed(b"data: x\n\n")] == [b"x"]
