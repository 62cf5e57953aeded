"""Both far ends of the wire in a test's own hands: replicas that send the bytes they are given, clients that keep what they get.

Nothing here knows what an answer should look like, and nothing waits for a time: a test goes on when something has arrived.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from extproc.contract import headers as names

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


@dataclass(eq=False)
class Attempt:
    """A request that reached a replica, and the pen for its answer."""

    replica: str
    head: Head
    body: bytes
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """The other side has closed or reset the connection."""

    @property
    def method(self) -> str:
        return self.head.first_line.split(" ")[0]

    @property
    def path(self) -> str:
        return self.head.first_line.split(" ")[1]

    @property
    def request_id(self) -> str:
        return self.head.get(names.REQUEST_ID) or ""

    @property
    def attempt_id(self) -> str:
        return self.head.get(names.ATTEMPT_ID) or ""

    async def write(self, data: bytes) -> None:
        """Any bytes, as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def begin(self, *more: tuple[str, str], status: str = "200 OK", content_type: str = "text/event-stream") -> None:
        """The head of a chunked answer."""
        headers = [("content-type", content_type), ("transfer-encoding", "chunked"), *more]
        await self.write(encode_head(f"HTTP/1.1 {status}", headers))

    async def send(self, *pieces: bytes) -> None:
        """Each piece as a chunk of its own."""
        await self.write(b"".join(map(encode_chunk, pieces)))

    async def end(self, *pieces: bytes) -> None:
        """The last pieces, and the end of the body."""
        await self.write(b"".join(map(encode_chunk, (*pieces, b""))))

    async def stream(self, *pieces: bytes) -> None:
        """A whole event stream."""
        await self.begin()
        await self.end(*pieces)

    async def answer(
        self, body: bytes, *more: tuple[str, str], status: str = "200 OK", content_type: str = "application/json"
    ) -> None:
        """A whole answer with a length."""
        headers = [("content-type", content_type), ("content-length", str(len(body))), *more]
        await self.write(encode_head(f"HTTP/1.1 {status}", headers) + body)

    def close(self) -> None:
        """FIN, whatever was still to come."""
        self.writer.close()

    def reset(self) -> None:
        reset(self.writer)


class Replica:
    """A server whose answers are written by the test; what reaches it goes to ``arrivals``."""

    def __init__(self, name: str, arrivals: asyncio.Queue[Attempt]) -> None:
        self.name = name
        self.connections: set[asyncio.StreamWriter] = set()
        self._arrivals = arrivals

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())
        self.url = f"http://{self.address}"

    async def stop(self) -> None:
        self._server.close()
        for writer in self.connections:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        attempt: Attempt | None = None
        begun = b""
        try:
            while True:
                head = Head.decode(begun + await reader.readuntil(b"\r\n\r\n"))
                is_read = "unread" not in head.all(TEST_MARK)
                attempt = Attempt(self.name, head, await read_body(head, reader) if is_read else b"", writer)
                if head.get(TEST_MARK) is None:
                    await answer_by_itself(attempt)
                else:
                    self._arrivals.put_nowait(attempt)
                if not is_read:
                    await writer.wait_closed()
                    break
                # No request comes before its predecessor's answer, so this is the next request or the end of the connection.
                if not (begun := await reader.read(1)):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if attempt is not None:
                attempt.gone.set()
            self.connections.discard(writer)
            writer.close()


async def answer_by_itself(attempt: Attempt) -> None:
    """What readiness and health checks ask of a replica that is well and has no metrics."""
    found = attempt.path in ("/v1/models", "/health", "/v1/completions")
    await attempt.answer(b'{"object":"list","data":[{"id":"m"}]}', status="200 OK" if found else "404 Not Found")


@dataclass(frozen=True)
class Answer:
    """A whole answer. ``broken``: the body had no proper end."""

    head: Head
    body: bytes
    broken: bool = False

    @property
    def status(self) -> int:
        return int(self.head.first_line.split(" ")[1])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def request_id(self) -> str:
        return self.head.get(names.REQUEST_ID) or ""

    @property
    def attempts(self) -> int:
        return int(self.head.get(names.ATTEMPTS) or 0)


class Client:
    """One HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received = bytearray()
        self.at_end = False
        self._writer = writer
        self._changed = asyncio.Event()
        self._pump = asyncio.create_task(self._keep_reading(reader))

    @classmethod
    async def connect(cls, url: str) -> Self:
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port))

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def until(self, mark: bytes) -> None:
        """Wait until ``mark`` is among the received bytes; fail where the connection ends without it."""
        async with asyncio.timeout(LIMIT_S):
            while mark not in self.received:
                assert not self.at_end, f"no {mark!r} in {bytes(self.received[-2000:])!r}"
                await self._change()

    async def until_body(self, body: bytes) -> None:
        """Wait until the answer's body, so far, is ``body``."""
        await self.until(b"\r\n\r\n")
        async with asyncio.timeout(LIMIT_S):
            while (so_far := decode_chunks(bytes(self.received).partition(b"\r\n\r\n")[2]).data) != body:
                assert body.startswith(so_far) and not self.at_end, f"{so_far[-2000:]!r}"  # noqa: PT018
                await self._change()

    async def closed(self) -> None:
        """Wait for the other side's FIN or RST."""
        async with asyncio.timeout(LIMIT_S):
            while not self.at_end:
                await self._change()

    async def answer(self) -> Answer:
        """Read one answer to its end, or to the connection's; later bytes stay."""
        await self.until(b"\r\n\r\n")
        while not (answer := self._take_answer()):
            async with asyncio.timeout(LIMIT_S):
                await self._change()
        return answer

    def stop_reading(self) -> None:
        """Let what comes pile up in the sockets."""
        self._pump.cancel()
        self._writer.transport.pause_reading()

    def half_close(self) -> None:
        self._writer.write_eof()

    def close(self) -> None:
        self._pump.cancel()
        self._writer.close()

    def reset(self) -> None:
        self._pump.cancel()
        reset(self._writer)

    def _take_answer(self) -> Answer | None:
        head_bytes, _, rest = bytes(self.received).partition(b"\r\n\r\n")
        head = Head.decode(head_bytes)
        body = decode_body(head, rest)
        if body is not None:
            self.received = self.received[len(head_bytes) + 4 + body.length :]
            return Answer(head, body.data)
        return Answer(head, decode_chunks(rest).data, broken=True) if self.at_end else None

    async def _change(self) -> None:
        self._changed.clear()
        if not self.at_end:
            await self._changed.wait()

    async def _keep_reading(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                self.received += data
                self._changed.set()
        except ConnectionError:
            pass
        finally:
            self.at_end = True
            self._changed.set()


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


@asynccontextmanager
async def scripted_replicas(arrivals: asyncio.Queue[Attempt], *replica_names: str) -> AsyncIterator[list[Replica]]:
    """Replicas that share one queue: which of them is asked first is the placement's turn, and no test's concern."""
    replicas = [Replica(name, arrivals) for name in replica_names]
    for replica in replicas:
        await replica.start()
    try:
        yield replicas
    finally:
        for replica in replicas:
            await replica.stop()
