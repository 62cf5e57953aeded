import json
from typing import Any

import pytest

from extproc.sse.reading import Dialect, Ending, UpstreamError
from extproc.sse.whole import WholeReading, read_whole
from tests.unit.sse.streams import response_object

USAGE = {"prompt_tokens": 12, "total_tokens": 15, "completion_tokens": 3}


def chat_body(*reasons: str | None, **fields: Any) -> dict[str, Any]:
    choices = [
        {"index": index, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": reason, "logprobs": None}
        for index, reason in enumerate(reasons)
    ]
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": choices, "usage": USAGE, **fields}


def completion_body(reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": "Hello", "finish_reason": reason, "token_ids": [1, 2, 3, 4]}
    return {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": USAGE}


def message_body(reason: str | None) -> dict[str, Any]:
    content = [{"type": "text", "text": "Hello"}]
    return {"type": "message", "content": content, "stop_reason": reason, "usage": {"input_tokens": 12, "output_tokens": 3}}


def response_body(status: str, **fields: Any) -> dict[str, Any]:
    return response_object(status, usage={"input_tokens": 12, "output_tokens": 3}, **fields)


def whole(dialect: Dialect, body: dict[str, Any]) -> WholeReading:
    return read_whole(dialect, json.dumps(body).encode())


LIMIT = {"incomplete_details": {"reason": "max_output_tokens"}}


@pytest.mark.parametrize(
    ("dialect", "body", "tokens"),
    [
        (Dialect.CHAT, chat_body("stop"), 1),
        (Dialect.CHAT, chat_body("length", "tool_calls"), 2),
        (Dialect.COMPLETIONS, completion_body("stop"), 4),
        (Dialect.MESSAGES, message_body("end_turn"), 3),
        (Dialect.RESPONSES, response_body("completed"), 3),
        (Dialect.RESPONSES, response_body("incomplete", **LIMIT), 3),
    ],
)
def test_a_normal_answer_is_complete_and_has_its_usage(dialect: Dialect, body: dict[str, Any], tokens: int):
    expected = WholeReading(complete=True, ending=Ending.FINISHED, tokens=tokens, usage_tokens=3)
    assert whole(dialect, body) == expected


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("body", [b"", b"  ", b"<html>", b"[]", b"null", b'"x"', b'{"choices":[', b"data: {}\n\n"])
def test_sse_14c_a_body_that_is_no_json_object_is_malformed(dialect: Dialect, body: bytes):
    assert read_whole(dialect, body) == WholeReading(complete=False, ending=Ending.MALFORMED)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"error": {"message": "x", "code": 503}}, UpstreamError("x", None, 503)),
        ({"error": "x"}, UpstreamError("x")),
        ({"object": "error", "message": "x", "type": "BadRequestError", "code": 400}, UpstreamError("x", "BadRequestError", 400)),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, UpstreamError("x", "overloaded_error")),
        (chat_body("stop", error={"message": "x"}), UpstreamError("x")),
    ],
)
def test_sse_14b_an_error_under_200_is_an_error(dialect: Dialect, body: dict[str, Any], error: UpstreamError):
    assert whole(dialect, body) == WholeReading(complete=False, ending=Ending.ERROR, error=error)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect.CHAT, chat_body("abort")),
        (Dialect.CHAT, chat_body("stop", "abort")),
        (Dialect.COMPLETIONS, completion_body("abort")),
        (Dialect.MESSAGES, message_body("abort")),
        (Dialect.RESPONSES, response_body("cancelled")),
        (Dialect.RESPONSES, response_body("incomplete", incomplete_details={"reason": "cancelled"})),
    ],
)
def test_k8_04_an_aborted_answer_is_not_complete(dialect: Dialect, body: dict[str, Any]):
    reading = whole(dialect, body)
    assert (reading.complete, reading.ending) == (False, Ending.ABORTED)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect.CHAT, chat_body(None)),
        (Dialect.CHAT, chat_body("stop", None)),
        (Dialect.CHAT, chat_body()),
        (Dialect.CHAT, {"choices": None}),
        (Dialect.CHAT, {"choices": [None, 5]}),
        (Dialect.COMPLETIONS, completion_body(None)),
        (Dialect.MESSAGES, message_body(None)),
        (Dialect.MESSAGES, {}),
        (Dialect.RESPONSES, {}),
    ],
)
def test_an_answer_without_a_finish_is_not_complete(dialect: Dialect, body: dict[str, Any]):
    reading = whole(dialect, body)
    assert (reading.complete, reading.ending) == (False, None)


def test_a_failed_response_is_an_error_with_its_facts():
    reading = whole(Dialect.RESPONSES, response_body("failed", error={"code": "server_error", "message": "m"}))
    assert (reading.complete, reading.error) == (False, UpstreamError("m", None, "server_error"))
    silent = whole(Dialect.RESPONSES, response_body("failed"))
    assert (silent.ending, silent.error) == (Ending.ERROR, UpstreamError("the replica gave no message"))


def test_a_finish_reason_error_is_an_error():
    assert whole(Dialect.CHAT, chat_body("error")).ending is Ending.ERROR


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_the_receipt_of_a_background_response_is_a_whole_answer(status: str):
    assert whole(Dialect.RESPONSES, response_object(status)) == WholeReading(complete=True, ending=Ending.FINISHED)


def test_fc_05_an_empty_answer_is_complete():
    body = chat_body("stop", usage=None)
    body["choices"][0]["message"]["content"] = None
    assert whole(Dialect.CHAT, body) == WholeReading(complete=True, ending=Ending.FINISHED)
