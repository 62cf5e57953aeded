"""Our own gRPC server over a scripted service, and a peer that says every byte."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import hpack

from extproc.processor.http2_transport import PATH, Http2Transport
from extproc.processor.ports import Stream
from extproc.processor.protobuf import HttpBody, ProcessingRequest, ProcessingResponse
from tests.unit.http2.probe import END_HEADERS, PREFACE, SETTINGS, raw

Serve = Callable[[Stream], Awaitable[None]]
CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "a"),
    (":path", PATH),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


def request(body: bytes = b"", *, end: bool = False) -> ProcessingRequest:
    return ProcessingRequest(request_body=HttpBody(body=body, end_of_stream=end))


def answer(body: bytes) -> ProcessingResponse:
    response = ProcessingResponse()
    response.streamed_immediate_response.body_response.body = body
    return response


class ScriptedService:
    """Serves what the test says, and knows how each call ended."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.running = 0
        self.ended: asyncio.Queue[str] = asyncio.Queue()

    async def process(self, stream: Stream) -> None:
        self.running += 1
        outcome = "returned"
        try:
            await self._serve(stream)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            self.running -= 1
            self.ended.put_nowait(outcome)


class Served:
    """A transport that serves a script."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "p.sock")
        self.service = ScriptedService(echo)
        self.transport = Http2Transport(self.service, self.path)  # type: ignore[arg-type]

    def script(self, serve: Serve) -> None:
        self.service._serve = serve


async def echo(stream: Stream) -> None:
    while (message := await stream.read()) is not None:
        await stream.write(answer(message.request_body.body))


class Wire:
    """A connection on which a test says every byte."""

    def __init__(self, served: Served, *first: bytes) -> None:
        self.served = served
        self.first = first or (raw(SETTINGS),)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()

    async def __aenter__(self) -> "Wire":
        self.reader, self.writer = await asyncio.open_unix_connection(self.served.path)
        self.writer.write(PREFACE + b"".join(self.first))
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.transport.abort()

    def call(self, stream_id: int, *frames: bytes, fields: list[tuple[str, str]] = CALL, flags: int = END_HEADERS) -> None:
        self.writer.write(raw(1, flags, stream_id, self.encoder.encode(fields)) + b"".join(frames))

    async def frame(self) -> tuple[int, int, int, bytes]:
        head = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    async def settled(self) -> list[tuple[int, int, int, bytes]]:
        """Everything said up to the answer to a PING."""
        self.writer.write(raw(6, 0, 0, b"settled?"))
        frames = []
        while True:
            frame = await self.frame()
            if frame[:2] == (6, 1):
                return [each for each in frames if each[2]]
            frames.append(frame)

    async def fields(self) -> dict[str, str]:
        """The next head or trailers."""
        while True:
            kind, _, _, payload = await self.frame()
            if kind == 1:
                return dict(self.decoder.decode(payload))
