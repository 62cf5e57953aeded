"""The shortcut for plain deltas never reads a stream differently than the ordinary way does."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.sse.plain_delta import CLOSINGS, OPENINGS, PlainDeltas, is_plain_delta
from extproc.sse.reading import Batch, Dialect, StreamReader
from tests.unit.sse.streams import D, F, R, T, chat, chat_chunk, completion, data, usage

CHAT = OPENINGS[Dialect.CHAT]


def ordinary(dialect: Dialect) -> StreamReader:
    reader = StreamReader(dialect)
    reader._plain = None
    return reader


@pytest.mark.parametrize("text", ["x", " ", "\n", 'say "finish_reason":null}]}', "\\", "北", '"error"', "a\u2028b"])
@pytest.mark.parametrize("dialect", [Dialect.CHAT, Dialect.COMPLETIONS])
def test_plain_text_takes_the_shortcut(dialect: Dialect, text: str) -> None:
    chunk = T(text) if dialect is Dialect.CHAT else completion(text)
    assert is_plain_delta(chunk, OPENINGS[dialect])


def test_the_shape_without_further_members_takes_it_too() -> None:
    assert is_plain_delta(chat({"content": "x"}), CHAT)


@pytest.mark.parametrize(
    "chunk",
    [
        R,
        T(""),
        F("stop"),
        D,
        usage(3),
        T("a") + T("b"),
        T("a")[:-1],
        T("a")[6:],
        b": ping\n\n",
        chat({"content": "x"}, index=1),
        chat({"content": "x"}, token_ids=[17, 18]),
        chat({"content": "x"}, logprobs={"content": [{"token": "a"}, {"token": "b"}]}),
        chat({"content": "x", "reasoning": None}, "length"),
        chat_chunk([{"index": 0, "delta": {"content": "x"}, "finish_reason": None}], usage={"completion_tokens": 9}),
        chat_chunk(
            [
                {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"},
                {"index": 1, "delta": {"content": "x"}, "finish_reason": None},
            ]
        ),
        data({"error": {"message": "x"}, "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}),
        T("x").replace(b'"created"', b'"a\rb"'),
    ],
)
def test_news_of_any_kind_takes_the_ordinary_way(chunk: bytes) -> None:
    assert not is_plain_delta(chunk, CHAT)


@pytest.mark.parametrize(
    ("chunk", "deltas"),
    [
        (T("a"), 1),
        (T("a") + T("b"), 2),
        (T("a") + T("b") + T("c"), 3),
        (T("a") + T("b")[:-1], 0),
        (T("a") + T(""), 0),
        (T("a") + F("stop"), 0),
        (F("stop") + T("a"), 0),
        (T("a") + b"\n\n" + T("b"), 0),
        (b"\n\n", 0),
        (b"", 0),
    ],
)
def test_several_plain_deltas_are_counted_and_anything_else_among_them_is_news(chunk: bytes, deltas: int) -> None:
    assert PlainDeltas(CHAT).count(chunk) == deltas
    if deltas:
        shortcut, way = StreamReader(Dialect.CHAT), ordinary(Dialect.CHAT)
        for reader in (shortcut, way):
            reader.feed(R + T("Hi"))
        assert shortcut.feed(chunk) == way.feed(chunk)
        assert shortcut.delivered_tokens == way.delivered_tokens == 1 + deltas


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        (T("a"), T("b"), True),
        (T("a"), T("error"), True),
        (T("a"), T("北"), True),
        (T("a"), T('"'), True),
        (T("\\"), T("a"), True),
        (T("a"), T(""), False),
        (T("a"), F("stop"), False),
        (T("a"), T("b").replace(b'"b"', b'"b","x":"c"'), True),
        (T("a"), T("b").replace(b'"b"', b'"b","error":"c"'), False),
        (T("a"), T("b").replace(b'"b"', b'"b\n"'), False),
        (T("a"), T("b").replace(b"chatcmpl", b"other"), True),
        (T("a"), T("b")[:-20], False),
    ],
)
def test_the_learned_shape_refuses_and_takes_as_the_whole_test_does(first: bytes, then: bytes, expected: bool) -> None:
    learned = PlainDeltas(CHAT)
    assert learned.count(first) == 1
    assert bool(learned.count(then)) is expected
    assert bool(learned.count(first)), "and is not spoiled"


@given(st.binary(max_size=3), st.integers(0, 5))
def test_a_shape_whose_halves_overlap_is_left_to_the_whole_test(text: bytes, cut: int) -> None:
    learned = PlainDeltas(CHAT)
    learned.count(T("a"))
    chunk = learned._before[: len(learned._before) - cut] + text + learned._after[cut:]
    assert bool(learned.count(chunk)) is is_plain_delta(chunk, CHAT)


def test_asking_for_plain_deltas_reads_nothing() -> None:
    reader = StreamReader(Dialect.CHAT)
    assert reader.plain_deltas(T("a")) == 0, "nothing came yet"
    reader.feed(R)
    assert reader.plain_deltas(T("a")) == 0, "no content came yet"
    reader.feed(T("Hi"))
    assert [reader.plain_deltas(T("a")) for _ in range(2)] == [1, 1]
    assert reader.delivered_tokens == 1
    reader.pass_plain(1)
    assert reader.delivered_tokens == 2
    reader.feed(T("half")[:10])
    assert reader.plain_deltas(T("a")) == 0, "an event is half here"


fragments = st.lists(
    st.sampled_from(
        [
            b"data: {",
            CHAT,
            OPENINGS[Dialect.COMPLETIONS],
            *CLOSINGS,
            b'"',
            b"x",
            b"\n",
            b"\n\n",
            b"\r",
            b"\\",
            b'"error"',
            b'"error":null,',
            b"{",
            b"}]}",
            b'"finish_reason":"stop"',
            b'"finish_reason":null',
            b",",
            R,
            T("hi"),
            F("stop"),
            D,
            completion("hi"),
        ]
    ),
    max_size=12,
).map(b"".join)
documents = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "x", "stop", "abort", '"finish_reason":null}]}']),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["content", "error", "finish_reason", "usage", "index", "choices", "token_ids"]), inner)
    ),
    max_leaves=8,
)
choices = st.fixed_dictionaries(
    {
        "index": st.integers(0, 1),
        "delta": st.fixed_dictionaries({"content": st.sampled_from(["", "x", '"'])}, optional={"a": documents}),
    },
    optional={"logprobs": documents, "finish_reason": documents, "token_ids": documents},
)
payloads = st.fixed_dictionaries({"choices": st.lists(choices, max_size=2)}, optional={"error": documents, "usage": documents})


def summary(reader: StreamReader, batch: Batch) -> tuple[object, ...]:
    return (batch, reader.finished, reader.delivered_tokens, reader.token_source)


@pytest.mark.parametrize("dialect", [Dialect.CHAT, Dialect.COMPLETIONS])
@given(chunks=st.lists(fragments | payloads.map(data), max_size=6))
@example(chunks=[T("a"), T("b"), F("stop"), T("c"), D])
@example(chunks=[T("a"), chat({"content": "b"}, index=1), T("c")])
def test_every_stream_reads_the_same_with_and_without_it(dialect: Dialect, chunks: list[bytes]) -> None:
    short, long = StreamReader(dialect), ordinary(dialect)
    opening = T("a") if dialect is Dialect.CHAT else completion("a")
    for chunk in [opening, opening, *chunks]:  # the second one teaches its shape
        assert summary(short, short.feed(chunk)) == summary(long, long.feed(chunk))
    assert summary(short, short.end()) == summary(long, long.end())


def test_it_is_off_where_more_choices_were_asked_for() -> None:
    assert StreamReader(Dialect.CHAT, 2)._plain is None
    assert json.loads(T("x")[6:])["choices"]
