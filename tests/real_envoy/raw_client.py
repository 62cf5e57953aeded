"""Clients in a test's own hands: they keep the bytes that they get, and leave in any manner.

Nothing here waits for a time: a test goes on when something has arrived.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from extproc.contract import headers as names
from tests.real_envoy.wire import LIMIT_S, READ_BYTES, Head, decode_body, decode_chunks, reset


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

    async def until_more(self) -> None:
        """Wait until anything has come, or the other side's FIN or RST, which is no more."""
        had = len(self.received)
        async with asyncio.timeout(LIMIT_S):
            while len(self.received) == had:
                assert not self.at_end, f"nothing after {bytes(self.received[-2000:])!r}"
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
