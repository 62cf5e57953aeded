"""A tool with side effects that a test controls: it keeps its own log of what it has carried out."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from extproc.contract import headers as names


@dataclass(frozen=True, slots=True)
class Execution:
    """One action, as the tool has carried it out."""

    method: str
    path: str
    body: str
    headers: dict[str, str]

    @property
    def key(self) -> str:
        """Whose action it was."""
        return f"{self.headers.get(names.REQUEST_ID)}:{self.headers.get(names.TOOL_CALL)}"


class ScriptedTool:
    """Acts at once and answers 201 with the action's number, when the test lets it."""

    def __init__(self) -> None:
        self.log: list[Execution] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.acted = asyncio.Event()
        self.breaks_off = False
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def executions(self, request_id: str) -> list[Execution]:
        """What was done for one logical request."""
        return [execution for execution in self.log if execution.headers.get(names.REQUEST_ID) == request_id]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.may_answer.set()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if value}
        body = (await reader.readexactly(int(headers.get("content-length", "0")))).decode()
        self.log.append(Execution(method, path, body, headers))
        answer = json.dumps({"action": len(self.log)}).encode()
        self.acted.set()
        await self.may_answer.wait()
        length = len(answer) + (10 if self.breaks_off else 0)
        head_bytes = f"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n".encode()
        writer.write(head_bytes + answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def scripted_tool() -> AsyncIterator[ScriptedTool]:
    """A running tool."""
    tool = ScriptedTool()
    await tool.start()
    try:
        yield tool
    finally:
        await tool.stop()
