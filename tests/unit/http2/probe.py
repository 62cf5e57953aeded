"""One end under test and a peer that says exactly what a test says, right or wrong; its frames are hyperframe's or raw bytes."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import hpack
from hyperframe.frame import Frame

from extproc.http2.connection import Connection
from extproc.http2.events import ConnectionBroken, Event, StreamBroken
from extproc.http2.limits import Limits
from extproc.http2.streams import Role

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUEST = ((":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/"))
RESPONSE = ((":status", "200"),)
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20


def raw(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    """A frame, whether it makes sense or not."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream_id) + payload


def number(value: int) -> bytes:
    return struct.pack(">I", value)


def setting(parameter: int, value: int) -> bytes:
    return raw(SETTINGS, 0, 0, struct.pack(">HI", parameter, value))


@dataclass
class Probe:
    """``role`` is the role of the end under test. Both ends' introductions are over when it is made."""

    role: Role = Role.SERVER
    limits: Limits = field(default_factory=Limits)
    introduced: bool = True
    connection: Connection = field(init=False)
    events: list[Event] = field(default_factory=list)
    encoder: hpack.Encoder = field(default_factory=hpack.Encoder)
    _unread: bytes = b""

    def __post_init__(self) -> None:
        self.connection = Connection(self.role, self.limits)
        if self.introduced:
            self.give((PREFACE if self.role is Role.SERVER else b"") + raw(SETTINGS))
            self.said()
            self.events.clear()

    def give(self, *frames: bytes) -> list[Event]:
        """The events of these bytes."""
        events = self.connection.receive(b"".join(frames))
        self.events += events
        return events

    def said(self) -> list[Frame]:
        """What the end under test has sent since the last call."""
        self._unread += self.connection.take_output()
        if self.role is Role.CLIENT and self._unread.startswith(PREFACE):
            self._unread = self._unread.removeprefix(PREFACE)
        frames = []
        while self._unread:
            frame, length = Frame.parse_frame_header(memoryview(self._unread[:9]))
            frame.parse_body(memoryview(self._unread[9 : 9 + length]))
            frames.append(frame)
            self._unread = self._unread[9 + length :]
        return frames

    def head(
        self, stream_id: int = 1, fields: Sequence[tuple[str, str]] = REQUEST, *, end: bool = False, flags: int = END_HEADERS
    ) -> bytes:
        """HEADERS of the peer's, well encoded whatever the fields are."""
        return raw(HEADERS, flags | (END_STREAM if end else 0), stream_id, self.encoder.encode(fields))

    def open(self, stream_id: int = 1, *, end: bool = False) -> None:
        """A stream that both ends know: the peer's request, or ours with its answer's head."""
        if self.role is Role.CLIENT:
            assert self.connection.open_stream(REQUEST, end_stream=end) == stream_id
            self.give(self.head(stream_id, RESPONSE))
        else:
            self.give(self.head(stream_id, end=end))
        self.said()
        self.events.clear()

    @property
    def connection_error(self) -> int | None:
        """The code with which the connection was ended, as the events and the GOAWAY say alike."""
        broken = [event for event in self.events if isinstance(event, ConnectionBroken)]
        gone = [frame for frame in self.said() if frame.type == GOAWAY]
        if not broken:
            assert not gone
            return None
        assert [event.code for event in broken] == [frame.error_code for frame in gone]
        assert self.events[-1] is broken[0]
        return broken[0].code

    def stream_error(self, stream_id: int = 1) -> int | None:
        """The code with which a stream was ended by the end under test."""
        resets = [frame.error_code for frame in self.said() if frame.type == RST_STREAM and frame.stream_id == stream_id]
        told = [event.code for event in self.events if isinstance(event, StreamBroken) and event.stream_id == stream_id]
        assert told in ([], resets)
        return resets[0] if resets else None
