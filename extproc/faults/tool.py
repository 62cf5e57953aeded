"""A tool that keeps its own log of what it has carried out (R12, R18)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from extproc.contract import headers as names
from extproc.faults.evidence import ToolAction

_ANSWER: Final = (
    b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{"done": 1}'
)


@dataclass(slots=True)
class Tool:
    """Acts on every call. While ``is_dying`` it acts and breaks off before it answers, so nobody can know whether it did."""

    port: int = 0
    actions: list[ToolAction] = field(default_factory=list)
    is_dying: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One call, one action, one answer."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            await reader.readexactly(int(fields.get("content-length", "0")))
            action = ToolAction(
                at=time.monotonic(), request_id=fields.get(names.REQUEST_ID, ""), call_id=fields.get(names.TOOL_CALL, "")
            )
            self.actions.append(action)
            if not self.is_dying:
                writer.write(_ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def running_tool() -> AsyncIterator[Tool]:
    """A tool for the length of a block."""
    tool = Tool()
    server = await asyncio.start_server(tool.serve, "127.0.0.1", 0)
    tool.port = server.sockets[0].getsockname()[1]
    try:
        yield tool
    finally:
        server.close()
