"""/v1/responses."""

from typing import Any

import pytest

from extproc.sse.reading import Batch, Dialect, Ending, StreamReader, UpstreamError
from tests.unit.sse.streams import (
    MESSAGE_ITEM,
    RESPONSES_OPENING,
    RESPONSES_STREAM,
    D,
    E,
    named,
    read,
    response_completed,
    response_event,
    response_object,
    response_text,
    typed,
)

HEAD = RESPONSES_OPENING + response_text("Hi", 4)


def read_responses(stream: bytes):
    return read(stream, Dialect.RESPONSES)


def test_fc_01_what_opens_a_response_is_not_content():
    assert StreamReader(Dialect.RESPONSES).feed(RESPONSES_OPENING) == Batch(RESPONSES_OPENING)


@pytest.mark.parametrize(
    "kind",
    [
        "output_text",
        "reasoning_text",
        "reasoning_summary_text",
        "refusal",
        "function_call_arguments",
        "custom_tool_call_input",
        "mcp_call_arguments",
        "code_interpreter_call_code",
        "audio",
        "audio.transcript",
    ],
)
def test_fc_02_every_kind_of_delta_is_content_unless_it_is_empty(kind: str):
    event = f"response.{kind}.delta"
    full = StreamReader(Dialect.RESPONSES).feed(RESPONSES_OPENING + response_event(event, 4, delta=" "))
    empty = StreamReader(Dialect.RESPONSES).feed(RESPONSES_OPENING + response_event(event, 4, delta=""))
    assert (full.content, full.tokens, empty.content) == (True, 1, False)


def test_fc_04_logprobs_are_content_and_count_the_tokens():
    event = response_event("response.output_text.delta", 4, delta="", logprobs=[{"token": "a"}, {"token": "b"}])
    batch = StreamReader(Dialect.RESPONSES).feed(event)
    assert (batch.content, batch.tokens) == (True, 2)


@pytest.mark.parametrize(
    ("item", "content"),
    [
        ({"type": "function_call", "name": "run", "call_id": "call_1", "id": "fc_1", "arguments": ""}, True),
        ({"type": "custom_tool_call", "name": "run", "call_id": "call_1"}, True),
        ({"type": "mcp_call", "name": "run", "id": "mcp_1"}, True),
        ({"type": "web_search_call", "id": "ws_1"}, True),
        ({"type": "function_call"}, False),
        (MESSAGE_ITEM, False),
        ({"type": "reasoning", "id": "rs_1", "summary": []}, False),
        ({"id": "x"}, False),
        (None, False),
    ],
)
def test_id_01_the_opening_of_a_call_is_content(item: dict[str, Any] | None, content: bool):
    event = response_event("response.output_item.added", 2, output_index=0, item=item)
    assert StreamReader(Dialect.RESPONSES).feed(event).content is content


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
@pytest.mark.parametrize("kind", ["response.incomplete", "response.completed"])
def test_an_answer_that_was_cut_by_a_limit_is_finished(kind: str, reason: str):
    response = response_object("incomplete", incomplete_details={"reason": reason}, usage={"output_tokens": 9})
    stream = HEAD + response_event(kind, 5, response=response)
    outcome = read_responses(stream)
    assert (outcome.forward, outcome.ending, outcome.last, outcome.usage_tokens) == (stream, Ending.FINISHED, True, 9)


@pytest.mark.parametrize(
    "response",
    [
        response_object("incomplete", incomplete_details={"reason": "cancelled"}),
        response_object("incomplete", incomplete_details={"reason": ["x"]}),
        response_object("incomplete", incomplete_details=None),
        {},
        None,
    ],
)
def test_an_answer_that_was_cut_by_anything_else_is_aborted(response: object):
    outcome = read_responses(HEAD + response_event("response.incomplete", 5, response=response))
    assert (outcome.forward, outcome.ending, outcome.finished) == (HEAD, Ending.ABORTED, False)


@pytest.mark.parametrize("event", [response_completed(5, "cancelled"), response_event("response.cancelled", 5, response={})])
def test_k8_04_a_cancelled_response_is_aborted_even_inside_completed(event: bytes):
    outcome = read_responses(HEAD + event)
    assert (outcome.forward, outcome.ending, outcome.error) == (HEAD, Ending.ABORTED, None)


def test_a_status_that_is_no_end_is_an_error():
    outcome = read_responses(HEAD + response_completed(5, "in_progress"))
    assert (outcome.ending, outcome.error) == (Ending.ERROR, UpstreamError("the response's status is in_progress"))


def test_the_response_of_completed_is_the_last_event():
    outcome = read_responses(RESPONSES_STREAM + D)
    assert (outcome.forward, outcome.last, outcome.finished) == (RESPONSES_STREAM, True, True)
    assert (outcome.delivered_tokens, outcome.token_source) == (3, "usage")


def test_fc_09_an_error_first_is_a_failure_before_content():
    error = {"type": "server_error", "code": None, "message": "x", "param": None}
    outcome = read_responses(typed({"type": "error", "sequence_number": 2, "error": error}))
    assert (outcome.forward, outcome.content, outcome.ending) == (b"", False, Ending.ERROR)
    assert outcome.error == UpstreamError("x", "server_error", None)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (
            response_event(
                "response.failed", 5, response=response_object("failed", error={"code": "server_error", "message": "m"})
            ),
            UpstreamError("m", None, "server_error"),
        ),
        (response_event("response.failed", 5, response={}), UpstreamError("the replica gave no message")),
        (named("error", {"type": "error", "code": "x", "message": "m", "sequence_number": 5}), UpstreamError("m", None, "x")),
        (named("error", {"type": "error", "error": {"code": "x", "message": "m"}}), UpstreamError("m", None, "x")),
        (E, UpstreamError("boom", "InternalServerError", 500)),
    ],
    ids=["failed", "failed without a word", "flat", "nested", "as on chat"],
)
def test_err_04_every_shape_of_error_ends_the_attempt(event: bytes, error: UpstreamError):
    outcome = read_responses(HEAD + event)
    assert (outcome.forward, outcome.ending, outcome.error) == (HEAD, Ending.ERROR, error)


def test_the_next_sequence_number_follows_the_last_forwarded_event():
    reader = StreamReader(Dialect.RESPONSES)
    assert reader.next_sequence_number == 0
    reader.feed(RESPONSES_OPENING)
    assert reader.next_sequence_number == 4
    reader.feed(response_text("Hi", 4) + response_event("response.failed", 5, response={}))
    assert reader.next_sequence_number == 5


@pytest.mark.parametrize("number", [None, "7", 1.5, True, -1, 2**53, 2**64 - 1])
def test_a_sequence_number_that_is_none_is_not_followed(number: object):
    reader = StreamReader(Dialect.RESPONSES)
    reader.feed(typed({"type": "response.created", "sequence_number": number}))
    assert reader.next_sequence_number == 0
