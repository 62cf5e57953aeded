"""One HTTP/1.1 connection with one request, which keeps every byte with the time at which it came.

Times are CLOCK_MONOTONIC seconds, which all processes of one machine share; ``wall_offset_s`` leads from there to the wall clock.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, Self
from urllib.parse import urlsplit

from extproc.faults.evidence import ClientEvidence, Peer, Piece

READ_BYTES: Final = 1 << 16
CONNECT_TRIES: Final = 100
CONNECT_PAUSE_S: Final = 0.05
_LINGER_ZERO: Final = struct.pack("ii", 1, 0)
"""``struct linger {on, 0 s}``: a close sends RST (socket(7))."""


class Client:
    """A request that was sent. Its evidence grows until the connection has ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._pieces: list[Piece] = []
        self._sent_at = time.monotonic()
        self._left_at: float | None = None
        self._closed_at: float | None = None
        self._peer: Peer | None = None
        self._changed = asyncio.Event()
        self._pump = asyncio.create_task(self._keep_reading(reader))

    @classmethod
    async def send(cls, url: str, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> Self:
        """Connect and send a POST. Raises OSError."""
        address = urlsplit(url)
        assert address.hostname is not None
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        lines = [f"POST {path} HTTP/1.1", f"host: {address.netloc}", f"content-length: {len(body)}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        try:
            await writer.drain()
        except OSError:
            writer.close()
            raise
        return cls(reader, writer)

    @property
    def received(self) -> bytes:
        return b"".join(piece.data for piece in self._pieces)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can come."""
        return self._closed_at is not None or self._left_at is not None

    async def end(self) -> None:
        """Wait until the connection is over."""
        await asyncio.wait({self._pump})

    async def until(self, has_come: Callable[[bytes], bool]) -> bool:
        """Wait for bytes; whether they came before the connection ended."""
        while not has_come(self.received):
            if self.is_over:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    def leave(self, *, reset: bool = False) -> None:
        """Close the connection, by FIN or RST; where the other side has, only our end of it is left to close."""
        if self.is_over:
            self._writer.close()
            return
        self._left_at = time.monotonic()
        self._pump.cancel()
        if reset:
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def close(self) -> ClientEvidence:
        """Let go of the connection, and hand out what was seen. A client that has its answer does not count as one that left."""
        self._pump.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pump
        self._writer.close()
        now = time.monotonic()  # first: a stall before the next clock is read may date a delivery too late, never too early
        return ClientEvidence(
            sent_at=self._sent_at,
            pieces=tuple(self._pieces),
            left_at=self._left_at,
            closed_at=self._closed_at,
            peer=self._peer,
            wall_offset_s=time.time() - now,
        )

    async def _keep_reading(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                self._pieces.append(Piece(at=time.monotonic(), data=data))
                self._changed.set()
            self._peer = Peer.FIN
        except OSError:
            self._peer = Peer.RESET
        self._closed_at = time.monotonic()
        self._changed.set()
