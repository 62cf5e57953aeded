"""Replicas as child processes, and a client that shows exactly how a connection ended."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import pytest
import pytest_asyncio

from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings

CHAT = {"messages": [{"role": "user", "content": "two words"}], "stream": True}


class End(StrEnum):
    CLEAN = "clean"
    CUT = "cut"
    RESET = "reset"


@dataclass
class Exchange:
    """One request on its own connection: what has come back so far."""

    connection: socket.socket
    received: bytes = b""
    is_open: bool = True
    end: End | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> int:
        return int(self.received.split(b" ", 2)[1])

    @property
    def head(self) -> bytes:
        return self.received.partition(b"\r\n\r\n")[0].lower()

    @property
    def body(self) -> bytes:
        payload = self.received.partition(b"\r\n\r\n")[2]
        if b"transfer-encoding: chunked" not in self.head:
            return payload
        body = b""
        while payload:
            size, _, rest = payload.partition(b"\r\n")
            body, payload = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
            if size == b"0":
                break
        return body

    @property
    def text(self) -> str:
        """The text of a chat stream."""
        events = [line[6:] for line in self.body.split(b"\n\n") if line.startswith(b"data: {")]
        choices = [choice for event in events for choice in json.loads(event).get("choices", [])]
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    async def read_until(self, mark: bytes) -> None:
        while mark not in self.received:
            assert await self._read(), f"ended before {mark!r}: {self.received!r}"

    async def read_to_end(self) -> "Exchange":
        while not self._is_whole() and await self._read():
            pass
        self.end = self.end or (End.CLEAN if self._is_whole() else End.CUT)
        self.connection.close()
        return self

    def _is_whole(self) -> bool:
        if b"content-length: " in self.head:
            return len(self.body) >= int(self.head.split(b"content-length: ")[1].split(b"\r\n")[0])
        return b"\r\n\r\n" in self.received and self.received.endswith(b"\r\n0\r\n\r\n")

    async def _read(self) -> bool:
        try:
            data = await asyncio.get_running_loop().sock_recv(self.connection, 65536)
        except ConnectionResetError:
            self.end = End.RESET
            return False
        self.received += data
        return data != b""

    def leave(self) -> None:
        self.connection.close()


Send = Callable[..., Awaitable[Exchange]]


@pytest.fixture
async def send() -> AsyncIterator[Send]:
    """``await send(replica, body, path=…, headers=…)``: send a request, read nothing."""
    opened: list[socket.socket] = []

    async def send_one(
        replica: ReplicaProcess,
        body: dict | bytes = CHAT,
        path: str = "/v1/chat/completions",
        headers: dict[str, str] | None = None,
        method: str = "POST",
    ) -> Exchange:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = {"host": replica.address, "content-length": str(len(data))} | (headers or {})
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        connection = socket.socket()
        opened.append(connection)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, ("127.0.0.1", replica.port))
        await loop.sock_sendall(connection, "\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        return Exchange(connection)

    yield send_one
    for connection in opened:
        connection.close()


@pytest.fixture
def get(send: Send) -> Callable[..., Awaitable[Exchange]]:
    """``await get(replica, path)``: a whole answer."""

    async def get_one(replica: ReplicaProcess, path: str) -> Exchange:
        return await (await send(replica, b"", path, method="GET")).read_to_end()

    return get_one


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_replica() -> AsyncIterator[ReplicaProcess]:
    async with start_replica(Settings(name="r1", tokens=5, token_interval_ms=1, prefill_ms=2)) as replica:
        yield replica


@pytest.fixture
async def replica(shared_replica: ReplicaProcess) -> AsyncIterator[ReplicaProcess]:
    """A replica for tests that leave it alive."""
    await shared_replica.reset()
    yield shared_replica
    await shared_replica.reset()


@pytest.fixture
def own_replica() -> Callable[..., object]:
    """``async with own_replica(setting=…) as replica``: one for a test that ends it or needs it set up differently."""

    @asynccontextmanager
    async def start(**settings: object) -> AsyncIterator[ReplicaProcess]:
        async with start_replica(Settings(**({"tokens": 5, "token_interval_ms": 1, "prefill_ms": 2} | settings))) as started:
            yield started

    return start


@pytest.fixture
def eventually() -> Callable[..., Awaitable[object]]:
    """``await eventually(read, is_right)``: read again and again until it is right; the test's timeout bounds it."""

    async def wait(read: Callable[[], Awaitable[object]], is_right: Callable[[object], bool]) -> object:
        while not is_right(value := await read()):
            await asyncio.sleep(0.005)
        return value

    return wait
