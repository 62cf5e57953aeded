"""Replicas in a test's own hands: they send the bytes that they are given, when they are given them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from extproc.contract import headers as names
from tests.real_envoy.wire import TEST_MARK, Head, encode_chunk, encode_head, read_body, reset


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
