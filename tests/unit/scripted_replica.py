"""A replica on a real socket that answers each path as the test says, and keeps what it was asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.unit.decision.watched import STARTED_S

MODELS = b'{"object": "list", "data": [{"id": "m"}]}'
COMPLETION = b'{"choices": [{"text": "a"}]}'


def metrics(*, running: int = 0, waiting: int = 0, steps: int = 500, kv: float = 0.0, started: float = STARTED_S) -> bytes:
    labels = '{engine="0",model_name="m"}'
    lines = [
        f"process_start_time_seconds {started}",
        f"vllm:num_requests_running{labels} {running}",
        f"vllm:num_requests_waiting{labels} {waiting}",
        f"vllm:iteration_tokens_total_count{labels} {steps}",
        f"vllm:generation_tokens_total{labels} {steps}",
        f"vllm:kv_cache_usage_perc{labels} {kv}",
    ]
    return "\n".join(lines).encode() + b"\n"


def answer(body: bytes = b"", status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


@dataclass(slots=True)
class ScriptedReplica:
    """``pages`` holds the raw answer of each path; None is never answered. What is not there gets 404."""

    port: int = 0
    pages: dict[str, bytes | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """``GET /metrics`` and so on, in the order of arrival."""
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    open_now: dict[str, int] = field(default_factory=dict)
    open_most: dict[str, int] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    server: asyncio.Server | None = None
    connections: set[asyncio.StreamWriter] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    """Paths whose client went away before its answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, body: bytes, path: str = "/metrics", status: int = 200) -> None:
        self.pages[path] = answer(body, status)

    async def stop_listening(self) -> None:
        """From now on connections are refused.

        What was accepted just now takes some turns of the loop to become a connection, and asyncio loses it if the server is
        closed meanwhile; so accepting ends first.
        """
        assert self.server is not None
        for listener in self.server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(10):
            await asyncio.sleep(0)
        self.server.close()

    async def until_asked(self, path: str, times: int = 1) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: sum(asked.endswith(path) for asked in self.asked) >= times)

    async def until_quiet(self) -> None:
        """No connection is open."""
        async with self.changed:
            await self.changed.wait_for(lambda: not self.connections)

    async def until_left(self, path: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: path in self.left)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = ""
        self.connections.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            length = next(
                (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")), 0
            )
            self.bodies.append(await reader.readexactly(length))
            await self._count(method, path, head)
            raw = self.pages.get(path, answer(b"no such page", 404))
            if raw is None:
                await reader.read()
                await self._note_left(path)
                return
            writer.write(raw)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._note_left(path)
        finally:
            self.open_now[path] = self.open_now.get(path, 1) - 1
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.connections.discard(writer)
            async with self.changed:
                self.changed.notify_all()

    async def _count(self, method: str, path: str, head: str) -> None:
        self.open_now[path] = self.open_now.get(path, 0) + 1
        self.open_most[path] = max(self.open_most.get(path, 0), self.open_now[path])
        async with self.changed:
            self.asked.append(f"{method} {path}")
            self.heads.append(head)
            self.changed.notify_all()

    async def _note_left(self, path: str) -> None:
        async with self.changed:
            self.left.append(path)
            self.changed.notify_all()

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator["ScriptedReplica"]:
        self.server = server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            await self.stop_listening()
            for connection in self.connections:
                connection.transport.abort()
            async with self.changed:
                await self.changed.wait_for(lambda: not self.connections)
            await server.wait_closed()


def idle_replica() -> ScriptedReplica:
    """Idle, and answers everything that health asks."""
    replica = ScriptedReplica()
    replica.serve(metrics())
    replica.serve(MODELS, "/v1/models")
    replica.serve(b"", "/health")
    replica.serve(COMPLETION, "/v1/completions")
    return replica


async def fetch(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    """A plain client that trusts nothing of ours."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), body
    finally:
        writer.close()
