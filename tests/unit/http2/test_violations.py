"""What a peer may not do, one row each, named by its section of RFC 9113: what is ended for it, and with which code."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from extproc.http2.errors import Code
from extproc.http2.streams import Role
from tests.unit.http2.probe import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    REQUEST,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    Probe,
    number,
    raw,
    setting,
)


@dataclass(frozen=True)
class Violation:
    """``say`` gives the offending bytes; streams in ``opened`` are open before (``ended``: by the peer's END_STREAM too)."""

    name: str
    code: Code
    say: Callable[[Probe], bytes]
    opened: bool = False
    ended: bool = False
    role: Role = Role.SERVER

    def commit(self) -> Probe:
        probe = Probe(self.role)
        if self.opened:
            probe.open(end=self.ended)
        probe.give(self.say(probe))
        return probe


def frame(*arguments: object) -> Callable[[Probe], bytes]:
    return lambda probe: raw(*arguments)  # type: ignore[arg-type]


def head(*fields: tuple[str, str], end: bool = False) -> Callable[[Probe], bytes]:
    return lambda probe: probe.head(1, fields, end=end)


def more(*fields: tuple[str, str]) -> Callable[[Probe], bytes]:
    return head(*REQUEST, *fields)


CONNECTION = [
    Violation("4.1 a length above the maximum", Code.FRAME_SIZE_ERROR, lambda probe: b"\x00\x40\x01" + bytes(6)),
    Violation("4.3 a block that can't be decoded", Code.COMPRESSION_ERROR, frame(HEADERS, END_HEADERS, 1, b"\x80")),
    Violation("4.3 a block that ends early", Code.COMPRESSION_ERROR, frame(HEADERS, END_HEADERS, 1, b"\x00\x05ab")),
    Violation("4.3 a table larger than allowed", Code.COMPRESSION_ERROR, frame(HEADERS, END_HEADERS, 1, b"\x3f\xe2\x1f")),
    Violation("5.1 DATA on an idle stream", Code.PROTOCOL_ERROR, frame(DATA, 0, 1, b"a")),
    Violation("5.1 RST_STREAM on an idle stream", Code.PROTOCOL_ERROR, frame(RST_STREAM, 0, 1, number(8))),
    Violation("5.1 WINDOW_UPDATE on an idle stream", Code.PROTOCOL_ERROR, frame(WINDOW_UPDATE, 0, 1, number(8))),
    Violation("5.1 DATA on an idle stream of ours", Code.PROTOCOL_ERROR, frame(DATA, 0, 1, b"a"), role=Role.CLIENT),
    Violation("5.1.1 a request on an even stream", Code.PROTOCOL_ERROR, lambda probe: probe.head(2)),
    Violation(
        "5.1.1 a stream that a higher one has closed", Code.STREAM_CLOSED, lambda probe: probe.head(5, end=True) + probe.head(3)
    ),
    Violation(
        "5.1 HEADERS on a closed stream",
        Code.STREAM_CLOSED,
        lambda probe: raw(RST_STREAM, 0, 1, number(8)) + probe.head(),
        opened=True,
    ),
    Violation(
        "5.1 DATA on a closed stream",
        Code.STREAM_CLOSED,
        lambda probe: raw(RST_STREAM, 0, 1, number(8)) + raw(DATA, 0, 1, b"a"),
        opened=True,
    ),
    Violation("6.1 DATA on stream 0", Code.PROTOCOL_ERROR, frame(DATA, 0, 0, b"a")),
    Violation("6.1 as much padding as payload", Code.PROTOCOL_ERROR, frame(DATA, PADDED, 1, b"\x04abc"), opened=True),
    Violation("6.1 padding without its length", Code.FRAME_SIZE_ERROR, frame(DATA, PADDED, 1, b""), opened=True),
    Violation("6.2 HEADERS on stream 0", Code.PROTOCOL_ERROR, lambda probe: probe.head(0)),
    Violation("6.2 as much padding as payload", Code.PROTOCOL_ERROR, frame(HEADERS, END_HEADERS | PADDED, 1, b"\x09\x82")),
    Violation("6.2 too short for priority", Code.FRAME_SIZE_ERROR, frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"\x82")),
    Violation("6.2 another frame in a block", Code.PROTOCOL_ERROR, lambda probe: probe.head(flags=0) + raw(PING, 0, 0, bytes(8))),
    Violation("6.2 an unknown frame in a block", Code.PROTOCOL_ERROR, lambda probe: probe.head(flags=0) + raw(0x20, 0, 1)),
    Violation("6.2 another stream's HEADERS in a block", Code.PROTOCOL_ERROR, lambda probe: probe.head(flags=0) + probe.head(3)),
    Violation("6.2 a response on a stream nobody asked on", Code.PROTOCOL_ERROR, lambda probe: probe.head(2), role=Role.CLIENT),
    Violation("6.3 PRIORITY on stream 0", Code.PROTOCOL_ERROR, frame(PRIORITY, 0, 0, bytes(5))),
    Violation("6.4 RST_STREAM on stream 0", Code.PROTOCOL_ERROR, frame(RST_STREAM, 0, 0, number(8))),
    Violation("6.4 RST_STREAM of 3 bytes", Code.FRAME_SIZE_ERROR, frame(RST_STREAM, 0, 1, b"abc"), opened=True),
    Violation("6.5 SETTINGS on a stream", Code.PROTOCOL_ERROR, frame(SETTINGS, 0, 1), opened=True),
    Violation("6.5 SETTINGS of 5 bytes", Code.FRAME_SIZE_ERROR, frame(SETTINGS, 0, 0, bytes(5))),
    Violation("6.5 an acknowledgement that says something", Code.FRAME_SIZE_ERROR, frame(SETTINGS, ACK, 0, bytes(6))),
    Violation("6.5.2 ENABLE_PUSH 2", Code.PROTOCOL_ERROR, lambda probe: setting(2, 2)),
    Violation("6.5.2 ENABLE_PUSH 1 from a server", Code.PROTOCOL_ERROR, lambda probe: setting(2, 1), role=Role.CLIENT),
    Violation("6.5.2 INITIAL_WINDOW_SIZE 2^31", Code.FLOW_CONTROL_ERROR, lambda probe: setting(4, 2**31)),
    Violation("6.5.2 MAX_FRAME_SIZE 16383", Code.PROTOCOL_ERROR, lambda probe: setting(5, 16383)),
    Violation("6.5.2 MAX_FRAME_SIZE 2^24", Code.PROTOCOL_ERROR, lambda probe: setting(5, 2**24)),
    Violation("6.6 PUSH_PROMISE from a client", Code.PROTOCOL_ERROR, frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4)), opened=True),
    Violation(
        "6.6 PUSH_PROMISE though refused",
        Code.PROTOCOL_ERROR,
        frame(PUSH_PROMISE, END_HEADERS, 1, number(2) + b"\x82"),
        opened=True,
        role=Role.CLIENT,
    ),
    Violation("6.7 PING on a stream", Code.PROTOCOL_ERROR, frame(PING, 0, 1, bytes(8)), opened=True),
    Violation("6.7 PING of 7 bytes", Code.FRAME_SIZE_ERROR, frame(PING, 0, 0, bytes(7))),
    Violation("6.8 GOAWAY on a stream", Code.PROTOCOL_ERROR, frame(GOAWAY, 0, 1, bytes(8)), opened=True),
    Violation("6.8 GOAWAY of 7 bytes", Code.FRAME_SIZE_ERROR, frame(GOAWAY, 0, 0, bytes(7))),
    Violation("6.9 WINDOW_UPDATE of 3 bytes", Code.FRAME_SIZE_ERROR, frame(WINDOW_UPDATE, 0, 0, b"abc")),
    Violation("6.9 WINDOW_UPDATE by 0", Code.PROTOCOL_ERROR, frame(WINDOW_UPDATE, 0, 0, number(0))),
    Violation("6.9.1 a connection's window above 2^31-1", Code.FLOW_CONTROL_ERROR, frame(WINDOW_UPDATE, 0, 0, number(2**31 - 1))),
    Violation(
        "6.9.2 a stream's window above 2^31-1 by SETTINGS",
        Code.FLOW_CONTROL_ERROR,
        lambda probe: raw(WINDOW_UPDATE, 0, 1, number(2**30)) + setting(4, 2**31 - 1),
        opened=True,
    ),
    Violation("6.10 CONTINUATION out of nowhere", Code.PROTOCOL_ERROR, frame(CONTINUATION, END_HEADERS, 1), opened=True),
    Violation(
        "6.10 CONTINUATION after the block's end",
        Code.PROTOCOL_ERROR,
        lambda probe: probe.head() + raw(CONTINUATION, END_HEADERS, 1),
    ),
    Violation(
        "6.10 CONTINUATION on another stream",
        Code.PROTOCOL_ERROR,
        lambda probe: probe.head(flags=0) + raw(CONTINUATION, END_HEADERS, 3),
    ),
]

STREAM = [
    Violation("5.1 DATA after END_STREAM", Code.STREAM_CLOSED, frame(DATA, 0, 1, b"a"), opened=True, ended=True),
    Violation("5.1 HEADERS after END_STREAM", Code.STREAM_CLOSED, lambda probe: probe.head(), opened=True, ended=True),
    Violation("6.3 PRIORITY of 4 bytes", Code.FRAME_SIZE_ERROR, frame(PRIORITY, 0, 1, bytes(4)), opened=True),
    Violation("6.9 WINDOW_UPDATE by 0", Code.PROTOCOL_ERROR, frame(WINDOW_UPDATE, 0, 1, number(0)), opened=True),
    Violation("6.9.1 a window above 2^31-1", Code.FLOW_CONTROL_ERROR, frame(WINDOW_UPDATE, 0, 1, number(2**31 - 1)), opened=True),
    Violation("8.1 a second head", Code.PROTOCOL_ERROR, lambda probe: probe.head(), opened=True),
    Violation("8.1 a pseudo field in trailers", Code.PROTOCOL_ERROR, lambda probe: probe.head(end=True), opened=True),
    Violation("8.1.1 less body than promised", Code.PROTOCOL_ERROR, head(*REQUEST, ("content-length", "1"), end=True)),
    Violation(
        "8.1.1 a body shorter than promised",
        Code.PROTOCOL_ERROR,
        lambda probe: probe.head(1, (*REQUEST, ("content-length", "2"))) + raw(DATA, END_STREAM, 1, b"a"),
    ),
    Violation(
        "8.1.1 a body longer than promised",
        Code.PROTOCOL_ERROR,
        lambda probe: probe.head(1, (*REQUEST, ("content-length", "2"))) + raw(DATA, 0, 1, b"abc"),
    ),
    Violation("8.1.1 two lengths", Code.PROTOCOL_ERROR, more(("content-length", "1"), ("content-length", "2"))),
    Violation("8.1.1 a length that is no number", Code.PROTOCOL_ERROR, more(("content-length", "-1"))),
    Violation("8.2 an upper-case name", Code.PROTOCOL_ERROR, more(("X-Name", "a"))),
    Violation("8.2.1 a name with a space", Code.PROTOCOL_ERROR, more(("x name", "a"))),
    Violation("8.2.1 an empty name", Code.PROTOCOL_ERROR, more(("", "a"))),
    Violation("8.2.1 a line break in a value", Code.PROTOCOL_ERROR, more(("x-name", "a\r\nb: c"))),
    Violation("8.2.1 NUL in a value", Code.PROTOCOL_ERROR, more(("x-name", "a\0b"))),
    Violation("8.2.1 a value that begins with a space", Code.PROTOCOL_ERROR, more(("x-name", " a"))),
    Violation("8.2.1 a value that ends with a tab", Code.PROTOCOL_ERROR, more(("x-name", "a\t"))),
    Violation("8.2.2 connection", Code.PROTOCOL_ERROR, more(("connection", "close"))),
    Violation("8.2.2 transfer-encoding", Code.PROTOCOL_ERROR, more(("transfer-encoding", "chunked"))),
    Violation("8.2.2 te other than trailers", Code.PROTOCOL_ERROR, more(("te", "gzip"))),
    Violation("8.3 an unknown pseudo field", Code.PROTOCOL_ERROR, head(*REQUEST, (":protocol", "websocket"))),
    Violation("8.3 a response's pseudo field", Code.PROTOCOL_ERROR, head(*REQUEST, (":status", "200"))),
    Violation("8.3 a pseudo field after another field", Code.PROTOCOL_ERROR, head(*REQUEST[:3], ("x-name", "a"), REQUEST[3])),
    Violation("8.3 a pseudo field twice", Code.PROTOCOL_ERROR, head(*REQUEST, REQUEST[0])),
    Violation("8.3.1 no method", Code.PROTOCOL_ERROR, head(*REQUEST[1:])),
    Violation("8.3.1 no scheme", Code.PROTOCOL_ERROR, head(REQUEST[0], *REQUEST[2:])),
    Violation("8.3.1 no path", Code.PROTOCOL_ERROR, head(*REQUEST[:3])),
    Violation("8.3.1 an empty path", Code.PROTOCOL_ERROR, head(*REQUEST[:3], (":path", ""))),
    Violation("8.5 CONNECT with a path", Code.PROTOCOL_ERROR, head((":method", "CONNECT"), *REQUEST[1:])),
]


def test_every_violation_has_a_name_of_its_own():
    for table in (CONNECTION, STREAM):
        names = [violation.name for violation in table]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("violation", CONNECTION, ids=lambda violation: violation.name.replace(" ", "-"))
def test_connection_is_ended_for(violation: Violation):
    probe = violation.commit()
    assert probe.connection_error == violation.code
    assert probe.give(raw(PING, 0, 0, bytes(8))) == []
    assert not probe.said(), "nothing is answered any more"


@pytest.mark.parametrize("violation", STREAM, ids=lambda violation: violation.name.replace(" ", "-"))
def test_one_stream_is_ended_for(violation: Violation):
    probe = violation.commit()
    assert probe.stream_error() == violation.code
    assert probe.connection.streams == 0
    probe.give(probe.head(3))
    assert probe.connection.streams == 1, "the connection, and its compression, go on"
    assert probe.connection_error is None


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Code.PROTOCOL_ERROR),
        (PREFACE[:-1] + b"\r", Code.PROTOCOL_ERROR),
        (PREFACE + raw(PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
        (PREFACE + raw(SETTINGS, ACK), Code.PROTOCOL_ERROR),
        (PREFACE + raw(HEADERS, END_HEADERS, 1, b"\x82"), Code.PROTOCOL_ERROR),
    ],
    ids=["HTTP/1.1", "a wrong last byte", "PING first", "an acknowledgement first", "HEADERS first"],
)
def test_3_4_a_connection_begins_with_preface_and_settings(first: bytes, code: Code):
    probe = Probe(introduced=False)
    probe.said()
    for index in range(len(first)):
        probe.give(first[index : index + 1])
    assert probe.connection_error == code


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ((), False),
        (((":status", "20"),), False),
        (((":status", "200"), (":path", "/")), False),
        (((":status", "100"),), True),
    ],
    ids=["no status", "a status of two digits", "a request's pseudo field", "an interim response that ends"],
)
def test_8_3_2_a_response_is_ended_for(fields: tuple[tuple[str, str], ...], end: bool):
    probe = Probe(Role.CLIENT)
    probe.connection.open_stream(REQUEST, end_stream=True)
    probe.said()
    probe.give(probe.head(1, fields, end=end))
    assert probe.stream_error() == Code.PROTOCOL_ERROR


def test_8_1_a_body_before_the_head_ends_the_stream():
    probe = Probe(Role.CLIENT)
    probe.connection.open_stream(REQUEST, end_stream=True)
    probe.said()
    probe.give(raw(DATA, 0, 1, b"a"))
    assert probe.stream_error() == Code.PROTOCOL_ERROR


def test_6_9_1_more_data_than_the_stream_has_room_for_ends_it():
    probe = Probe()
    probe.open()
    for _ in range(17):
        probe.give(raw(DATA, 0, 1, bytes(16384)))
    assert probe.stream_error() == Code.FLOW_CONTROL_ERROR


def test_6_9_1_more_data_than_the_connection_has_room_for_ends_it():
    """The connection's window is given back by halves, so only one read can hold more than all of it."""
    probe = Probe()
    probe.open()
    window = probe.connection._exchange._window
    window._left = 10
    probe.give(raw(DATA, 0, 1, bytes(11)))
    assert probe.connection_error == Code.FLOW_CONTROL_ERROR
