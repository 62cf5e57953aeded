"""The reader itself, over all dialects, and CASES area 1 where it is about a stream's end rather than its framing."""

import gzip
import json
from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

from extproc.sse.framing import BYTE_ORDER_MARK, Framer
from extproc.sse.reading import Batch, Dialect, Ending, StreamReader, UpstreamError, dialect_of_path
from extproc.sse.whole import read_whole
from tests.unit.sse.streams import (
    CHAT_STREAM,
    CHAT_TOOL_STREAM,
    MESSAGE_STOP,
    PING,
    WHOLE_ANSWER,
    WHOLE_STREAMS,
    D,
    E,
    F,
    R,
    T,
    chat,
    data,
    message_start,
    named,
    read,
    text_delta,
    usage,
)

BOOM = UpstreamError("boom", "InternalServerError", 500)


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/chat/completions", Dialect.CHAT),
        ("/v1/completions", Dialect.COMPLETIONS),
        ("/v1/responses", Dialect.RESPONSES),
        ("/v1/messages", Dialect.MESSAGES),
        ("/v1/messages?beta=true", Dialect.MESSAGES),
        ("/v1/messages/count_tokens", None),
        ("/v1/chat/completions/", None),
        ("/v1/responses/resp_1/cancel", None),
        ("/V1/messages", None),
        ("/v1/models", None),
        ("", None),
    ],
)
def test_a_path_names_a_dialect_exactly_or_not_at_all(path: str, dialect: Dialect | None):
    assert dialect_of_path(path) is dialect


@pytest.mark.parametrize("dialect", Dialect)
def test_a_whole_stream_is_forwarded_unchanged_and_finished(dialect: Dialect):
    outcome = read(WHOLE_STREAMS[dialect], dialect)
    assert outcome.forward == WHOLE_STREAMS[dialect]
    assert (outcome.ending, outcome.error, outcome.last, outcome.content) == (Ending.FINISHED, None, True, True)
    assert outcome.tokens == 2


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("end", [b"\r\n", b"\r"])
def test_sse_01_line_ends_change_nothing_but_the_bytes(dialect: Dialect, end: bytes):
    stream = WHOLE_STREAMS[dialect].replace(b"\n", end)
    plain, other = read(WHOLE_STREAMS[dialect], dialect), read(stream, dialect)
    assert other.forward == stream
    assert (other.tokens, other.usage_tokens, other.ending) == (plain.tokens, plain.usage_tokens, plain.ending)


def test_sse_03_data_without_a_space_is_read_the_same():
    stream = (T("Hi") + F("stop") + D).replace(b"data: ", b"data:")
    outcome = read(stream)
    assert (outcome.forward, outcome.tokens, outcome.ending, outcome.last) == (stream, 1, Ending.FINISHED, True)


def test_sse_04_pings_pass_and_are_never_content():
    reader = StreamReader(Dialect.CHAT)
    assert reader.feed(R + PING) == Batch(R + PING)
    assert reader.feed(T("Hi")).content
    assert not reader.feed(PING).content
    assert reader.feed(F("stop") + D).ending is Ending.FINISHED


@pytest.mark.parametrize("frame", [b"data:\n\n", b"event: ping\n\n", b"retry: 3000\n\n", b": wait\n\n", b"id: 7\n\n", b"\n"])
@pytest.mark.parametrize("dialect", Dialect)
def test_sse_05_frames_without_payload_pass_and_are_not_content(frame: bytes, dialect: Dialect):
    assert StreamReader(dialect).feed(frame) == Batch(frame)
    assert read(frame + WHOLE_STREAMS[dialect], dialect).ending is Ending.FINISHED


def test_sse_05_a_stream_of_comments_alone_is_cut():
    outcome = read(b": wait\n\n" * 3)
    assert (outcome.content, outcome.ending) == (False, None)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_sse_06_line_separators_inside_json_are_text(separator: str):
    assert read(R + T(f"a{separator}b") + F("stop") + D).tokens == 1
    failure = data({"error": {"message": f"a{separator}b"}})
    assert read(failure).error == UpstreamError(f"a{separator}b")


@pytest.mark.parametrize("place", range(len(T("北🙂"))))
def test_sse_07_a_cut_character_changes_nothing(place: int):
    stream = T("北🙂")
    outcome = read([stream[:place], stream[place:]])
    assert (outcome.forward, outcome.tokens) == (stream, 1)


def test_sse_07_broken_utf8_in_a_whole_event_is_read_and_forwarded_as_it_came():
    stream = T("X").replace(b"X", b"\xe5\x8c")
    outcome = read(stream)
    assert (outcome.forward, outcome.content, outcome.ending) == (stream, True, None)


def test_sse_07_half_an_emoji_as_an_escape_is_content():
    assert read(R + T("X").replace(b"X", b"\\ud83d")).content


def test_sse_08_a_large_event_in_small_chunks_is_content_and_unchanged():
    stream = R + T("x" * 3_000_000) + F("stop") + D
    outcome = read(stream[start : start + 16_384] for start in range(0, len(stream), 16_384))
    assert (outcome.forward == stream, outcome.tokens, outcome.ending) == (True, 1, Ending.FINISHED)


@pytest.mark.parametrize("chunks", [[T("Hi") + T("x" * 900)], [T("Hi"), T("x" * 900)], [T("Hi") + T("x" * 900)[:800]]])
def test_sse_08_an_event_over_the_limit_ends_the_attempt_with_an_error(chunks: list[bytes]):
    outcome = read(chunks, event_bytes_max=500)
    assert (outcome.forward, outcome.tokens, outcome.ending) == (T("Hi"), 1, Ending.ERROR)
    assert outcome.error == UpstreamError("an event is longer than 500 bytes", "event_too_large")


def test_sse_08_an_event_over_the_limit_after_the_finish_spoils_nothing():
    outcome = read(T("Hi") + F("stop") + T("x" * 900), event_bytes_max=500)
    assert (outcome.forward, outcome.ending, outcome.error) == (T("Hi") + F("stop"), Ending.FINISHED, None)


def test_sse_08_an_event_over_the_limit_after_the_end_is_not_read():
    outcome = read(F("stop") + D + T("x" * 900), event_bytes_max=500)
    assert (outcome.forward, outcome.ending, outcome.last) == (F("stop") + D, Ending.FINISHED, True)


def test_sse_09_a_byte_order_mark_hides_neither_content_nor_error():
    mark = BYTE_ORDER_MARK
    assert read(mark + T("Hi") + T(" two") + D).tokens == 2
    assert read([mark[:1], mark[1:2], mark[2:], T("Hi")]).forward == mark + T("Hi")
    assert read(mark + b'event: error\ndata: {"x":1}\n\n').ending is Ending.ERROR


def test_sse_11a_text_and_then_a_clean_end_is_a_cut_stream():
    outcome = read(R + T("Hi"))
    assert (outcome.ending, outcome.finished, outcome.content) == (None, False, True)


def test_sse_11b_a_finish_without_done_is_a_whole_answer():
    outcome = read(R + T("Hi") + F("stop"))
    assert (outcome.ending, outcome.finished, outcome.last) == (Ending.FINISHED, True, False)


def test_sse_11c_silence_after_the_finish_is_seen_as_finished_before_any_end():
    reader = StreamReader(Dialect.CHAT)
    assert not reader.finished
    assert reader.feed(R + T("Hi") + F("stop")).ending is None
    assert reader.finished
    assert reader.end().ending is Ending.FINISHED


@pytest.mark.parametrize("late", [E, data({"meta": 1}), b"\n", R + T("again")])
def test_sse_12_nothing_after_done_is_forwarded_or_read(late: bytes):
    whole = R + T("Hi") + F("stop") + D
    for chunks in ([whole + late], [whole, late]):
        outcome = read(chunks)
        assert (outcome.forward, outcome.ending, outcome.error, outcome.tokens) == (whole, Ending.FINISHED, None, 1)


@pytest.mark.parametrize(
    "late", [E, F("abort"), b"event: error\ndata: x\n\n", chat({}, "error")], ids=["error", "abort", "named", "reason"]
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_sse_12_an_error_between_finish_and_done_is_left_out(late: bytes, end: bytes):
    head, late, done = (part.replace(b"\n", end) for part in (R + T("Hi") + F("stop"), late, D))
    for cut in range(len(late) + 1):
        outcome = read([head + late[:cut], late[cut:] + done])
        assert (outcome.forward, outcome.ending, outcome.error) == (head + done, Ending.FINISHED, None)


def test_sse_12_the_line_feed_of_a_left_out_event_is_left_out_at_the_end_too():
    reader = StreamReader(Dialect.CHAT)
    stream = (F("stop") + E).replace(b"\n", b"\r\n")
    forward = reader.feed(stream[:-1]).forward + reader.feed(stream[-1:]).forward + reader.end().forward
    assert forward == F("stop").replace(b"\n", b"\r\n")


def test_sse_12_the_line_feed_of_the_last_event_still_belongs_to_it():
    reader = StreamReader(Dialect.CHAT)
    stream = (F("stop") + D).replace(b"\n", b"\r\n")
    assert reader.feed(stream[:-1]).last
    assert [reader.feed(chunk).forward for chunk in (b"", b"\n", b"\n")] == [b"", b"\n", b""]
    assert reader.end().forward == b""
    other = StreamReader(Dialect.CHAT)
    other.feed(stream[:-1])
    assert other.feed(b"data: x\n\n").forward == b""


def test_sse_12_junk_after_the_finish_is_forwarded():
    outcome = read(R + F("stop") + b"data: junk\n\n" + D)
    assert outcome.forward == R + F("stop") + b"data: junk\n\n" + D


def test_sse_13_encoded_bytes_are_never_taken_for_content_or_an_error():
    body = gzip.compress(CHAT_STREAM, mtime=0)
    outcome = read([body[:40], body[40:80], body[80:]])
    assert (outcome.content, outcome.ending, outcome.error) == (False, None, None)


def test_sse_14_the_body_is_read_for_what_it_is():
    assert read(R + T("Hi") + F("stop") + D).ending is Ending.FINISHED
    failure = b'{"error":{"message":"x","code":503}}'
    assert (read(failure).forward, read(failure).ending) == (b"", None)
    assert read_whole(Dialect.CHAT, failure).error == UpstreamError("x", None, 503)
    assert read_whole(Dialect.CHAT, b"").complete is False


@pytest.mark.parametrize("dialect", Dialect)
def test_a_payload_that_is_no_json_before_the_first_content_is_malformed(dialect: Dialect):
    outcome = read(b"data: <html>\n\n" + WHOLE_STREAMS[dialect], dialect)
    assert (outcome.forward, outcome.ending, outcome.error, outcome.last) == (b"", Ending.MALFORMED, None, False)


def test_a_payload_that_is_no_json_after_content_is_forwarded():
    outcome = read(R + T("Hi") + b"data: <html>\n\n" + F("stop") + D)
    assert (outcome.forward, outcome.ending) == (R + T("Hi") + b"data: <html>\n\n" + F("stop") + D, Ending.FINISHED)


@pytest.mark.parametrize("payload", [b"5", b'"x"', b"[]", b"null", b"{}", b'{"type":"surprise"}', b'{"type":7}', b"NaN"])
@pytest.mark.parametrize("dialect", Dialect)
def test_unknown_json_passes_and_is_not_content(payload: bytes, dialect: Dialect):
    assert StreamReader(dialect).feed(b"data: " + payload + b"\n\n") == Batch(b"data: " + payload + b"\n\n")


@pytest.mark.parametrize("dialect", Dialect)
def test_the_end_is_told_again_by_every_later_batch(dialect: Dialect):
    reader = StreamReader(dialect)
    reader.feed(E)
    expected = Batch(b"", ending=Ending.ERROR, error=BOOM)
    assert reader.feed(WHOLE_STREAMS[dialect]) == expected
    assert reader.end() == expected


@pytest.mark.parametrize("dialect", Dialect)
def test_done_without_a_finish_proves_nothing(dialect: Dialect):
    outcome = read(D, dialect)
    assert (outcome.forward, outcome.ending, outcome.last) == (b"", Ending.DONE_WITHOUT_FINISH, True)


def test_counted_tokens_give_way_to_the_streams_own_usage():
    reader = StreamReader(Dialect.CHAT)
    assert (reader.delivered_tokens, reader.token_source) == (0, "counted")
    assert reader.feed(R + T("a") + T("b")).tokens == 2
    assert (reader.delivered_tokens, reader.token_source) == (2, "counted")
    assert reader.feed(F("stop") + usage(5)).usage_tokens == 5
    assert (reader.delivered_tokens, reader.token_source) == (5, "usage")


def test_what_was_counted_after_the_last_usage_is_added_to_it():
    reader = StreamReader(Dialect.CHAT)
    reader.feed(usage(4) + T("a") + T("b"))
    assert (reader.delivered_tokens, reader.token_source) == (6, "counted")


def test_tokens_of_an_event_that_is_not_forwarded_are_not_delivered():
    reader = StreamReader(Dialect.CHAT)
    batch = reader.feed(T("a") + chat({"content": "b"}, "abort"))
    assert (batch.tokens, reader.delivered_tokens, batch.ending) == (1, 1, Ending.ABORTED)


@pytest.mark.parametrize("cut", range(len(message_start())))
def test_an_unfinished_tail_dies_with_its_attempt(cut: int):
    outcome = read(text_delta("Hi") + message_start()[:cut], Dialect.MESSAGES)
    assert (outcome.forward, outcome.ending) == (text_delta("Hi"), None)


def test_can_02_a_finished_answer_needs_no_end_of_the_connection():
    batch = StreamReader(Dialect.CHAT).feed(R + T("Hi") + F("stop") + D)
    assert (batch.ending, batch.last) == (Ending.FINISHED, True)


STRANGERS: list[Any] = [None, True, 0, -1.5, "", "abort", "error", [], ["x"], [None], [[]], {}, {"x": []}]


def with_strangers(value: Any) -> Iterator[Any]:
    """``value`` with each of its nodes in turn replaced by each of STRANGERS."""
    yield from STRANGERS
    nodes = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, node in nodes:
        for stranger in with_strangers(node):
            changed = copy(value)
            changed[key] = stranger
            yield changed


@pytest.mark.parametrize("dialect", Dialect)
def test_no_json_whatever_breaks_the_reader(dialect: Dialect):
    whole_and_tools = WHOLE_STREAMS[dialect] + CHAT_TOOL_STREAM + named("x", WHOLE_ANSWER)
    for event in Framer().feed(whole_and_tools):
        if event.data is None or event.data == b"[DONE]":
            continue
        for payload in with_strangers(json.loads(event.data)):
            written = data(payload)
            batch = StreamReader(dialect).feed(written)
            assert batch.forward == (b"" if batch.ending not in (None, Ending.FINISHED) else written)
            assert batch.tokens == 0 or batch.content
            body = read_whole(dialect, json.dumps(payload).encode())
            assert body.complete == (body.ending is Ending.FINISHED)


def test_message_stop_is_the_last_event_only_of_messages():
    assert read(MESSAGE_STOP, Dialect.CHAT).ending is None
