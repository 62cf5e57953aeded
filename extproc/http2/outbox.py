"""What waits to be sent, under both flow-control windows (RFC 9113 section 5.2).

Control frames and header blocks go out as they come. DATA goes out as far as the windows of its stream and of the connection
reach; the rest stays with its stream, and streams take turns, a frame each, when there is room again.
"""

from collections import deque
from typing import Final

from extproc.http2 import frames
from extproc.http2.errors import Code, ConnectionFault
from extproc.http2.frames import Kind
from extproc.http2.limits import FRAME_BYTES_DEFAULT, WINDOW_DEFAULT, WINDOW_MAX, Patience
from extproc.http2.streams import State, Step, Stream, StreamTable

# Looked up once, as in exchange.py.
_DATA: Final = Kind.DATA
_HALF_CLOSED_LOCAL: Final = State.HALF_CLOSED_LOCAL


class Outbox:
    """The sending half of a connection."""

    def __init__(self, streams: StreamTable, patience: Patience, replies_max: int) -> None:
        self.frame_bytes_max = FRAME_BYTES_DEFAULT
        self._streams = streams
        self._live = streams.live
        self._patience = patience
        self._window = WINDOW_DEFAULT
        self._frames: list[bytes] = []
        self._replies = 0
        self._replies_max = replies_max
        self._kept_back: dict[int, Stream] = {}
        """Streams with unsent data, in the order in which they began to wait."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send now."""
        return not self._frames

    def take(self) -> bytes:
        """Everything that is to be sent now."""
        data = self._frames[0] if len(self._frames) == 1 else b"".join(self._frames)
        self._frames.clear()
        self._replies = 0
        return data

    def put(self, frame: bytes) -> None:
        """A frame that no window holds back."""
        self._frames.append(frame)

    def put_reply(self, frame: bytes) -> None:
        """A frame that the peer has asked for. Raises ConnectionFault where it asks and doesn't read."""
        self._replies += 1
        if self._replies > self._replies_max:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, f"{self._replies} answers to PING and SETTINGS wait to be sent")
        self._frames.append(frame)

    def send_data_now(self, stream_id: int, data: bytes) -> bool:
        """DATA of a live stream, if one frame can take all of it out now; else nothing."""
        stream = self._live.get(stream_id)
        size = len(data)
        if stream is None or stream.unsent or size > stream.send_window or size > self._window or size > self.frame_bytes_max:
            return False
        assert stream.state is not _HALF_CLOSED_LOCAL, "data after the end"
        stream.send_window -= size
        self._window -= size
        self._patience.restore()
        self._frames.append(frames.encode_frame(_DATA, 0, stream_id, data))
        return True

    def send(self, stream: Stream, data: bytes, *, end: bool) -> bool:
        """DATA of a stream; whether all of it goes out now."""
        if not end and self.send_data_now(stream.id, data):
            return True
        assert not stream.ends_after_unsent, "data after the end"
        stream.unsent.append(memoryview(data))
        stream.ends_after_unsent = end
        self._kept_back[stream.id] = stream
        return stream.id in self.serve_kept_back()

    def widen(self, increment: int) -> None:
        """The peer gave room on the connection. Raises ConnectionFault (section 6.9.1)."""
        if self._window + increment > WINDOW_MAX:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "the connection's window is too large")
        self._window += increment

    def serve_kept_back(self) -> list[int]:
        """Send what there is room for; the ids of streams that have nothing unsent any more."""
        drained = []
        turns = deque(self._kept_back.values())
        while turns:
            stream = turns.popleft()
            if stream.unsent and self._send_piece(stream):
                turns.append(stream)
            if not stream.unsent:
                del self._kept_back[stream.id]
                drained.append(stream.id)
        return drained

    def forget(self, stream: Stream) -> None:
        """A stream was reset: what it had not sent is not sent."""
        self._kept_back.pop(stream.id, None)

    def _send_piece(self, stream: Stream) -> bool:
        """One frame of what is unsent; whether more may follow at once."""
        piece = stream.unsent[0]
        # A stream's window may be negative (section 6.9.2), and what is empty needs no room.
        size = max(0, min(len(piece), stream.send_window, self._window, self.frame_bytes_max))
        if size == 0 < len(piece):
            return False
        if size == len(piece):
            stream.unsent.popleft()
        else:
            stream.unsent[0] = piece[size:]
        stream.send_window -= size
        self._window -= size
        self._patience.restore()
        end = stream.ends_after_unsent and not stream.unsent
        self._frames.append(frames.encode_frame(_DATA, end, stream.id, bytes(piece[:size])))
        if end:
            self._streams.step(stream, Step.END_SENT)
        return bool(stream.unsent)
