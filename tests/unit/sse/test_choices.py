"""/v1/chat/completions and /v1/completions, and CASES area 2 as far as it is theirs."""

from typing import Any

import pytest

from extproc.sse.reading import Batch, Dialect, Ending, StreamReader
from tests.unit.sse.streams import (
    CHAT_TOOL_STREAM,
    COMPLETIONS_STREAM,
    D,
    E,
    F,
    R,
    T,
    chat,
    chat_chunk,
    completion,
    data,
    read,
    usage,
)

LOGPROB = {"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top_logprobs": []}
CALL = {"index": 0, "id": "t1", "type": "function", "function": {"name": "run", "arguments": ""}}


@pytest.mark.parametrize(
    "event",
    [R, chat({"role": "assistant", "content": None}), chat({"role": "assistant"}), chat({}), chat(None), chat_chunk([None, 5])],
    ids=["empty", "null", "no content", "no keys", "no delta", "no choice"],
)
def test_fc_01_a_role_chunk_is_not_content(event: bytes):
    assert StreamReader(Dialect.CHAT).feed(event) == Batch(event)


def test_fc_01_one_role_chunk_for_each_of_two_choices_is_not_content():
    reader = StreamReader(Dialect.CHAT, choices=2)
    assert not reader.feed(R + chat({"role": "assistant", "content": ""}, index=1)).content
    assert not reader.finished


@pytest.mark.parametrize(
    ("delta", "content"),
    [
        ({"reasoning": "Ok"}, True),
        ({"reasoning_content": "Ok"}, True),
        ({"reasoning": ""}, False),
        ({"reasoning_content": None}, False),
        ({"refusal": "No"}, True),
        ({"refusal": None}, False),
        ({"audio": {"id": "a1", "data": "UklGRg=="}}, True),
        ({"content": [{"type": "text", "text": "Hi"}]}, True),
        ({"content": []}, False),
    ],
)
def test_fc_02_text_under_any_of_its_names_is_content(delta: dict[str, Any], content: bool):
    batch = StreamReader(Dialect.CHAT).feed(R + chat(delta))
    assert (batch.content, batch.tokens) == (content, int(content))


def test_fc_03_empty_deltas_are_not_content_and_whitespace_is():
    reader = StreamReader(Dialect.CHAT)
    assert [reader.feed(chunk).content for chunk in (R, T(""), T(""), T(""), T("I "))] == [False] * 4 + [True]
    for text in (" ", "\n", "\t", "\u200b"):
        assert StreamReader(Dialect.CHAT).feed(T(text)).content


@pytest.mark.parametrize(
    ("choice", "content", "tokens"),
    [
        ({"token_ids": [17]}, True, 1),
        ({"token_ids": [17, 18, 19]}, True, 3),
        ({"token_ids": None}, False, 0),
        ({"token_ids": []}, False, 0),
        ({"logprobs": {"content": [LOGPROB, LOGPROB]}}, True, 2),
        ({"logprobs": {"content": []}}, False, 0),
        ({"logprobs": {"content": None}}, False, 0),
        ({"logprobs": {"content": [LOGPROB]}, "token_ids": [17, 18]}, True, 2),
    ],
)
def test_fc_04_generated_token_ids_and_logprobs_are_content(choice: dict[str, Any], content: bool, tokens: int):
    batch = StreamReader(Dialect.CHAT).feed(R + chat({}, **choice))
    assert (batch.content, batch.tokens) == (content, tokens)


def test_fc_04_prompt_token_ids_are_not_content():
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    assert not StreamReader(Dialect.CHAT).feed(chat_chunk([role], prompt_token_ids=[1, 2, 3], prompt_text="Hi")).content
    assert not StreamReader(Dialect.COMPLETIONS).feed(completion("", prompt_token_ids=[1, 2, 3])).content


def test_fc_04_the_logprobs_of_completions_count_tokens_too():
    logprobs = {"text_offset": [0, 2], "token_logprobs": [-0.1, -0.2], "tokens": ["He", "l"], "top_logprobs": [None, None]}
    assert StreamReader(Dialect.COMPLETIONS).feed(completion("Hel", logprobs=logprobs)).tokens == 2


def test_fc_05a_a_finish_with_the_last_text_is_finished_without_done():
    outcome = read(R + chat({"content": "."}, "length"))
    assert (outcome.ending, outcome.content, outcome.tokens) == (Ending.FINISHED, True, 1)


@pytest.mark.parametrize(
    ("stream", "dialect"),
    [(R + F("stop") + D, Dialect.CHAT), (completion("", "stop") + D, Dialect.COMPLETIONS)],
)
def test_fc_05_an_empty_answer_is_a_whole_answer(stream: bytes, dialect: Dialect):
    outcome = read(stream, dialect)
    assert (outcome.forward, outcome.ending, outcome.content, outcome.last) == (stream, Ending.FINISHED, False, True)


@pytest.mark.parametrize("reason", ["abort", "aborted", "cancelled"])
@pytest.mark.parametrize("head", [R, R + T("Hi")])
def test_fc_05_an_abort_is_no_finish_and_is_not_forwarded(reason: str, head: bytes):
    outcome = read(head + F(reason) + D)
    assert (outcome.forward, outcome.ending, outcome.finished, outcome.last) == (head, Ending.ABORTED, False, False)


def test_k8_04_an_abort_that_carries_text_is_not_forwarded_either():
    outcome = read(R + T("Hi") + completion("half", "abort"))
    assert (outcome.forward, outcome.ending) == (R + T("Hi"), Ending.ABORTED)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "function_call", "repetition"])
def test_every_other_reason_is_a_finish(reason: str):
    assert read(R + T("Hi") + F(reason)).ending is Ending.FINISHED


@pytest.mark.parametrize("reason", [None, ""])
def test_no_reason_is_no_finish(reason: str | None):
    assert read(R + chat({"content": "Hi"}, reason)).ending is None


def test_the_reason_error_is_an_error():
    outcome = read(R + T("Hi") + F("error") + D)
    assert (outcome.forward, outcome.ending) == (R + T("Hi"), Ending.ERROR)
    assert outcome.error is not None


def test_fc_06_an_echoed_prompt_is_content():
    assert StreamReader(Dialect.CHAT).feed(R + T("the prompt")).content
    assert StreamReader(Dialect.COMPLETIONS).feed(completion("the prompt", prompt_token_ids=[1, 2], token_ids=[])).content


@pytest.mark.parametrize("head", [b"", R, R + T("Hi")])
def test_fc_07_a_chunk_without_choices_is_neither_content_nor_an_end(head: bytes):
    reader = StreamReader(Dialect.CHAT)
    reader.feed(head)
    batch = reader.feed(usage(2))
    assert batch == Batch(usage(2), usage_tokens=2)
    assert not reader.finished


@pytest.mark.parametrize("counts", [None, {}, 5, *({"completion_tokens": told} for told in (None, True, -1, 2**53, 2**64 - 1))])
def test_fc_07_a_usage_that_tells_nothing_changes_nothing(counts: object):
    outcome = read(R + chat_chunk([], usage=counts) + data({"choices": [{"delta": {"content": "x"}}], "usage": counts}))
    assert (outcome.usage_tokens, outcome.tokens, outcome.token_source) == (None, 1, "counted")


def test_fc_07_usage_on_every_chunk_is_the_latest():
    def chunk(text: str, so_far: int) -> bytes:
        return chat_chunk([{"index": 0, "delta": {"content": text}}], usage={"completion_tokens": so_far})

    reader = StreamReader(Dialect.CHAT)
    assert reader.feed(chunk("", 0)) == Batch(chunk("", 0), usage_tokens=0)
    assert reader.feed(chunk("a", 2) + chunk("b", 5)).usage_tokens == 5
    assert (reader.delivered_tokens, reader.token_source) == (5, "usage")


def test_fc_07_usage_on_the_chunks_of_two_choices_is_added_up():
    def chunk(index: int, so_far: int) -> bytes:
        return chat_chunk([{"index": index, "delta": {"content": "x"}}], usage={"completion_tokens": so_far})

    reader = StreamReader(Dialect.CHAT, choices=2)
    assert reader.feed(chunk(0, 1) + chunk(1, 1) + chunk(0, 3)).usage_tokens == 4
    assert reader.feed(usage(7)).usage_tokens == 7


def test_two_choices_are_finished_when_both_are():
    reader = StreamReader(Dialect.CHAT, choices=2)
    reader.feed(R + chat({"content": "a"}, "stop"))
    assert not reader.finished
    reader.feed(chat({"content": "b"}, "stop", index=1))
    assert reader.finished


def test_one_finish_of_two_choices_and_done_proves_nothing():
    outcome = read(R + F("stop") + D, choices=2)
    assert (outcome.ending, outcome.forward) == (Ending.DONE_WITHOUT_FINISH, R + F("stop"))


def test_one_finish_of_two_choices_does_not_excuse_an_error():
    assert read(R + F("stop") + E, choices=2).ending is Ending.ERROR


def test_a_choice_that_was_not_asked_for_must_finish_too():
    roles = R + chat({"role": "assistant", "content": ""}, index=1)
    assert read(roles + F("stop")).ending is None
    assert read(roles + F("stop") + chat({}, "stop", index=1)).ending is Ending.FINISHED


def test_choices_of_one_chunk_are_all_read():
    both = chat_chunk([{"index": 0, "delta": {"content": "a"}}, {"index": 1, "text": "b", "finish_reason": "stop"}])
    batch = StreamReader(Dialect.CHAT).feed(both)
    assert batch.tokens == 2


def test_an_event_with_a_finish_and_an_abort_is_no_finish():
    both = chat_chunk([{"index": 0, "finish_reason": "stop"}, {"index": 1, "finish_reason": "abort"}])
    assert read(both).ending is Ending.ABORTED


def test_a_chunk_after_its_choices_finish_reopens_nothing():
    outcome = read(R + F("stop") + T("late"))
    assert (outcome.ending, outcome.tokens) == (Ending.FINISHED, 1)
    assert read(R + F("stop") + T("late") + chat({}, "stop", index=1), choices=2).ending is Ending.FINISHED


def test_id_01_the_chunk_with_a_tools_name_and_id_is_content():
    batch = StreamReader(Dialect.CHAT).feed(R + chat({"tool_calls": [CALL]}))
    assert (batch.content, batch.tokens) == (True, 1)
    arguments = chat({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]})
    outcome = read(R + chat({"tool_calls": [CALL]}) + arguments)
    assert (outcome.ending, outcome.finished, outcome.tokens) == (None, False, 2)


@pytest.mark.parametrize(
    ("delta", "content"),
    [
        ({"tool_calls": [{"index": 0, "id": "t1"}]}, True),
        ({"tool_calls": [{"index": 0, "function": {"name": "run"}}]}, True),
        ({"tool_calls": [{"index": 0, "custom": {"name": "run", "input": ""}}]}, True),
        ({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, False),
        ({"tool_calls": [{}]}, False),
        ({"tool_calls": []}, False),
        ({"tool_calls": None}, False),
        ({"tool_calls": "run"}, False),
        ({"tool_calls": ["run"]}, False),
        ({"function_call": {"name": "run", "arguments": ""}}, True),
        ({"function_call": {"arguments": "{"}}, True),
        ({"function_call": {"arguments": ""}}, False),
        ({"function_call": None}, False),
    ],
)
def test_id_01_any_part_of_a_call_is_content(delta: dict[str, Any], content: bool):
    assert StreamReader(Dialect.CHAT).feed(chat(delta)).content is content


def test_a_stream_of_tool_calls_is_whole():
    outcome = read(CHAT_TOOL_STREAM)
    assert (outcome.forward, outcome.tokens, outcome.ending) == (CHAT_TOOL_STREAM, 3, Ending.FINISHED)


def test_an_answer_that_comes_as_one_event_is_whole():
    whole = data({"object": "text_completion", "choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]})
    assert read(whole + D, Dialect.COMPLETIONS).ending is Ending.FINISHED
    assert read(COMPLETIONS_STREAM, Dialect.COMPLETIONS).tokens == 2
    message = chat(None, "stop", message={"role": "assistant", "content": "Hi"})
    assert (read(message + D).ending, read(message + D).content) == (Ending.FINISHED, True)
