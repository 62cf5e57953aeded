"""One HTTP/1.1 request to the egress listener for one attempt, parsed as it arrives.

A connection serves one attempt and is then closed: closing it is the cancel that every server understands, and a Unix
socket to the Envoy beside us costs less to open than a pool costs to reason about.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

import httptools

EOF_GRACE_S: Final = 0.02
"""When Envoy itself dies, its egress connections and its ext_proc streams break at once. The session is cancelled within
7 ms (FACTS C12); waiting this long before blaming the replica keeps that from looking like a replica's death."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """A response's status and headers: lower-case names in order, repeated as they came, latin-1 text."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """The first value of a header, or None."""
        return next((value for key, value in self.headers if key == name), None)


class AttemptListener(Protocol):
    """Told what an attempt's connection does, in order, from the event loop. ``attempt_ended`` comes last and once."""

    def response_started(self, head: ResponseHead) -> None:
        """The response's headers are here."""

    def body_received(self, data: bytes) -> None:
        """A piece of the response's body, as large as the loop read it."""

    def attempt_ended(self, broken: str | None) -> None:
        """The response is over: whole as HTTP sees it (None), or broken, with the evidence in words."""


class AttemptConnection(asyncio.Protocol):
    """The client's half of one exchange."""

    def __init__(self, request: bytes, body: bytes, listener: AttemptListener) -> None:
        self._request = request
        self._body = body
        self._listener = listener
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._over = False

    def close(self) -> None:
        """Break the exchange off: the egress closes the replica's connection, and the listener hears nothing more."""
        self._over = True
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
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end("the replica answered with a protocol upgrade")
        except httptools.HttpParserError as error:
            self._end(f"the egress answer is not HTTP/1.1: {error}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._over:
            return
        evidence = f"connection lost ({error})" if error else "connection closed by the peer"
        where = "in the response body" if self._status else "before the response headers"
        asyncio.get_running_loop().call_later(EOF_GRACE_S, self._end, f"{evidence} {where}")

    # httptools callbacks

    def on_status(self, status: bytes) -> None:
        """Part of the parser's interface; the code is read with the headers."""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower().decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            return
        self._status = status
        if not self._over:
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
        self._over = True
        if self._transport is not None:
            self._transport.close()
        self._listener.attempt_ended(broken)


def encode_request(*, method: str, path: str, headers: Sequence[tuple[str, str]], body_length: int) -> bytes:
    """The head of an attempt's request. ``headers`` include ``host`` and no framing headers; a body length is added.

    Raises ValueError where a name or value would end its line early, which Envoy lets no client send.
    """
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), f"content-length: {body_length}"]
    if any(control in line for line in lines for control in ("\r", "\n", "\0")):
        raise ValueError("a header holds a line break")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class AttemptClient:
    """Opens attempts over the egress listener's Unix socket."""

    def __init__(self, egress_socket: str) -> None:
        self._egress_socket = egress_socket

    async def open(self, request: bytes, body: bytes, listener: AttemptListener) -> AttemptConnection:
        """Send a request; the listener hears the rest. Raises OSError where the egress itself can't be reached."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(lambda: AttemptConnection(request, body, listener), self._egress_socket)
        return connection
