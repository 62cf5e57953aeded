from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.sse import framing
from extproc.sse.framing import BYTE_ORDER_MARK, Event, EventTooLarge, Framer
from tests.unit.sse.streams import E, R, T


def frame(*chunks: bytes) -> list[Event]:
    framer = Framer()
    return [event for chunk in chunks for event in framer.feed(chunk)]


def fields(events: list[Event]) -> list[tuple[bytes, bytes | None]]:
    return [(event.name, event.data) for event in events if event.data is not None or event.name]


def cut_at(stream: bytes, *places: int) -> list[bytes]:
    edges = [0, *sorted(places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


SMALL = b'id: 7\nevent: delta\ndata: {"a":1,\ndata:"b":2}\n\n: ping\n\n\ndata: last\n\n'
SMALL_FIELDS = [(b"delta", b'{"a":1,\n"b":2}'), (b"", b"last")]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_sse_01_every_line_end_gives_the_same_events_at_once(line_end: bytes):
    stream = SMALL.replace(b"\n", line_end)
    events = frame(stream)
    assert fields(events) == SMALL_FIELDS
    assert b"".join(event.raw for event in events) == stream


@pytest.mark.parametrize("blank", [b"\n\r\n", b"\r\n\n", b"\r\r\n", b"\n\r", b"\r\r"])
def test_sse_01_a_blank_line_of_mixed_ends_closes_the_event(blank: bytes):
    assert fields(frame(b"data: x" + blank + b"data: y" + blank)) == [(b"", b"x"), (b"", b"y")]


def test_sse_02_a_torn_crlf_inside_an_event_is_no_blank_line():
    events = frame(b'data: {"choices":\r', b'\ndata: [{"index":0}]}\r\n\r\n')
    assert [event.data for event in events] == [b'{"choices":\n[{"index":0}]}']


@pytest.mark.parametrize("rest", [[b"\n", b"data: y\r\n\r\n"], [b"\ndata: y\r\n\r\n"], [b"", b"\n", b"", b"data: y\r\n\r\n"]])
def test_sse_02_an_event_that_ends_in_a_lone_cr_is_not_delayed_and_its_late_lf_is_a_blank(rest: list[bytes]):
    framer = Framer()
    assert [event.raw for event in framer.feed(b"data: x\r\n\r")] == [b"data: x\r\n\r"]
    events = [event for chunk in rest for event in framer.feed(chunk)]
    assert events == [Event(b"\n", b"", None), Event(b"data: y\r\n\r\n", b"", b"y")]
    assert framer.pending == 0


def test_sse_02_a_cr_before_an_empty_chunk_still_swallows_its_lf():
    assert fields(frame(b"data: x\r", b"", b"\ndata: y\n\n")) == [(b"", b"x\ny")]


def test_sse_02_a_lone_cr_line_end_before_a_new_line_is_not_taken_for_a_torn_crlf():
    assert fields(frame(b"data: x\r", b"data: y\r", b"\r")) == [(b"", b"x\ny")]


@pytest.mark.parametrize(
    ("line", "value"),
    [(b"data:x", b"x"), (b"data: x", b"x"), (b"data:  x", b" x"), (b"data:", b""), (b"data: ", b""), (b"data", b"")],
)
def test_sse_03_at_most_one_space_is_stripped(line: bytes, value: bytes):
    assert [event.data for event in frame(line + b"\n\n")] == [value]
    assert [event.data for event in frame(b"\n" + line + b"\n\n")][1] == value


def test_sse_03_an_event_name_needs_no_space():
    assert fields(frame(b'event:error\ndata:{"x":1}\n\n')) == [(b"error", b'{"x":1}')]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data:\n\n", [(b"", b"")]),
        (b"event: ping\n\n", [(b"ping", None)]),
        (b"retry: 3000\n\n", [(b"", None)]),
        (b": wait\n\n", [(b"", None)]),
        (b"\n", [(b"", None)]),
        (b"database: x\n\n", [(b"", None)]),
    ],
)
def test_sse_05_frames_without_payload(stream: bytes, expected: list[tuple[bytes, bytes | None]]):
    assert [(event.name, event.data) for event in frame(stream)] == expected


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\f", "\v", "\x1c", "\x00"])
def test_sse_06_only_cr_and_lf_end_a_line(separator: str):
    stream = f"data: a{separator}b\n\n".encode()
    assert [event.data for event in frame(stream)] == [f"a{separator}b".encode()]


@pytest.mark.parametrize("text", ["北", "🙂"])
def test_sse_07_a_character_cut_in_two_is_one_character(text: str):
    stream = T(text)
    for place in range(len(stream)):
        assert b"".join(event.raw for event in frame(*cut_at(stream, place))) == stream


def test_sse_07_a_tail_of_half_a_character_is_only_pending():
    framer = Framer()
    assert framer.feed(b"data: \xe5\x8c") == []
    assert framer.pending == 8


def test_sse_08_a_large_event_in_small_chunks_comes_out_whole():
    stream = T("x" * 3_000_000)
    events = frame(*(stream[start : start + 16_384] for start in range(0, len(stream), 16_384)))
    assert [event.raw for event in events] == [stream]


class CountingPattern:
    """Stands for the line-end pattern and adds up the bytes that it was given to search."""

    def __init__(self, pattern) -> None:
        self.pattern = pattern
        self.searched = 0

    def finditer(self, chunk: bytes, start: int):
        self.searched += len(chunk) - start
        return self.pattern.finditer(chunk, start)


def test_sse_08_no_byte_is_searched_twice(monkeypatch: pytest.MonkeyPatch):
    counting = CountingPattern(framing._LINE_END)
    monkeypatch.setattr(framing, "_LINE_END", counting)
    stream = T("x" * 1_000_000)
    frame(*(stream[start : start + 1_000] for start in range(0, len(stream), 1_000)))
    assert 0 < counting.searched <= len(stream)


LONG = b"data: " + b"x" * 60


@pytest.mark.parametrize(
    ("held", "chunk"),
    [(b"", LONG + b"\n\n"), (b"", LONG), (b"data: ", LONG), (b"data: ", LONG + b"\n\n"), (b"", LONG + b"\r\n\r\n")],
    ids=["whole", "unfinished", "unfinished after a start", "whole after a start", "whole with crlf"],
)
def test_sse_08_an_event_over_the_limit_is_refused_loudly(held: bytes, chunk: bytes):
    framer = Framer(event_bytes_max=50)
    framer.feed(held)
    with pytest.raises(EventTooLarge, match="50 bytes"):
        framer.feed(chunk)


def test_sse_08_a_refusal_hands_over_what_was_whole_before_it():
    with pytest.raises(EventTooLarge) as refusal:
        Framer(event_bytes_max=50).feed(b"data: y\n\n" + LONG)
    assert [event.data for event in refusal.value.events] == [b"y"]
    assert refusal.value.event_bytes_max == 50


def test_sse_08_events_that_fit_are_not_refused_however_many():
    framer = Framer(event_bytes_max=10)
    assert len(framer.feed(b"data: yy\n\n" * 100)) == 100


def test_sse_09_a_byte_order_mark_hides_no_event():
    events = frame(BYTE_ORDER_MARK + R + T(" two"))
    assert [event.raw for event in events] == [BYTE_ORDER_MARK + R, T(" two")]
    assert events[0].data == R[6:-2]


def test_sse_09_a_byte_order_mark_in_three_chunks_hides_no_event():
    assert fields(frame(b"\xef", b"\xbb", b"\xbf", b"event: error\ndata: x\n\n")) == [(b"error", b"x")]


def test_sse_09_only_one_mark_and_only_at_the_start_is_skipped():
    doubled = frame(BYTE_ORDER_MARK * 2 + b"data: x\n\n")
    later = frame(b"data: x\n\n" + BYTE_ORDER_MARK + b"data: y\n\n")
    assert [event.data for event in doubled] == [None]
    assert [event.data for event in later] == [b"x", None]


def test_an_unfinished_event_is_no_event():
    framer = Framer()
    assert [event.raw for event in framer.feed(R + b"data: half\n")] == [R]
    assert framer.pending == len(b"data: half\n")
    assert [event.raw for event in framer.feed(b"\n" + E)] == [b"data: half\n\n", E]
    assert framer.pending == 0


def test_the_last_event_name_counts_and_unknown_fields_do_not():
    assert fields(frame(b"event: a\nevent: b\nx: y\nid: 1\ndata: z\n\n")) == [(b"b", b"z")]


LINES = st.sampled_from([b"data: x", b"data:y", b"event: e", b": c", b"id: 1", b"", b"\xef\xbb\xbf", b"data: \xe5\x8c", b"d"])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=12).map(lambda lines: b"".join(line + end for line, end in lines))
CHUNKED = STREAMS.flatmap(
    lambda stream: st.lists(st.integers(0, len(stream)), max_size=8).map(lambda places: cut_at(stream, *places))
)


def reference_events(stream: bytes) -> tuple[bytes, list[tuple[bytes, bytes | None]]]:
    """What the specification says, byte by byte: the bytes up to the last whole event, and each dispatched event's fields."""
    text = stream.removeprefix(BYTE_ORDER_MARK)
    offset = len(stream) - len(text)
    whole, dispatched, name, lines, position = b"", [], b"", [], 0
    while position < len(text):
        end = next((place for place in range(position, len(text)) if text[place] in b"\r\n"), None)
        if end is None:
            break
        line = text[position:end]
        position = end + (2 if text[end : end + 2] == b"\r\n" else 1)
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
        elif not line:
            dispatched.append((name, b"\n".join(lines) if lines else None))
            name, lines, whole = b"", [], stream[: offset + position]
    return whole, [event for event in dispatched if event != (b"", None)]


@given(CHUNKED)
def test_any_cut_gives_the_events_of_the_specification_byte_for_byte(chunks: list[bytes]):
    framer = Framer()
    events = [event for chunk in chunks for event in framer.feed(chunk)]
    stream = b"".join(chunks)
    whole, expected = reference_events(stream)
    forwarded = b"".join(event.raw for event in events)
    assert fields(events) == expected
    if not stream.startswith(BYTE_ORDER_MARK):
        assert forwarded == whole
    assert len(forwarded) + framer.pending == len(stream)
    assert stream.startswith(forwarded)
