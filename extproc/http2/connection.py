"""One end of an HTTP/2 connection: bytes in, events out; intentions in, bytes out (RFC 9113).

Nothing here raises for what a peer sends. What it does wrong to one stream ends that stream (RST_STREAM out, StreamBroken in the
events); what it does wrong to the connection ends everything (GOAWAY out, ConnectionBroken as the last event). Methods that send
do nothing for a stream that is over: the news may be under way to the caller as an event.
"""

from collections.abc import Callable, Iterable

from extproc.http2 import frames
from extproc.http2.control import Control
from extproc.http2.core import Core
from extproc.http2.errors import Code, ConnectionFault, StreamFault
from extproc.http2.events import ConnectionBroken, Event
from extproc.http2.exchange import Exchange
from extproc.http2.fields import FieldEncoder
from extproc.http2.frames import FrameReader, Kind
from extproc.http2.limits import FRAME_BYTES_DEFAULT, Limits
from extproc.http2.streams import Role, State, Step, Stream


class Connection:
    """One end. Every byte goes in through ``receive``; after any call, ``take_output`` has what is to be sent."""

    def __init__(self, role: Role, limits: Limits) -> None:
        self._core = core = Core(role, limits)
        self._control = control = Control(core)
        self._exchange = exchange = Exchange(core)
        self._live = core.streams.live
        self._outbox = core.outbox
        self._encoder = FieldEncoder()
        self._reader = FrameReader(FRAME_BYTES_DEFAULT)
        self._preface_left = frames.PREFACE if role is Role.SERVER else b""
        self._only: Kind | None = Kind.SETTINGS
        """The one type that the next frame may have, where only one may come."""
        self.broken: str | None = None
        """Why everything has ended, where the peer broke a rule."""
        self._receivers: dict[int, Callable[[int, int, bytes], None]] = {
            Kind.DATA: exchange.receive_data,
            Kind.HEADERS: exchange.receive_headers,
            Kind.PRIORITY: control.receive_priority,
            Kind.RST_STREAM: exchange.receive_reset,
            Kind.SETTINGS: control.receive_settings,
            Kind.PUSH_PROMISE: control.receive_push,
            Kind.PING: control.receive_ping,
            Kind.GOAWAY: control.receive_go_away,
            Kind.WINDOW_UPDATE: control.receive_window_update,
            Kind.CONTINUATION: exchange.receive_continuation,
        }
        self.send_data_now: Callable[[int, bytes], bool] = core.outbox.send_data_now
        """``send_data_now(stream_id, data)``: send a piece of a body if all of it can go out now; else nothing is sent, nothing
        waits, and it says False."""
        self.acknowledge: Callable[[int, int], None] = exchange.acknowledge
        """``acknowledge(stream_id, size)``: so many bytes of DataReceived are used up, the peer may send as many more."""
        control.introduce()

    @property
    def streams(self) -> int:
        """How many streams are live."""
        return len(self._live)

    @property
    def can_open_stream(self) -> bool:
        """Whether the peer takes another stream of ours."""
        return self._core.peer_takes_streams and self.broken is None and len(self._live) < self._core.peer.streams_max

    @property
    def has_output(self) -> bool:
        """Whether there is something to send."""
        return not self._outbox.is_empty

    def take_output(self) -> bytes:
        """What is to be sent now, in one piece."""
        return self._outbox.take()

    def open_stream(self, fields: Iterable[tuple[str, str]], *, end_stream: bool) -> int:
        """Send a request's head on a stream of its own, and return its id. Ask ``can_open_stream`` before.

        Raises ValueError for a field that HTTP/2 doesn't allow; nothing is sent then.
        """
        assert self.can_open_stream, "the peer takes no more streams"
        block = self._encoder.encode(fields)
        stream = self._exchange.add_stream(self._core.streams.next_own_id())
        self._put_block(stream, block, end_stream=end_stream)
        return stream.id

    def send_fields(self, stream_id: int, fields: Iterable[tuple[str, str]], *, end_stream: bool) -> None:
        """Send a response's head, or trailers. Raises ValueError for a field that HTTP/2 doesn't allow."""
        stream = self._live.get(stream_id)
        if stream is None:
            return
        assert stream.state is not State.HALF_CLOSED_LOCAL, "fields after the end"
        assert not stream.unsent, "fields after data that waits"
        self._put_block(stream, self._encoder.encode(fields), end_stream=end_stream)

    def send_data(self, stream_id: int, data: bytes, *, end_stream: bool = False) -> bool:
        """Send a piece of a body; whether all of it goes out now. Otherwise Drained will say when it has."""
        stream = self._live.get(stream_id)
        if stream is None:
            return True
        assert stream.state is not State.HALF_CLOSED_LOCAL, "data after the end"
        return self._outbox.send(stream, data, end=end_stream)

    def reset_stream(self, stream_id: int, code: Code) -> None:
        """End a stream at once; no event will speak of it any more."""
        stream = self._live.get(stream_id)
        if stream is not None:
            self._core.reset(stream, code)

    def release(self, stream_id: int) -> None:
        """Our work for a stream of the peer's has ended, whatever became of the stream: its place is free."""
        self._core.occupied.discard(stream_id)

    def shut_down(self) -> None:
        """Take no more streams. The peer is told first, and streams that crossed the news are still served (section 6.8)."""
        self._control.shut_down()

    def receive(self, data: bytes) -> list[Event]:
        """What arrived, as events in order. After ConnectionBroken nothing is read any more."""
        self._core.events = events = list[Event]()
        if self.broken is not None:
            return events
        try:
            if self._preface_left:
                data = self._read_preface(data)
            for kind, flags, stream_id, payload in self._reader.feed(data):
                if self._only is not None and kind != self._only:
                    raise ConnectionFault(Code.PROTOCOL_ERROR, f"a frame of type {kind} where only {self._only.name} may come")
                try:
                    if (receive := self._receivers.get(kind)) is not None:
                        receive(flags, stream_id, payload)
                    else:
                        self._core.patience.try_with(f"of unknown type {kind}")
                except StreamFault as fault:
                    self._core.refuse(fault)
                self._only = Kind.CONTINUATION if self._exchange.in_block else None
        except ConnectionFault as fault:
            self.broken = f"{fault.code.name}: {fault}"
            self._control.break_off(fault)
            events.append(ConnectionBroken(fault.code, str(fault)))
        return events

    def _read_preface(self, data: bytes) -> bytes:
        size = min(len(data), len(self._preface_left))
        if data[:size] != self._preface_left[:size]:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._preface_left = self._preface_left[size:]
        return data[size:]

    def _put_block(self, stream: Stream, block: bytes, *, end_stream: bool) -> None:
        size = self._core.peer.frame_bytes_max
        self._outbox.put(frames.encode_header_block(stream.id, block, end_stream=end_stream, frame_bytes_max=size))
        if end_stream:
            self._core.streams.step(stream, Step.END_SENT)
