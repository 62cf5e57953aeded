"""A network link to one replica that can go silent without closing: what a dropped route looks like from both ends.

Bytes under way when it goes silent are kept and arrive when it heals, as TCP would deliver them; a close is held back too. New
connections are accepted and carry nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Flag, auto

READ_BYTES_MAX = 65_536


class Direction(Flag):
    """Which way bytes go."""

    TO_REPLICA = auto()
    FROM_REPLICA = auto()
    BOTH = TO_REPLICA | FROM_REPLICA


@dataclass(slots=True)
class Link:
    """Forwards ``port`` on loopback to a replica's port. One event loop."""

    replica_port: int
    """Of new connections; those that are open stay where they are."""
    port: int = 0
    delay_s: float = 0.0
    """How long everything takes, each way."""
    _open: dict[Direction, asyncio.Event] = field(init=False)
    _cut_after: bytes = b""
    _cut_direction: Direction = Direction.BOTH
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._open = {direction: asyncio.Event() for direction in Direction}
        self.heal()

    @property
    def is_cut(self) -> bool:
        """Whether it lets nothing through, one way at least."""
        return not all(event.is_set() for event in self._open.values())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self, direction: Direction = Direction.BOTH) -> None:
        """Let nothing through any more, one way or both."""
        for part in direction:
            self._open[part].clear()

    def cut_after(self, mark: bytes, direction: Direction = Direction.BOTH) -> None:
        """Go silent right behind the first event from the replica that holds ``mark``; only the next one that does."""
        self._cut_after, self._cut_direction = mark, direction

    def heal(self) -> None:
        """Let everything through again, what was kept first."""
        self._cut_after = b""
        for event in self._open.values():
            event.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either end is done with it."""
        # A task of its own, so that dropping it does not cancel asyncio's, which would be logged as a fault.
        relaying = asyncio.create_task(self._relay(reader, writer))
        self._tasks.add(relaying)
        try:
            await asyncio.wait({relaying})
        finally:
            self._tasks.discard(relaying)
            writer.close()  # a task that is cancelled before its first step runs no code of its own

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replica_writer: asyncio.StreamWriter | None = None
        try:
            await self._open[Direction.TO_REPLICA].wait()
            replica_reader, replica_writer = await asyncio.open_connection("127.0.0.1", self.replica_port)
            pumps = (
                asyncio.ensure_future(self._pump(reader, replica_writer, Direction.TO_REPLICA)),
                asyncio.ensure_future(self._pump(replica_reader, writer, Direction.FROM_REPLICA)),
            )
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # a refused replica is a closed connection to whoever asked
        finally:
            for end in (writer, replica_writer):
                if end is not None:
                    end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        while True:
            data = await reader.read(READ_BYTES_MAX)
            await asyncio.sleep(self.delay_s)
            await self._open[direction].wait()
            if not data:
                return
            before, rest = self._split(data) if direction is Direction.FROM_REPLICA else (data, b"")
            writer.write(before)
            await writer.drain()
            if self._is_cutting(before, direction):
                self.cut(self._cut_direction)
                self._cut_after = b""
                await self._open[direction].wait()
            writer.write(rest)

    def _is_cutting(self, data: bytes, direction: Direction) -> bool:
        return direction is Direction.FROM_REPLICA and bool(self._cut_after) and self._cut_after in data

    def _split(self, data: bytes) -> tuple[bytes, bytes]:
        """Where the cut falls: behind the end of the event that holds the mark."""
        at = data.find(self._cut_after) if self._cut_after else -1
        if at < 0:
            return data, b""
        end = data.find(b"\n\n", at)
        return (data, b"") if end < 0 else (data[: end + 2], data[end + 2 :])

    async def drop(self) -> None:
        """Close every connection that is open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def start_link(replica_port: int) -> AsyncIterator[Link]:
    """A link for the length of a block."""
    link = Link(replica_port)
    server = await asyncio.start_server(link.carry, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        await link.drop()
