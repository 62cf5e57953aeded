"""One HTTP/2 stream to the egress listener for one attempt, over a few connections that all attempts share.

Many attempts' pieces come in one read, which saves most of what a connection an attempt costs. A replica's end resets one stream,
Envoy's takes the connection; but an Envoy that is told to stop resets streams before it goes (measured), so the first, too, is
only told after EOF_GRACE_S.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from extproc.http2.connection import Connection
from extproc.http2.errors import Code
from extproc.http2.events import DataReceived, Event, HeadReceived, StreamBroken, TrailersReceived
from extproc.http2.fields import Fields
from extproc.http2.limits import Limits
from extproc.http2.streams import Role
from extproc.links.http2_link import Http2Link
from extproc.replicas.attempt_client import EOF_GRACE_S, AttemptListener, AttemptRequest, ResponseHead

STREAMS_PER_CONNECTION: Final = 100
"""What every peer should take (RFC 9113 section 6.5.2), so that it needs no waiting for its SETTINGS."""
RESETS_PER_CONNECTION: Final = 100
"""Envoy ends a connection on which 250 streams were reset young (half of its runtime key
``overload.premature_reset_total_stream_count``). Clients that leave make us reset, so a connection gets no more streams after so
many resets; even if all that it still carries are reset, it stays below that."""

OWED_BYTES: Final = 16_384
"""Received and not yet given back, before the stream's window is asked whether the replica has to be told: a fraction of it, and
many deltas."""


class Http2Attempt:
    """attempt_client.AttemptConnection: one stream."""

    __slots__ = ("_acknowledge", "_link", "_listener", "_over", "_owed", "_paused", "_status", "stream_id")

    def __init__(self, stream_id: int, link: "AttemptLink", listener: AttemptListener) -> None:
        self.stream_id = stream_id
        self._link = link
        self._acknowledge = link.connection.acknowledge
        self._listener = listener
        self._status = 0
        self._paused = False
        self._owed = 0
        self._over = False

    def close(self) -> None:
        """See AttemptConnection."""
        if not self._over:
            self._over = True
            self._link.leave(self.stream_id)

    def pause_reading(self) -> None:
        """See AttemptConnection; what may still come is the stream's window."""
        self._paused = True

    def resume_reading(self) -> None:
        """See AttemptConnection."""
        self._paused = False
        self._give_back()
        self._link.flush_soon()

    # the link's side

    def take_head(self, fields: Fields) -> None:
        """The response's head."""
        self._status = int(fields[0][1])
        self._listener.response_started(ResponseHead(status=self._status, headers=tuple(fields[1:])))

    def take_data(self, data: bytes) -> None:
        """A piece of the response's body."""
        self._owed += len(data)
        if self._owed >= OWED_BYTES and not self._paused:
            self._give_back()
        if data:
            self._listener.body_received(data)

    def _give_back(self) -> None:
        owed, self._owed = self._owed, 0
        self._acknowledge(self.stream_id, owed)

    def end(self, broken: str | None) -> None:
        """The response is over."""
        if self._over:
            return
        self._over = True
        where = "in the response body" if self._status else "before the response headers"
        self._listener.attempt_ended(f"{broken} {where}" if broken is not None else None)


class AttemptLink(Http2Link):
    """One connection to the egress listener."""

    def __init__(self, on_idle: Callable[["AttemptLink"], None]) -> None:
        super().__init__(Connection(Role.CLIENT, Limits()))
        self._attempts: dict[int, Http2Attempt] = {}
        self._resets = 0
        self._on_idle = on_idle

    @property
    def attempts(self) -> int:
        """How many attempts run on it."""
        return len(self._attempts)

    @property
    def takes_attempts(self) -> bool:
        """Whether another attempt may start on it."""
        has_room = self.attempts < STREAMS_PER_CONNECTION and self._resets < RESETS_PER_CONNECTION
        return has_room and self.is_up and self.connection.can_open_stream

    def open(self, request: AttemptRequest, listener: AttemptListener) -> Http2Attempt:
        """Start an attempt. Raises ValueError for a header that HTTP/2 doesn't allow."""
        stream_id = self.connection.open_stream(request_fields(request), end_stream=not request.body)
        if request.body:
            self.connection.send_data(stream_id, request.body, end_stream=True)
        self.flush_soon()
        attempt = Http2Attempt(stream_id, self, listener)
        self._attempts[stream_id] = attempt
        return attempt

    def leave(self, stream_id: int) -> None:
        """Break an attempt off."""
        if self._attempts.pop(stream_id, None) is None:
            return
        self._resets += 1
        self.connection.reset_stream(stream_id, Code.CANCEL)
        self.flush_soon()
        self._retire_if_idle()

    def take_events(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, DataReceived):
                if (attempt := self._attempts.get(event.stream_id)) is not None:
                    attempt.take_data(event.data)
                if event.ended:
                    self._finish(event.stream_id)
                continue
            match event:
                case HeadReceived(stream_id, fields, ended):
                    if (attempt := self._attempts.get(stream_id)) is not None:
                        attempt.take_head(fields)
                        if ended:
                            self._finish(stream_id)
                case TrailersReceived(stream_id):
                    self._finish(stream_id)
                case StreamBroken(stream_id, _, reason):
                    self._break(stream_id, f"stream {reason}")

    def link_lost(self, evidence: str) -> None:
        for stream_id in tuple(self._attempts):
            self._break(stream_id, evidence)
        self._on_idle(self)

    def _finish(self, stream_id: int) -> None:
        attempt = self._attempts.pop(stream_id, None)
        if attempt is None:
            return
        # A response may end before its request does (RFC 9113 section 8.1).
        self.connection.reset_stream(stream_id, Code.NO_ERROR)
        attempt.end(None)
        self._retire_if_idle()

    def _break(self, stream_id: int, evidence: str) -> None:
        attempt = self._attempts.pop(stream_id, None)
        if attempt is None:
            return
        self._loop.call_later(EOF_GRACE_S, attempt.end, evidence)
        self._retire_if_idle()

    def _retire_if_idle(self) -> None:
        if not self._attempts:
            self._on_idle(self)


class Http2AttemptClient:
    """attempt_client.AttemptClient over the egress listener's Unix socket."""

    def __init__(self, egress_socket: str) -> None:
        self._egress_socket = egress_socket
        self._links: set[AttemptLink] = set()
        self._connecting = asyncio.Lock()

    async def open(self, request: AttemptRequest, listener: AttemptListener) -> Http2Attempt:
        """See AttemptClient."""
        link = self._find_link()
        while link is None:
            async with self._connecting:
                link = self._find_link() or await self._connect()
            if not link.takes_attempts:
                link = self._find_link()
        return link.open(request, listener)

    def close(self) -> None:
        """Close every connection; attempts that still run are broken."""
        for link in self._links:
            link.close()

    def _find_link(self) -> AttemptLink | None:
        """The fullest connection that takes another attempt: the fewer there are, the more one read brings."""
        return max((link for link in self._links if link.takes_attempts), key=lambda link: link.attempts, default=None)

    async def _connect(self) -> AttemptLink:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: AttemptLink(self._idle), self._egress_socket)
        self._links.add(link)
        return link

    def _idle(self, link: AttemptLink) -> None:
        """A connection carries nothing: it is closed, but for one that can carry the next attempt."""
        if link.takes_attempts and not any(other.takes_attempts for other in self._links if other is not link):
            return
        self._links.discard(link)
        link.close()


def request_fields(request: AttemptRequest) -> list[tuple[str, str]]:
    """The request's head as HTTP/2 fields. White space around a value has no meaning, and HTTP/2 forbids it."""
    return [
        (":method", request.method),
        (":scheme", "http"),
        (":authority", request.authority),
        (":path", request.path),
        *((name, value.strip(" \t")) for name, value in request.headers),
        ("content-length", str(len(request.body))),
    ]
