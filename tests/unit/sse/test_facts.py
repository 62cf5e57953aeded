"""In-band errors: CASES area 3."""

import json

import pytest

from extproc.sse.facts import ERROR_TEXT_MAX
from extproc.sse.payloads import NotJson, decode_payload
from extproc.sse.reading import Batch, Dialect, Ending, StreamReader, UpstreamError
from tests.unit.sse.streams import D, E, F, R, T, chat_chunk, data, named, read

BOOM = UpstreamError("boom", "InternalServerError", 500)


@pytest.mark.parametrize("head", [b"", R, R + T("Hi")], ids=["first", "after the role", "after content"])
@pytest.mark.parametrize("tail", [b"", D, E + D], ids=["cut", "done", "twice"])
def test_err_01_an_error_under_200_ends_the_attempt_and_done_does_not_save_it(head: bytes, tail: bytes):
    outcome = read(head + E + tail)
    assert (outcome.forward, outcome.ending, outcome.error, outcome.last) == (head, Ending.ERROR, BOOM, False)
    assert outcome.content is (head == R + T("Hi"))


CHOICE = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (data({"error": "boom"}), UpstreamError("boom")),
        (chat_chunk([CHOICE], error={"message": "boom", "code": "c"}), UpstreamError("boom", None, "c")),
        (data({"error": {"error": {"message": "boom", "type": "t"}}}), UpstreamError("boom", "t")),
        (data({"error": {"error": "boom"}}), UpstreamError("boom")),
        (b'data: {"error":' + b'{"error":' * 1_000 + b'"boom"' + b"}" * 1_001 + b"\n\n", UpstreamError("boom")),
        (b'data: {"error": {"message": "boom", "code": 1' + b"0" * 40 + b', "p": NaN}}\n\n', UpstreamError("boom")),
        (data({"error": {}}), UpstreamError("the replica gave no message")),
        (data({"error": ["boom"]}), UpstreamError("['boom']")),
        (data({"error": True}), UpstreamError("True")),
        (data({"error": {"message": {"a": 1}, "type": 5, "code": 1.5}}), UpstreamError("the replica gave no message")),
        (data({"error": {"message": "boom", "code": True}}), UpstreamError("boom")),
        (data({"type": "error", "message": "boom", "code": 503}), UpstreamError("boom", None, 503)),
        (data({"object": "error", "message": "boom", "type": "Bad", "code": 400}), UpstreamError("boom", "Bad", 400)),
        (named("error", {"x": 1}), UpstreamError("the replica gave no message")),
        (named("error", "boom"), UpstreamError("boom")),
        (b"event: error\ndata: boom\n\n", UpstreamError("boom")),
        (b"event: error\ndata:\n\n", UpstreamError("an error event without data")),
        (b"event: error\n\n", UpstreamError("an error event without data")),
    ],
)
@pytest.mark.parametrize("dialect", Dialect)
def test_err_01_an_error_in_any_form_is_one_in_every_dialect(event: bytes, error: UpstreamError, dialect: Dialect):
    outcome = read(event + D, dialect)
    assert (outcome.forward, outcome.ending, outcome.error) == (b"", Ending.ERROR, error)


@pytest.mark.parametrize("nothing", [None, False, "", 0])
def test_err_01_an_error_that_is_null_is_none(nothing: object):
    event = chat_chunk([CHOICE], error=nothing)
    assert StreamReader(Dialect.CHAT).feed(event) == Batch(event, content=True, tokens=1)


def test_err_06_done_alone_is_a_failure_before_content():
    assert read(D).ending is Ending.DONE_WITHOUT_FINISH
    outcome = read(R + D)
    assert (outcome.forward, outcome.content, outcome.ending) == (R, False, Ending.DONE_WITHOUT_FINISH)


def test_a_done_after_text_without_a_finish_is_not_forwarded():
    outcome = read(R + T("Hi") + D)
    assert (outcome.forward, outcome.ending) == (R + T("Hi"), Ending.DONE_WITHOUT_FINISH)


def test_what_is_kept_of_an_error_is_bounded_and_valid_text():
    long = "é" * 5_000
    error = read(data({"error": {"message": long, "type": long, "code": long}})).error
    assert error is not None
    assert error == UpstreamError(long[:ERROR_TEXT_MAX], long[:ERROR_TEXT_MAX], long[:ERROR_TEXT_MAX])
    half = read(b'data: {"error":{"message":"a\\ud83d"}}\n\n').error
    assert half == UpstreamError("a?")


def test_an_error_nested_without_end_breaks_nothing():
    deep = b'data: {"error":' + b'{"error":' * 900 + b'"x"' + b"}" * 900 + b"}\n\n"
    assert read(deep).ending is Ending.ERROR


@pytest.mark.parametrize("text", [b"[" * 100_000, b"{", b"[DONE", b"\xff", b"data", b""])
def test_what_no_client_reads_as_json_is_none(text: bytes):
    with pytest.raises(NotJson):
        decode_payload(text)


@pytest.mark.parametrize(
    "text", [b'{"a":NaN}', b'{"a":-Infinity}', b'"\\ud83d"', b'"\xe5\x8c"', b'{"a":' + b"9" * 40 + b"}", b' {"a": 1}\n']
)
def test_what_the_sdks_read_as_json_is_read(text: bytes):
    expected = json.loads(text.decode("utf-8", "replace"))
    assert repr(decode_payload(text)) in (repr(expected), repr({"a": float("9" * 40)}))


def test_a_finish_after_the_error_comes_too_late():
    outcome = read(R + T("Hi") + E + F("stop") + D)
    assert (outcome.forward, outcome.ending) == (R + T("Hi"), Ending.ERROR)
