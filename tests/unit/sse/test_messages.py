"""/v1/messages."""

from typing import Any

import pytest

from extproc.sse.reading import Batch, Dialect, Ending, StreamReader, UpstreamError
from tests.unit.sse.streams import (
    MESSAGE_STOP,
    MESSAGES_STREAM,
    TEXT_BLOCK,
    D,
    block_delta,
    block_start,
    block_stop,
    message_delta,
    message_start,
    read,
    text_delta,
    typed,
)

OPENING = message_start() + TEXT_BLOCK
ENGINE_ERROR = typed({"type": "error", "error": {"type": "internal_error", "message": "2 validation errors"}})


def read_messages(stream: bytes):
    return read(stream, Dialect.MESSAGES)


@pytest.mark.parametrize(
    "event",
    [
        message_start(),
        TEXT_BLOCK,
        block_start({"type": "thinking", "thinking": "", "signature": ""}),
        text_delta(""),
        block_delta({"type": "signature_delta", "signature": "c2ln"}),
        block_delta({"type": "input_json_delta", "partial_json": ""}),
        block_stop(),
        typed({"type": "ping"}),
        typed({"type": "content_block_delta"}),
        typed({"type": "content_block_start", "content_block": None}),
    ],
)
def test_fc_01_what_only_opens_or_frames_is_not_content(event: bytes):
    assert StreamReader(Dialect.MESSAGES).feed(event) == Batch(event)


@pytest.mark.parametrize(
    "event",
    [
        text_delta("Hi"),
        text_delta(" "),
        block_delta({"type": "thinking_delta", "thinking": "Hm"}),
        block_delta({"type": "input_json_delta", "partial_json": "{"}),
        block_start({"type": "text", "text": "Hi"}),
        block_start({"type": "redacted_thinking", "data": "x"}),
        block_start({"type": "web_search_tool_result", "tool_use_id": "t1", "content": [{}]}),
    ],
)
def test_fc_02_text_thinking_and_arguments_are_content(event: bytes):
    batch = StreamReader(Dialect.MESSAGES).feed(OPENING + event)
    assert (batch.content, batch.tokens) == (True, 1)


def test_id_01_the_opening_of_a_tool_use_is_content():
    block: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": "run", "input": {}}
    assert StreamReader(Dialect.MESSAGES).feed(message_start() + block_start(block)).content


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal"])
def test_a_stop_reason_is_a_finish_and_message_stop_the_last_event(reason: str):
    stream = OPENING + text_delta("Hi") + block_stop() + message_delta(reason)
    assert (read_messages(stream).ending, read_messages(stream).last) == (Ending.FINISHED, False)
    outcome = read_messages(stream + MESSAGE_STOP + D)
    assert (outcome.forward, outcome.ending, outcome.last) == (stream + MESSAGE_STOP, Ending.FINISHED, True)


def test_fc_05_a_message_without_text_is_a_whole_answer():
    outcome = read_messages(message_start() + message_delta("end_turn", 0) + MESSAGE_STOP)
    assert (outcome.content, outcome.ending, outcome.delivered_tokens, outcome.token_source) == (
        False,
        Ending.FINISHED,
        0,
        "usage",
    )


def test_k8_04_a_null_stop_reason_and_message_stop_prove_nothing():
    head = OPENING + text_delta("Hi") + block_stop() + message_delta(None)
    outcome = read_messages(head + MESSAGE_STOP)
    assert (outcome.forward, outcome.ending, outcome.last) == (head, Ending.DONE_WITHOUT_FINISH, True)


def test_an_abort_under_its_own_name_is_one():
    assert read_messages(OPENING + message_delta("abort")).ending is Ending.ABORTED


def test_a_second_message_delta_takes_no_finish_back():
    outcome = read_messages(OPENING + message_delta("end_turn") + message_delta(None, 9) + MESSAGE_STOP)
    assert (outcome.ending, outcome.delivered_tokens) == (Ending.FINISHED, 9)


def test_a_message_delta_without_delta_is_no_finish():
    assert read_messages(typed({"type": "message_delta"})).ending is None


def test_usage_is_believed_from_the_end_of_the_message_only():
    reader = StreamReader(Dialect.MESSAGES)
    assert reader.feed(OPENING + text_delta("a") + text_delta("b")).usage_tokens is None
    assert (reader.delivered_tokens, reader.token_source) == (2, "counted")
    reader.feed(message_delta("end_turn", 9))
    assert (reader.delivered_tokens, reader.token_source) == (9, "usage")


def test_err_07_the_engines_error_is_one_whatever_its_text():
    head = OPENING + text_delta("Hi")
    outcome = read_messages(head + ENGINE_ERROR)
    assert (outcome.forward, outcome.ending) == (head, Ending.ERROR)
    assert outcome.error == UpstreamError("2 validation errors", "internal_error", None)


def test_err_08_the_end_after_an_error_adds_no_second_one():
    reader = StreamReader(Dialect.MESSAGES)
    first = reader.feed(OPENING + text_delta("Hi") + ENGINE_ERROR)
    assert reader.feed(MESSAGE_STOP).forward == b""
    assert reader.end() == Batch(b"", ending=first.ending, error=first.error)


@pytest.mark.parametrize("head", [b"", OPENING, OPENING + text_delta("Hi")])
def test_err_09_an_overloaded_error_is_an_error_wherever_it_stands(head: bytes):
    outcome = read_messages(head + typed({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}))
    assert (outcome.forward, outcome.content) == (head, head not in (b"", OPENING))
    assert outcome.error == UpstreamError("Overloaded", "overloaded_error", None)


def test_an_error_after_the_stop_reason_spoils_nothing():
    head, tail = MESSAGES_STREAM[: -len(MESSAGE_STOP)], MESSAGE_STOP
    outcome = read_messages(head + ENGINE_ERROR + tail)
    assert (outcome.forward, outcome.ending) == (MESSAGES_STREAM, Ending.FINISHED)


def test_done_is_the_last_event_here_too():
    outcome = read_messages(MESSAGES_STREAM[: -len(MESSAGE_STOP)] + D + MESSAGE_STOP)
    assert (outcome.ending, outcome.last, outcome.forward.endswith(D)) == (Ending.FINISHED, True, True)
