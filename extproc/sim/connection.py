"""The TCP connection under a request, for faults that HTTP has no word for.

ASGI shows an app no connection, on purpose. Its place for what one server can do beyond the specification is the scope's
``extensions``, and uvicorn builds the scope in one method of its protocol class, so a subclass puts the transport there.
Ruled out: raising from the app (uvicorn then closes, but can't reset, and logs a traceback for each planned fault); finding the
socket by the client's port (a race, and another file descriptor on the same connection, whose linger option would be lost).
"""

import asyncio
import socket
import struct
from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

EXTENSION: Final = "deltafence.sim"
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)
"""``struct linger {on, 0 s}``: a close sends RST and drops what is unsent (socket(7))."""


class ReplicaProtocol(HttpToolsProtocol):
    """vLLM's HTTP protocol class, with the transport in the scope."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: {"transport": self.transport}}


class Connection:
    """Acts on the connection of one request. After ``reset``, ``close`` or ``malformed``, uvicorn reports a disconnect."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    async def flush(self) -> None:
        """Wait until all that was sent is in the kernel: uvloop writes at the end of a loop iteration, not at once."""
        await asyncio.sleep(0)
        while self._transport.get_write_buffer_size() > 0:  # noqa: ASYNC110  (a transport has no event for it)
            await asyncio.sleep(0.001)

    def close(self) -> None:
        self._transport.close()

    def reset(self) -> None:
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._transport.abort()

    def malformed(self) -> None:
        """Neither a status line nor a chunk size."""
        self._transport.write(b"\x00<this is not HTTP>\r\n\r\n")
        self._transport.close()


def connection_of(scope: Scope) -> Connection:
    """Raises KeyError where the app does not run on ``ReplicaProtocol``."""
    return Connection(scope["extensions"][EXTENSION]["transport"])
