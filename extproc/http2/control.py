"""Frames about the connection itself: SETTINGS, PING, GOAWAY, WINDOW_UPDATE, PRIORITY (RFC 9113 sections 6.3 to 6.9)."""

from typing import Final

from extproc.http2 import frames
from extproc.http2.core import Core
from extproc.http2.errors import Code, ConnectionFault, StreamFault, code_name
from extproc.http2.events import GoingAway, StreamBroken
from extproc.http2.frames import Kind
from extproc.http2.limits import WINDOW_DEFAULT
from extproc.http2.settings import Setting, decode_settings, encode_settings
from extproc.http2.streams import Role

DEBUG_BYTES_MAX: Final = 256
"""Of what a GOAWAY frame says in words, either way."""
_SHUTDOWN_PING: Final = b"shutdown"


class Control:
    """Receives what concerns the connection. Every ``receive_*`` may raise ConnectionFault or StreamFault."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._introduced = False
        """Whether the peer's first SETTINGS are here."""

    def introduce(self) -> None:
        """Say what we allow; the first bytes of this end (section 3.4)."""
        core = self._core
        limits = core.limits
        parameters = [
            (Setting.INITIAL_WINDOW_SIZE, limits.stream_window),
            (Setting.MAX_HEADER_LIST_SIZE, limits.header_bytes_max),
        ]
        if core.role is Role.SERVER:
            parameters.append((Setting.MAX_CONCURRENT_STREAMS, limits.streams_max))
        else:
            parameters.append((Setting.ENABLE_PUSH, 0))
            core.outbox.put(frames.PREFACE)
        core.outbox.put(frames.encode_frame(Kind.SETTINGS, 0, 0, encode_settings(parameters)))
        if limits.connection_window > WINDOW_DEFAULT:
            core.outbox.put(frames.encode_window_update(0, limits.connection_window - WINDOW_DEFAULT))

    def shut_down(self) -> None:
        """Take no more streams. The peer is told first, and streams that crossed the news are still served (section 6.8)."""
        self._core.outbox.put(frames.encode_go_away(frames.STREAM_ID_MAX, Code.NO_ERROR))
        self._core.outbox.put(frames.encode_frame(Kind.PING, 0, 0, _SHUTDOWN_PING))

    def break_off(self, fault: ConnectionFault) -> None:
        """Say why the connection ends."""
        debug = str(fault).encode("latin-1", "replace")[:DEBUG_BYTES_MAX]
        self._core.outbox.put(frames.encode_go_away(self._core.streams.last_peer_id, fault.code, debug))

    def receive_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        core = self._core
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            self._receive_acknowledgement(payload)
            return
        self._introduced = True
        window = core.peer.initial_window
        for parameter, value in decode_settings(payload):
            core.peer.apply(parameter, value, from_server=core.role is Role.CLIENT)
        core.outbox.frame_bytes_max = core.peer.frame_bytes_max
        core.outbox.put_reply(frames.encode_frame(Kind.SETTINGS, frames.ACK, 0))
        self._widen_streams(core.peer.initial_window - window)

    def _receive_acknowledgement(self, payload: bytes) -> None:
        if payload:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a SETTINGS acknowledgement that says something")
        if not self._introduced:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "an acknowledgement before SETTINGS")
        self._core.patience.try_with("a SETTINGS acknowledgement")

    def _widen_streams(self, change: int) -> None:
        """The initial window changed, and with it every window that counts from it; one may become negative (section 6.9.2)."""
        try:
            for stream in self._core.streams.live.values():
                stream.widen(change)
        except StreamFault as fault:
            raise ConnectionFault(fault.code, "SETTINGS_INITIAL_WINDOW_SIZE makes a window too large") from fault
        if change > 0:
            self._core.serve_kept_back()

    def receive_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != len(_SHUTDOWN_PING):
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a PING frame of {len(payload)} bytes")
        if not flags & frames.ACK:
            self._core.outbox.put_reply(frames.encode_frame(Kind.PING, frames.ACK, 0, payload))
        elif payload == _SHUTDOWN_PING and self._core.takes_streams:
            self._core.takes_streams = False
            self._core.outbox.put(frames.encode_go_away(self._core.streams.last_peer_id, Code.NO_ERROR))
        else:
            self._core.patience.try_with("a PING acknowledgement")

    def receive_go_away(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        last_stream_id, code, debug = frames.decode_go_away(payload)
        self._core.patience.try_with("GOAWAY")
        self._core.peer_takes_streams = False
        reason = f"{code_name(code)} {debug[:DEBUG_BYTES_MAX].decode('latin-1')}".strip()
        for stream in [
            one for one in self._core.streams.live.values() if self._core.streams.is_own(one.id) and one.id > last_stream_id
        ]:
            self._core.drop(stream)
            self._core.streams.remember_reset(stream.id)
            self._core.events.append(StreamBroken(stream.id, Code.REFUSED_STREAM, f"the peer is going away ({reason})"))
        self._core.events.append(GoingAway(code, reason))

    def receive_push(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFault(Code.PROTOCOL_ERROR, "PUSH_PROMISE, which was not allowed")

    def receive_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._core.patience.try_with("PRIORITY")
        if len(payload) != 5:
            raise StreamFault(stream_id, Code.FRAME_SIZE_ERROR, f"a PRIORITY frame of {len(payload)} bytes")

    def receive_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        increment = frames.decode_number(payload, Kind.WINDOW_UPDATE) & frames.STREAM_ID_MAX
        self._core.patience.try_with("WINDOW_UPDATE")
        if stream_id == 0:
            if increment == 0:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._core.outbox.widen(increment)
        else:
            stream = self._core.streams.live.get(stream_id)
            if stream is None:
                if self._core.streams.is_idle(stream_id):
                    raise ConnectionFault(Code.PROTOCOL_ERROR, f"WINDOW_UPDATE on idle stream {stream_id}")
                return  # sent before the peer saw the stream's end (section 5.1)
            if increment == 0:
                raise StreamFault(stream_id, Code.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            stream.widen(increment)
        self._core.serve_kept_back()
