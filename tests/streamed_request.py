"""One streamed chat request as a client sees it, while it goes on."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from extproc.app.demonstration.apis import PATHS, streamed_text
from extproc.app.demonstration.judge import Exchange
from extproc.sse.dialects import Dialect


@dataclass(slots=True)
class StreamedRequest:
    """Before its first delta nothing is known of it but that it waits."""

    answer: asyncio.Task[Exchange] = field(init=False)
    first_delta: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @classmethod
    def send(cls, session: aiohttp.ClientSession, front: str, body: bytes) -> "StreamedRequest":
        request = cls()
        request.answer = asyncio.create_task(request._read(session, front, body))
        return request

    async def until_first_delta(self) -> None:
        """Raises AssertionError where the answer ends without one."""
        delta = asyncio.create_task(self.first_delta.wait())
        await asyncio.wait({delta, self.answer}, return_when=asyncio.FIRST_COMPLETED)
        delta.cancel()
        assert self.first_delta.is_set(), self.answer

    async def leave(self) -> None:
        """Hang up, whatever has come."""
        self.answer.cancel()
        with suppress(asyncio.CancelledError):
            await self.answer

    async def _read(self, session: aiohttp.ClientSession, front: str, body: bytes) -> Exchange:
        received = bytearray()
        broken = None
        headers = {"content-type": "application/json"}
        async with session.post(front + PATHS[Dialect.CHAT], data=body, headers=headers) as answer:
            try:
                async for line in answer.content:
                    received += line
                    if line.startswith(b"data: {") and streamed_text(Dialect.CHAT, [json.loads(line[6:])]):
                        self.first_delta.set()
            except aiohttp.ClientError as error:
                broken = repr(error)
            names = {name.lower(): value for name, value in answer.headers.items()}
            return Exchange(status=answer.status, headers=names, body=bytes(received), broken=broken)
