"""Cutting a stream into other chunks never changes what it amounts to, whatever the dialect, the line ends and the end."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sse.reading import Dialect, StreamReader
from tests.unit.sse.streams import (
    CHAT_STREAM,
    CHAT_TOOL_STREAM,
    PING,
    WHOLE_STREAMS,
    D,
    E,
    F,
    R,
    T,
    chat,
    data,
    message_delta,
    read,
    response_completed,
    typed,
)

ENGINE_ERROR = {
    Dialect.CHAT: E + D,
    Dialect.COMPLETIONS: E + D,
    Dialect.RESPONSES: response_completed(8, "cancelled"),
    Dialect.MESSAGES: typed({"type": "error", "error": {"type": "internal_error", "message": "boom"}}),
}


def cut(stream: bytes, places: tuple[int, ...] | list[int]) -> list[bytes]:
    return [stream[start:end] for start, end in pairwise([0, *sorted(places), len(stream)])]


def parts(stream: bytes) -> list[bytes]:
    return [part + b"\n\n" for part in stream.split(b"\n\n")[:-1]]


def endings_of(dialect: Dialect) -> list[bytes]:
    """The dialect's whole stream, and the ways in which it breaks: in its middle by an error, cut short, junk, late errors."""
    whole = parts(WHOLE_STREAMS[dialect])
    middle = len(whole) // 2
    return [
        b"".join(whole),
        b"".join(whole[:middle]) + ENGINE_ERROR[dialect],
        ENGINE_ERROR[dialect] + b"".join(whole),
        b"".join(whole)[:-9],
        b"".join(whole[:middle]) + PING + b"data: junk\n\n" + b"".join(whole[middle:]),
        b"".join(whole[:-1]) + E + whole[-1] + E,
    ]


STREAMS = [
    pytest.param(dialect, stream.replace(b"\n", end), id=f"{dialect}-{kind}-{len(end)}{end[:1].hex()}")
    for dialect in Dialect
    for kind, stream in enumerate(endings_of(dialect))
    for end in (b"\n", b"\r\n", b"\r")
]


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
def test_one_cut_anywhere_changes_nothing(dialect: Dialect, stream: bytes):
    expected = read(stream, dialect)
    for place in range(len(stream)):
        assert read(cut(stream, [place]), dialect) == expected


@pytest.mark.parametrize(("dialect", "stream"), STREAMS)
def test_single_bytes_change_nothing(dialect: Dialect, stream: bytes):
    assert read((stream[place : place + 1] for place in range(len(stream))), dialect) == read(stream, dialect)


def small(payloads: list[bytes]) -> bytes:
    return b"".join(b"data:" + payload + b"\n\n" for payload in payloads)


TEXT, STOP = b'{"choices":[{"text":"x"}]}', b'{"choices":[{"finish_reason":"stop"}]}'
SMALL_STREAMS = {
    "finished": small([TEXT, STOP, b"[DONE]"]),
    "late error": small([STOP, b'{"error":1}', b"[DONE]"]),
    "error": small([TEXT, b'{"error":1}', b"[DONE]"]),
    "unproved": small([TEXT, b"[DONE]"]),
    "malformed": small([b"{", TEXT]),
    "late line feed": small([STOP, b"[DONE]"]) + b"\n",
    "late event, torn": small([STOP, b"[DONE]"]).replace(b"\n", b"\r") + b"data: x\n\n",
}


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\n\r"], ids=["lf", "crlf", "cr", "lfcr"])
@pytest.mark.parametrize("name", SMALL_STREAMS)
def test_any_two_cuts_of_a_small_stream_change_nothing(name: str, end: bytes):
    stream = SMALL_STREAMS[name].replace(b"\n", end)
    expected = read(stream, Dialect.COMPLETIONS)
    for places in combinations(range(1, len(stream)), 2):
        assert read(cut(stream, places), Dialect.COMPLETIONS) == expected


EVENTS = {
    Dialect.CHAT: [
        R,
        T("Hi"),
        T(""),
        T("北"),
        F("stop"),
        F("abort"),
        E,
        D,
        chat({"content": "x"}, index=1),
        data({"choices": []}),
    ],
    Dialect.COMPLETIONS: [*parts(WHOLE_STREAMS[Dialect.COMPLETIONS]), E],
    Dialect.MESSAGES: [*parts(WHOLE_STREAMS[Dialect.MESSAGES]), message_delta(None), ENGINE_ERROR[Dialect.MESSAGES]],
    Dialect.RESPONSES: [*parts(WHOLE_STREAMS[Dialect.RESPONSES]), ENGINE_ERROR[Dialect.RESPONSES], E],
}
FRAMES = [PING, b"data:\n\n", b"data: junk\n\n", b"event: error\n\n", b"\n", b"id: 7\n", b"\xef\xbb\xbf", b"data: {"]


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[Dialect, list[bytes], int]:
    dialect = draw(st.sampled_from(Dialect))
    events = draw(st.lists(st.sampled_from([*EVENTS[dialect], *EVENTS[dialect], *FRAMES]), max_size=8))
    ends = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])
    stream = b"".join(event.replace(b"\n", draw(ends)) for event in events)
    places = draw(st.lists(st.integers(0, len(stream)), max_size=12))
    return dialect, cut(stream, places), draw(st.integers(1, 2))


@settings(max_examples=400)
@given(cut_streams())
def test_any_cuts_of_any_stream_change_nothing(case: tuple[Dialect, list[bytes], int]):
    dialect, chunks, choices = case
    assert read(chunks, dialect, choices=choices) == read(b"".join(chunks), dialect, choices=choices)


@settings(max_examples=200)
@given(cut_streams())
def test_what_is_forwarded_is_never_anything_but_whole_events_of_the_input(case: tuple[Dialect, list[bytes], int]):
    dialect, chunks, choices = case
    outcome = read(chunks, dialect, choices=choices)
    stream = b"".join(chunks)
    if not outcome.finished:
        assert stream.startswith(outcome.forward)
    position = 0
    for part in outcome.forward.splitlines(keepends=True):
        position = stream.index(part, position) + len(part)


@pytest.mark.parametrize("stream", [CHAT_STREAM, CHAT_TOOL_STREAM])
def test_content_is_told_by_the_chunk_that_completes_its_event(stream: bytes):
    first = stream.index(b"Hel") if stream is CHAT_STREAM else stream.index(b"call_1")
    boundary = stream.index(b"\n\n", first) + 2
    reader = StreamReader(Dialect.CHAT)
    told = [reader.feed(stream[place : place + 1]).content for place in range(boundary)]
    assert told == [False] * (boundary - 1) + [True]
