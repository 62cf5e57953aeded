"""HTTP/1.1 as bytes, for both far ends of the wire: nothing of it repairs what it reads or writes."""

import asyncio
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

LIMIT_S = 30.0
"""Whatever takes longer is broken; nothing is measured by it."""
READ_BYTES = 1 << 18
TEST_MARK = "x-test"
"""On every request of a test's; a replica answers what comes without it (readiness, health) by itself. A second one,
``unread``, makes the replica leave the request's body where it is."""

Headers = Iterable[tuple[str, str]]


def encode_head(first_line: str, headers: Headers) -> bytes:
    return "".join([first_line, "\r\n", *(f"{name}: {value}\r\n" for name, value in headers), "\r\n"]).encode("latin-1")


def encode_chunk(data: bytes) -> bytes:
    """One HTTP chunk; of nothing: the last one."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass(frozen=True)
class Head:
    """A message's first line and its headers, names in lower case, in order."""

    first_line: str
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def decode(cls, data: bytes) -> Self:
        first_line, *lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return cls(first_line, tuple((name.strip().lower(), value.strip()) for name, _, value in pairs))

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def get(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)


async def read_body(head: Head, reader: asyncio.StreamReader) -> bytes:
    """A message's body by its framing; raises IncompleteReadError where it is cut."""
    if (head.get("transfer-encoding") or "").lower() != "chunked":
        return await reader.readexactly(int(head.get("content-length") or 0))
    body = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return bytes(body)


def reset(writer: asyncio.StreamWriter) -> None:
    """RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass(frozen=True)
class Body:
    """A body out of a connection's bytes: what it says, and how many bytes it takes there."""

    data: bytes
    length: int
    is_whole: bool


def decode_body(head: Head, rest: bytes) -> Body | None:
    """The body at the beginning of ``rest``, or None where it is not all there."""
    if head.get("transfer-encoding") == "chunked":
        body = decode_chunks(rest)
        return body if body.is_whole else None
    length = int(head.get("content-length") or 0)
    return Body(rest[:length], length, is_whole=True) if len(rest) >= length else None


def decode_chunks(rest: bytes) -> Body:
    """As many chunks as are there."""
    pieces: list[bytes] = []
    position = 0
    while (line_end := rest.find(b"\r\n", position)) >= 0:
        size = int(rest[position:line_end], 16)
        after = line_end + 2 + size + 2
        if after > len(rest):
            break
        pieces.append(rest[line_end + 2 : after - 2])
        position = after
        if size == 0:
            return Body(b"".join(pieces), position, is_whole=True)
    return Body(b"".join(pieces), position, is_whole=False)
