"""One HTTP/2 connection (prior knowledge, no TLS) in a test's own hands, for what no ordinary client sends."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events

from tests.real_envoy.wire import LIMIT_S, READ_BYTES, TEST_MARK

WINDOW = 1 << 30


@dataclass
class Stream:
    """What has come back on one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    at_end: bool = False
    reset_code: int | None = None


class H2Client:
    """Streams of one connection, by their ids."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream_window: int = WINDOW) -> None:
        self.streams: dict[int, Stream] = defaultdict(Stream)
        self.at_end = False
        self._writer = writer
        self._changed = asyncio.Event()
        self._unread: set[int] = set()
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._h2.update_settings({4: stream_window})  # SETTINGS_INITIAL_WINDOW_SIZE
        self._h2.increment_flow_control_window(WINDOW)
        self._pump = asyncio.create_task(self._keep_reading(reader))

    @classmethod
    async def connect(cls, url: str, stream_window: int = WINDOW) -> Self:
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port), stream_window)

    async def ask(
        self, body: bytes, *more: tuple[str, str], path: str = "/v1/chat/completions", trailers: tuple[tuple[str, str], ...] = ()
    ) -> int:
        """Send a request, or as much of it as is wanted; its stream's id."""
        number = self._h2.get_next_available_stream_id()
        own = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "gateway"), (TEST_MARK, "1")]
        self._h2.send_headers(number, [*own, *more])
        at = 0
        while at < len(body):
            await self._flush()
            if self.streams[number].at_end:
                return number  # answered already
            size = min(len(body) - at, self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
            if size == 0:
                await self._change()
                continue
            self._h2.send_data(number, body[at : at + size])
            at += size
        if trailers:
            self._h2.send_headers(number, trailers, end_stream=True)
        else:
            self._h2.end_stream(number)
        await self._flush()
        return number

    async def reset(self, number: int) -> None:
        """RST_STREAM with CANCEL, as clients do that lose interest."""
        self._h2.reset_stream(number, 8)
        await self._flush()

    def stop_reading(self, number: int) -> None:
        """Give one stream no more of its window; the connection's is given back all the same."""
        self._unread.add(number)

    async def until(self, number: int, mark: bytes) -> None:
        async with asyncio.timeout(LIMIT_S):
            while mark not in self.streams[number].body:
                assert not self.at_end and not self.streams[number].at_end, self.streams[number]  # noqa: PT018
                await self._change()

    async def answer(self, number: int) -> Stream:
        """One stream's answer, once it is over."""
        async with asyncio.timeout(LIMIT_S):
            while not self.streams[number].at_end:
                assert not self.at_end, f"the connection ended: {self.streams[number]}"
                await self._change()
        return self.streams[number]

    def close(self) -> None:
        self._pump.cancel()
        self._writer.close()

    async def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())
        await self._writer.drain()

    async def _change(self) -> None:
        """Wait for news. Never with another wait between this and the look that made it necessary."""
        self._changed.clear()
        if not self.at_end:
            await self._changed.wait()

    async def _keep_reading(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(READ_BYTES):
                for event in self._h2.receive_data(data):
                    self._take(event)
                await self._flush()
                self._changed.set()
        except ConnectionError:
            pass
        finally:
            self.at_end = True
            self._changed.set()

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                self.streams[event.stream_id].headers = dict(event.headers)
            case h2.events.DataReceived():
                self.streams[event.stream_id].body += event.data
                if event.stream_id not in self._unread:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.streams[event.stream_id].at_end = True
            case h2.events.StreamReset():
                self.streams[event.stream_id].at_end = True
                self.streams[event.stream_id].reset_code = int(event.error_code)
