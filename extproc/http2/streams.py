"""Streams: their states, and which ids are idle, live or closed (RFC 9113 section 5.1).

A stream is in the table from its HEADERS until both its halves have ended. Of closed ones only this is kept: which of them we
have reset, since then frames that crossed our RST_STREAM are no fault of the peer's.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final

from extproc.http2.errors import Code, ConnectionFault, StreamFault
from extproc.http2.limits import WINDOW_MAX

RESETS_REMEMBERED: Final = 1_000
"""Ids below the oldest of them get the benefit of the doubt."""


class Role(Enum):
    """Which end we are. The value is the parity of the ids of streams that this end opens (section 5.1.1)."""

    CLIENT = 1
    SERVER = 0


class State(StrEnum):
    """States in which a stream is in the table; one that is not is idle or closed."""

    OPEN = "open"
    HALF_CLOSED_LOCAL = "half-closed (local)"
    HALF_CLOSED_REMOTE = "half-closed (remote)"
    CLOSED = "closed"


class Step(Enum):
    """What changes a state; a reset, from whichever side, always closes."""

    END_SENT = auto()
    END_RECEIVED = auto()


NEXT_STATE: Final = {
    (State.OPEN, Step.END_SENT): State.HALF_CLOSED_LOCAL,
    (State.OPEN, Step.END_RECEIVED): State.HALF_CLOSED_REMOTE,
    (State.HALF_CLOSED_LOCAL, Step.END_RECEIVED): State.CLOSED,
    (State.HALF_CLOSED_REMOTE, Step.END_SENT): State.CLOSED,
}


class ReceiveWindow:
    """Room that the peer was given, and what it is owed back. Given back in halves, so that updates stay rare."""

    __slots__ = ("_left", "_owed", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._owed = 0

    def take(self, size: int) -> bool:
        """Bytes arrived; whether there was room for them."""
        self._left -= size
        return self._left >= 0

    def give_back(self, size: int) -> int:
        """Bytes were used up; the increment to send now, 0 for none."""
        self._owed += size
        if self._owed * 2 < self._size:
            return 0
        increment, self._owed = self._owed, 0
        self._left += increment
        return increment


@dataclass(slots=True, kw_only=True)
class Stream:
    """A live stream."""

    id: int
    state: State
    send_window: int
    receive_window: ReceiveWindow
    head_received: bool = False
    body_bytes_left: int | None = None
    """Of the body that is being received, where its head promised a length."""
    unsent: deque[memoryview] = field(default_factory=deque)
    ends_after_unsent: bool = False

    def widen(self, increment: int) -> None:
        """The peer gave room. Raises StreamFault (section 6.9.1)."""
        if self.send_window + increment > WINDOW_MAX:
            raise StreamFault(self.id, Code.FLOW_CONTROL_ERROR, "a stream's window is too large")
        self.send_window += increment

    def count_body(self, size: int, *, ended: bool) -> None:
        """Bytes of a body of promised length came. Raises StreamFault where they break the promise (section 8.1.1)."""
        assert self.body_bytes_left is not None
        self.body_bytes_left -= size
        if self.body_bytes_left < 0 or (ended and self.body_bytes_left):
            raise StreamFault(self.id, Code.PROTOCOL_ERROR, "the body is not as long as content-length says")


class StreamTable:
    """The live streams of a connection, and what is known of the others."""

    def __init__(self, role: Role) -> None:
        self.live: dict[int, Stream] = {}
        self.last_peer_id = 0
        self._role = role
        self._last_own_id = role.value - 2
        self._resets: dict[int, None] = {}
        self._resets_forgotten_up_to = 0

    def next_own_id(self) -> int:
        """The id of the next stream that we open."""
        self._last_own_id += 2
        return self._last_own_id

    def is_own(self, stream_id: int) -> bool:
        """Whether such a stream would be opened by us."""
        return stream_id % 2 == self._role.value

    def is_idle(self, stream_id: int) -> bool:
        """Whether nobody has opened the stream yet."""
        return stream_id > (self._last_own_id if self.is_own(stream_id) else self.last_peer_id)

    def step(self, stream: Stream, step: Step) -> None:
        """Move a stream on; a closed one leaves the table."""
        stream.state = NEXT_STATE[stream.state, step]
        if stream.state is State.CLOSED:
            del self.live[stream.id]

    def drop(self, stream: Stream) -> None:
        """A stream was reset."""
        stream.state = State.CLOSED
        stream.unsent.clear()
        del self.live[stream.id]

    def remember_reset(self, stream_id: int) -> None:
        """We have reset, or refused, a stream."""
        self._resets[stream_id] = None
        if len(self._resets) > RESETS_REMEMBERED:
            oldest = next(iter(self._resets))
            del self._resets[oldest]
            self._resets_forgotten_up_to = max(self._resets_forgotten_up_to, oldest)

    def judge_stray(self, stream_id: int, what: str) -> None:
        """A frame came for a stream that is not live. Returns where it may have crossed a reset of ours; else raises
        ConnectionFault."""
        if self.is_idle(stream_id):
            raise ConnectionFault(Code.PROTOCOL_ERROR, f"{what} on idle stream {stream_id}")
        if stream_id not in self._resets and stream_id > self._resets_forgotten_up_to:
            raise ConnectionFault(Code.STREAM_CLOSED, f"{what} on closed stream {stream_id}")
