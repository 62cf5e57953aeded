"""What the two receiving halves of a connection and its owner's side share."""

from extproc.http2 import frames
from extproc.http2.errors import Code, StreamFault
from extproc.http2.events import Drained, Event, StreamBroken
from extproc.http2.limits import Limits, Patience
from extproc.http2.outbox import Outbox
from extproc.http2.settings import PeerSettings
from extproc.http2.streams import Role, Stream, StreamTable


class Core:
    """The state of one connection, and the few moves that more than one part makes."""

    def __init__(self, role: Role, limits: Limits) -> None:
        self.role = role
        self.limits = limits
        self.peer = PeerSettings()
        self.patience = Patience(limits.idle_frames_max)
        self.streams = StreamTable(role)
        self.outbox = Outbox(self.streams, self.patience, limits.replies_max)
        self.events: list[Event] = []
        """Of the call of ``receive`` that is going on."""
        self.occupied: set[int] = set()
        """Streams of the peer's for which work of ours is going on; those that have ended count as well."""
        self.takes_streams = True
        self.peer_takes_streams = True

    def drop(self, stream: Stream) -> None:
        """A stream was reset, by whichever side: nothing of it is sent any more."""
        self.outbox.forget(stream)
        self.streams.drop(stream)

    def reset(self, stream: Stream, code: int) -> None:
        """End a stream at once."""
        self.drop(stream)
        self.streams.remember_reset(stream.id)
        self.outbox.put(frames.encode_reset(stream.id, code))

    def serve_kept_back(self) -> None:
        """There may be room for what was kept back."""
        self.events += [Drained(stream_id) for stream_id in self.outbox.serve_kept_back()]

    def refuse(self, fault: StreamFault) -> None:
        """End the stream that a fault concerns. Its owner hears of it, unless the fault was in the head that would have
        opened it. Raises ConnectionFault where the peer makes one fault after the other."""
        stream = self.streams.live.get(fault.stream_id)
        if stream is not None:
            self.drop(stream)
        self.streams.remember_reset(fault.stream_id)
        self.outbox.put_reply(frames.encode_reset(fault.stream_id, fault.code))
        if stream is not None and (stream.head_received or self.streams.is_own(stream.id)):
            self.events.append(StreamBroken(fault.stream_id, fault.code, str(fault)))
        elif fault.code is not Code.REFUSED_STREAM:
            self.patience.try_with(str(fault))
