"""One HTTP/1.1 request to the egress listener for one attempt, parsed as it arrives.

A connection serves one attempt and is then closed: closing it is the cancel that every server understands, and a Unix
socket to the Envoy beside us costs less to open than a pool costs to reason about.
"""

import asyncio
import contextlib
import os
from typing import Final, cast

import httptools

from extproc.replicas.attempt_client import EOF_GRACE_S, AttemptListener, AttemptRequest, ResponseHead

READ_BYTES: Final = 65_536


class Http1AttemptConnection(asyncio.Protocol):
    """The client's half of one exchange; attempt_client.AttemptConnection."""

    def __init__(self, request: bytes, body: bytes, listener: AttemptListener) -> None:
        self._request = request
        self._body = body
        self._listener = listener
        # Has methods of this object, so that each holds the other: None once the exchange is over.
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._status = 0
        self._headers: list[tuple[str, str]] = []

    @property
    def _over(self) -> bool:
        return self._parser is None

    def close(self) -> None:
        """Break the exchange off: the egress closes the replica's connection, and the listener hears nothing more."""
        self._parser = None
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Let the replica wait: what it sends stays in the sockets and in Envoy's bounded buffers."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more of the response again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio.Transport by shape, not by class.
        self._transport = cast("asyncio.Transport", transport)
        if self._over:
            self._transport.abort()
            return
        self._transport.writelines((self._request, self._body))
        self._body = b""

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end("the replica answered with a protocol upgrade")
        except httptools.HttpParserError as error:
            self._end(f"the egress answer is not HTTP/1.1: {error}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._read_what_is_left()
        if self._over:
            return
        evidence = f"connection lost ({error})" if error else "connection closed by the peer"
        where = "in the response body" if self._status else "before the response headers"
        asyncio.get_running_loop().call_later(EOF_GRACE_S, self._end, f"{evidence} {where}")

    def _read_what_is_left(self) -> None:
        """A write that fails ends the transport with its last bytes unread, and they may be a whole answer: Envoy closes where a
        replica answers before it has read the request to its end (CASES EN-12). At most a socket buffer is left."""
        assert self._transport is not None
        descriptor = self._transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):  # nothing is left, or the peer's reset is
            while not self._over and (data := os.read(descriptor, READ_BYTES)):
                self.data_received(data)

    # httptools callbacks

    def on_status(self, status: bytes) -> None:
        """Part of the parser's interface; the code is read with the headers."""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower().decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            return
        self._status = status
        self._listener.response_started(ResponseHead(status=status, headers=tuple(self._headers)))

    def on_body(self, data: bytes) -> None:
        if not self._over:
            self._listener.body_received(data)

    def on_message_complete(self) -> None:
        if self._status >= 200:
            self._end(None)

    def _end(self, broken: str | None) -> None:
        if self._over:
            return
        self._parser = None
        if self._transport is not None:
            self._transport.close()
        self._listener.attempt_ended(broken)


def encode_head(request: AttemptRequest) -> bytes:
    """The request's head on the wire. Raises ValueError where a name or value would end its line early."""
    lines = [
        f"{request.method} {request.path} HTTP/1.1",
        f"host: {request.authority}",
        *(f"{name}: {value}" for name, value in request.headers),
        f"content-length: {len(request.body)}",
    ]
    if any(control in line for line in lines for control in ("\r", "\n", "\0")):
        raise ValueError("a header holds a line break")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Http1AttemptClient:
    """attempt_client.AttemptClient over the egress listener's Unix socket."""

    def __init__(self, egress_socket: str) -> None:
        self._egress_socket = egress_socket

    async def open(self, request: AttemptRequest, listener: AttemptListener) -> Http1AttemptConnection:
        """See AttemptClient."""
        head = encode_head(request)
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: Http1AttemptConnection(head, request.body, listener), self._egress_socket
        )
        return connection
