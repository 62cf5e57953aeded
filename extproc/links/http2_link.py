"""An HTTP/2 connection on an asyncio transport.

Everything that one turn of the event loop produces, for however many streams, leaves in one write: the first output asks for a
flush at the end of the turn, and what follows joins it.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, cast

from extproc.http2.connection import Connection
from extproc.http2.events import Event

CLOSING_S_MAX: Final = 2.0
"""How long what is still to be sent may wait for a peer that doesn't read. It costs a socket, no more: every stream is over."""
CLOSED_BY_PEER: Final = "connection closed by the peer"


class Http2Link(asyncio.Protocol):
    """One end of one connection. Subclasses say what happens to its events and at its end.

    Whoever sends through ``connection`` calls ``flush_soon`` afterwards.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_writable = asyncio.Event()
        """Cleared while the peer doesn't read: whoever has much to write waits for it."""
        self.is_writable.set()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._is_lost = False
        self._giving_up: asyncio.TimerHandle | None = None

    def take_events(self, events: Iterable[Event]) -> None:
        """What the peer has sent. ConnectionBroken needs no answer: the link calls ``link_lost`` and closes by itself."""
        raise NotImplementedError

    def link_lost(self, evidence: str) -> None:
        """The connection carries nothing any more, and every stream that still ran is over; called once."""
        raise NotImplementedError

    @property
    def is_up(self) -> bool:
        """Whether there is a transport that is not closing."""
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        """Close once what is to be sent has been sent, or after CLOSING_S_MAX seconds if the peer doesn't read it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.connection.has_output:
            # Even if the peer doesn't read: these are the last words, and nothing will be added to them.
            transport.write(self.connection.take_output())
        transport.close()
        self._giving_up = self._loop.call_later(CLOSING_S_MAX, transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def flush_soon(self) -> None:
        """Send what the connection has, at the end of this turn of the loop."""
        if not self._flush_due and self.connection.has_output:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport by shape, not by class.
        self._transport = cast("asyncio.Transport", transport)
        self.flush_soon()

    def data_received(self, data: bytes) -> None:
        self.take_events(self.connection.receive(data))
        if self.connection.broken is not None:
            self._lose(self.connection.broken)
        else:
            self.flush_soon()

    def eof_received(self) -> bool:
        self._lose(CLOSED_BY_PEER)
        return False

    def pause_writing(self) -> None:
        self.is_writable.clear()

    def resume_writing(self) -> None:
        self.is_writable.set()
        self.flush_soon()

    def connection_lost(self, error: Exception | None) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._lose(f"connection lost ({error})" if error else CLOSED_BY_PEER)

    def _lose(self, evidence: str) -> None:
        """Nothing more can come of this connection. Its streams don't wait until the transport is rid of its bytes: a peer
        that never reads would hold them for ever."""
        if self._is_lost:
            return
        self._is_lost = True
        self.close()
        self.is_writable.set()
        self.link_lost(evidence)

    def _flush(self) -> None:
        self._flush_due = False
        if self.is_up and self.connection.has_output and self.is_writable.is_set():
            assert self._transport is not None
            self._transport.write(self.connection.take_output())
