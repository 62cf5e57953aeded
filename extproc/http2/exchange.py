"""Frames of streams: HEADERS, CONTINUATION, DATA, RST_STREAM (RFC 9113 sections 5.1, 6.1 to 6.4 and 8.1)."""

from typing import Final

from extproc.http2 import frames
from extproc.http2.core import Core
from extproc.http2.errors import Code, ConnectionFault, StreamFault, code_name
from extproc.http2.events import DataReceived, HeadReceived, StreamBroken, TrailersReceived
from extproc.http2.fields import Block, BlockReader, MalformedFields, Section, content_length, judge
from extproc.http2.frames import Kind
from extproc.http2.streams import ReceiveWindow, Role, State, Step, Stream

# Looked up once: Python 3.11 takes 90 ns for an enum's member, and these are asked for with every delta.
_HALF_CLOSED_REMOTE: Final = State.HALF_CLOSED_REMOTE


class Exchange:
    """Receives what concerns single streams. Every ``receive_*`` may raise ConnectionFault or StreamFault."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._live = core.streams.live
        self._patience = core.patience
        self._outbox = core.outbox
        self._blocks = BlockReader(core.limits)
        self._window = ReceiveWindow(core.limits.connection_window)
        self.in_block = False
        """Whether a header block has begun and not ended: nothing but its rest may come then."""

    def add_stream(self, stream_id: int) -> Stream:
        """A new live stream."""
        stream = Stream(
            id=stream_id,
            state=State.OPEN,
            send_window=self._core.peer.initial_window,
            receive_window=ReceiveWindow(self._core.limits.stream_window),
        )
        self._live[stream_id] = stream
        return stream

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Bytes of a stream's DATA are used up."""
        stream = self._live.get(stream_id)
        if stream is None or stream.state is _HALF_CLOSED_REMOTE:
            return
        increment = stream.receive_window.give_back(size)
        if increment:
            self._outbox.put(frames.encode_window_update(stream_id, increment))

    def receive_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        code = frames.decode_number(payload, Kind.RST_STREAM)
        if stream_id == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "RST_STREAM on stream 0")
        stream = self._live.get(stream_id)
        if stream is None:
            if self._core.streams.is_idle(stream_id):
                raise ConnectionFault(Code.PROTOCOL_ERROR, f"RST_STREAM on idle stream {stream_id}")
            self._patience.try_with("RST_STREAM on a closed stream")
            return
        self._core.drop(stream)
        self._core.events.append(StreamBroken(stream_id, code, f"reset by the peer ({code_name(code)})"))

    def receive_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "DATA on stream 0")
        size = len(payload)
        if not self._window.take(size):
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more DATA than the connection has room for")
        if increment := self._window.give_back(size):
            self._outbox.put(frames.encode_window_update(0, increment))
        stream = self._live.get(stream_id)
        if stream is None:
            self._core.streams.judge_stray(stream_id, "DATA")
            self._patience.try_with("DATA on a closed stream")
            return
        if stream.state is _HALF_CLOSED_REMOTE:
            raise StreamFault(stream_id, Code.STREAM_CLOSED, "DATA after the end")
        if not stream.head_received:
            raise StreamFault(stream_id, Code.PROTOCOL_ERROR, "DATA before the head")
        if not stream.receive_window.take(size):
            raise StreamFault(stream_id, Code.FLOW_CONTROL_ERROR, "more DATA than the stream has room for")
        ended = bool(flags & frames.END_STREAM)
        data = frames.strip_padding(payload, flags) if flags & frames.PADDED else payload
        if stream.body_bytes_left is not None:
            stream.count_body(len(data), ended=ended)
        if len(data) < size:
            self.acknowledge(stream_id, size - len(data))
        if ended:
            self._core.streams.step(stream, Step.END_RECEIVED)
        if data:
            self._patience.restore()
        else:
            self._patience.try_with("empty DATA")
        if data or ended:
            self._core.events.append(DataReceived(stream_id, data, ended))

    def receive_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._take_block(self._blocks.begin(flags, stream_id, payload))

    def receive_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._take_block(self._blocks.extend(flags, stream_id, payload))

    def _take_block(self, block: Block | None) -> None:
        self.in_block = block is None
        if block is None:
            return
        stream = self._live.get(block.stream_id)
        if stream is None:
            stream = self._accept(block.stream_id)
            if stream is None:
                return
        if stream.state is _HALF_CLOSED_REMOTE:
            raise StreamFault(stream.id, Code.STREAM_CLOSED, "HEADERS after the end")
        try:
            self._read_block(stream, block)
        except MalformedFields as malformed:
            raise StreamFault(stream.id, Code.PROTOCOL_ERROR, f"malformed: {malformed}") from malformed

    def _accept(self, stream_id: int) -> Stream | None:
        """A stream that the peer opens; None where the block was for one that we have reset."""
        streams = self._core.streams
        if streams.is_own(stream_id) or not streams.is_idle(stream_id):
            streams.judge_stray(stream_id, "HEADERS")
            self._patience.try_with("HEADERS on a closed stream")
            return None
        if self._core.role is Role.CLIENT:
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}, which a server may not open")
        streams.last_peer_id = stream_id
        if not self._core.takes_streams or len(self._core.occupied) >= self._core.limits.streams_max:
            raise StreamFault(stream_id, Code.REFUSED_STREAM, "no more streams are taken")
        return self.add_stream(stream_id)

    def _read_block(self, stream: Stream, block: Block) -> None:
        if stream.head_received:
            self._read_trailers(stream, block)
            return
        fields = judge(block.raw, Section.REQUEST if self._core.role is Role.SERVER else Section.RESPONSE)
        if self._core.role is Role.CLIENT and fields[0][1].startswith("1"):
            if block.end_stream:
                raise MalformedFields("an interim response that ends the stream")
            self._patience.try_with("an interim response")
            return
        stream.head_received = True
        # A response to HEAD and a 304 have a length and no body (section 8.1.1); so may whoever ends with its head.
        if not (block.end_stream and self._core.role is Role.CLIENT):
            stream.body_bytes_left = content_length(fields)
        self._end_received(stream, block)
        if self._core.role is Role.SERVER:
            self._core.occupied.add(stream.id)
        self._patience.restore()
        self._core.events.append(HeadReceived(stream.id, fields, block.end_stream))

    def _read_trailers(self, stream: Stream, block: Block) -> None:
        if not block.end_stream:
            raise MalformedFields("a second head")
        fields = judge(block.raw, Section.TRAILERS)
        self._end_received(stream, block)
        self._core.events.append(TrailersReceived(stream.id, fields))

    def _end_received(self, stream: Stream, block: Block) -> None:
        if block.end_stream:
            if stream.body_bytes_left is not None:
                stream.count_body(0, ended=True)
            self._core.streams.step(stream, Step.END_RECEIVED)
