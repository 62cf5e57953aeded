"""What a client's bytes say, read by the suite's own reader."""

from typing import Any

import pytest

from extproc.faults.answers import Answer, is_counted, voices
from extproc.faults.evidence import ClientEvidence, Peer
from extproc.faults.expectations import Ending
from extproc.sse.dialects import Dialect
from tests.unit.faults.scenes import DONE, END, HEAD, WHOLE, chunk, client, data, delta, streamed

ERROR = data({"error": {"code": "upstream_decode_interrupted"}})
JSON_HEAD = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def read(seen: ClientEvidence, *, stream: bool = True, dialect: Dialect = Dialect.CHAT) -> Answer:
    return Answer(dialect, stream, seen)


def json_answer(status: int, body: bytes) -> ClientEvidence:
    return client(JSON_HEAD % (status, len(body)) + body)


@pytest.mark.parametrize(
    ("seen", "ending"),
    [
        (streamed(*WHOLE), Ending.COMPLETE),
        (streamed(*WHOLE[:3]), Ending.COMPLETE),
        (streamed(delta("a:0 "), ERROR), Ending.INTERRUPTED),
        (streamed(delta("a:0 ")), Ending.UNREADABLE),
        (streamed(delta("a:0 "), ERROR, ERROR), Ending.UNREADABLE),
        (streamed(delta("a:0 "), ERROR, delta("a:1 ")), Ending.UNREADABLE),
        (streamed(), Ending.UNREADABLE),
        (client(HEAD, chunk(delta("a:0 "))), Ending.CUT),
        (client(HEAD, chunk(delta("a:0 ")), b"5\r\nda"), Ending.CUT),
        (client(peer=Peer.RESET), Ending.CUT),
        (client(HEAD, left_at=12.5, closed_at=None, peer=None), Ending.LEFT),
        (json_answer(503, b'{"error": {"partial_output": false}}'), Ending.REFUSED),
        (json_answer(400, b'{"error": {"code": 400}}'), Ending.PASSED),
        (json_answer(200, b'{"choices": [{"message": {"content": "a:0 "}}]}'), Ending.COMPLETE),
        (json_answer(200, b'{"choices": [{"mess'), Ending.UNREADABLE),
        (json_answer(200, b'{"error": {}}'), Ending.UNREADABLE),
    ],
)
def test_ending(seen: ClientEvidence, ending: Ending) -> None:
    assert read(seen).ending is ending


def test_text_has_the_time_at_which_its_event_was_whole() -> None:
    first, second = delta("a:0 "), delta("a:1 ")
    answer = read(client(HEAD, chunk(first[:10]), chunk(first[10:] + second[:20]), chunk(second[20:]), END))
    assert answer.contents == ((13.0, "a:0 "), (14.0, "a:1 "))


def test_bytes_may_be_cut_anywhere() -> None:
    whole = HEAD + b"".join(map(chunk, WHOLE)) + END
    answers = [read(client(whole[:cut], whole[cut:])) for cut in range(1, len(whole))]
    assert {(answer.text, answer.ending, len(answer.events)) for answer in answers} == {("a:0 a:1 ", Ending.COMPLETE, 4)}


def test_what_is_no_json_is_an_event_without_data() -> None:
    answer = read(streamed(delta("a:0 "), b'data: {"choices":[{\xff\n\n', ERROR))
    assert [event.data is None for event in answer.events] == [False, True, False]
    assert answer.ending is Ending.INTERRUPTED


@pytest.mark.parametrize(
    ("dialect", "events"),
    [
        (
            Dialect.RESPONSES,
            [data({"type": "response.output_text.delta", "delta": "a:0 "}), data({"type": "response.completed"})],
        ),
        (
            Dialect.MESSAGES,
            [
                data({"type": "content_block_delta", "delta": {"text": "a:0 "}}),
                data({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
                data({"type": "message_stop"}),
            ],
        ),
        (Dialect.COMPLETIONS, [data({"choices": [{"text": "a:0 ", "finish_reason": "stop"}]}), DONE]),
    ],
)
def test_each_api_has_its_finish(dialect: Dialect, events: list[Any]) -> None:
    answer = read(streamed(*events), dialect=dialect)
    assert (answer.text, answer.is_finished, answer.last_mark is not None) == ("a:0 ", True, True)


def test_told_usages_are_the_streams_own() -> None:
    events = [
        data({"usage": {"completion_tokens": 3}}),
        data({"response": {"usage": {"output_tokens": 4}}}),
        data({"usage": None}),
    ]
    assert read(streamed(*events)).told_usages == {3, 4}


def test_voices_and_counting() -> None:
    assert voices("a:0 b:1 a:2 ") == ("a", "b")
    assert is_counted("a:0 a:1 ")
    assert not is_counted("a:0 a:2 ")
    assert not is_counted("a:1 ")
