"""An egress listener that does what a test says, in HTTP/1.1 or, through h2, in HTTP/2."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from extproc.replicas.attempt_client import AttemptClient, ResponseHead
from extproc.replicas.http1_attempt_client import Http1AttemptClient
from extproc.replicas.http2_attempt_client import Http2AttemptClient


@dataclass
class Asked:
    """One request as the egress got it, and the ways to answer it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: Any
    stream_id: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client broke the exchange off."""

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def head(self, status: int = 200, *headers: tuple[str, str], end: bool = False) -> None:
        self.connection.head(self, status, headers, end)

    def send(self, data: bytes) -> None:
        self.connection.send(self, data)

    def end(self) -> None:
        self.connection.end(self)

    def break_off(self) -> None:
        """As Envoy does when a replica dies in the middle of an answer."""
        self.connection.break_off(self)

    def lose_connection(self) -> None:
        """As when Envoy dies."""
        self.connection.transport.abort()


class Http1Egress(asyncio.Protocol):
    """Enough HTTP/1.1 for one exchange a connection."""

    def __init__(self, egress: "ScriptedEgress") -> None:
        self.egress = egress
        self.received = b""
        self.asked: Asked | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.egress.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if not blank or self.asked is not None:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
        if len(body) == int(dict(headers)["content-length"]):
            method, path, _ = first.split(" ")
            self.asked = Asked(method, path, headers, body, self)
            self.egress.asked.put_nowait(self.asked)

    def connection_lost(self, error: Exception | None) -> None:
        if self.asked is not None:
            self.asked.left.set()

    def head(self, asked: Asked, status: int, headers: Any, end: bool) -> None:
        framing = "content-length: 0" if end else "transfer-encoding: chunked"
        lines = [f"HTTP/1.1 {status} X", framing, *(f"{name}: {value}" for name, value in headers)]
        self.transport.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def send(self, asked: Asked, data: bytes) -> None:
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self, asked: Asked) -> None:
        self.transport.write(b"0\r\n\r\n")

    def break_off(self, asked: Asked) -> None:
        self.transport.close()


class Http2Egress(asyncio.Protocol):
    """h2, with every exchange a stream."""

    def __init__(self, egress: "ScriptedEgress") -> None:
        self.egress = egress
        self.exchanges: dict[int, Asked] = {}
        self.protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin-1"))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.egress.connections.append(self)
        self.protocol.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.protocol.receive_data(data):
            match event:
                case h2.events.RequestReceived():
                    fields = [(name, value) for name, value in event.headers]
                    said = dict(fields)
                    headers = [(name, value) for name, value in fields if not name.startswith(":")]
                    headers.append(("host", said[":authority"]))
                    self.exchanges[event.stream_id] = Asked(said[":method"], said[":path"], headers, b"", self, event.stream_id)
                case h2.events.DataReceived():
                    self.exchanges[event.stream_id].body += event.data
                    self.protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded():
                    self.egress.asked.put_nowait(self.exchanges[event.stream_id])
                case h2.events.StreamReset():
                    self.exchanges[event.stream_id].left.set()
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        for asked in self.exchanges.values():
            asked.left.set()

    def head(self, asked: Asked, status: int, headers: Any, end: bool) -> None:
        self.protocol.send_headers(asked.stream_id, [(":status", str(status)), *headers], end_stream=end)
        self.flush()

    def send(self, asked: Asked, data: bytes) -> None:
        self.protocol.send_data(asked.stream_id, data)
        self.flush()

    def end(self, asked: Asked) -> None:
        self.protocol.end_stream(asked.stream_id)
        self.flush()

    def break_off(self, asked: Asked) -> None:
        self.protocol.reset_stream(asked.stream_id, 2)
        self.flush()

    def flush(self) -> None:
        self.transport.write(self.protocol.data_to_send())


PROTOCOLS: dict[str, tuple[type, type]] = {"h1": (Http1Egress, Http1AttemptClient), "h2": (Http2Egress, Http2AttemptClient)}


@dataclass
class ScriptedEgress:
    socket: str
    protocol: str
    client: AttemptClient
    asked: asyncio.Queue[Asked] = field(default_factory=asyncio.Queue)
    connections: list[Any] = field(default_factory=list)


@asynccontextmanager
async def scripted_egress(directory: Path, protocol: str) -> AsyncIterator[ScriptedEgress]:
    """A listener and a client for it."""
    server_class, client_class = PROTOCOLS[protocol]
    egress = ScriptedEgress(str(directory / "egress.sock"), protocol, client_class(str(directory / "egress.sock")))
    server = await asyncio.get_running_loop().create_unix_server(lambda: server_class(egress), egress.socket)
    try:
        yield egress
    finally:
        server.close()
        for connection in egress.connections:
            connection.transport.abort()
        await asyncio.sleep(0)


class Listener:
    """Keeps what an attempt's connection tells."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.changed = asyncio.Event()

    def response_started(self, head: ResponseHead) -> None:
        self._tell(head)

    def body_received(self, data: bytes) -> None:
        self._tell(data)

    def attempt_ended(self, broken: str | None) -> None:
        self._tell(("ended", broken))

    def _tell(self, what: Any) -> None:
        self.told.append(what)
        self.changed.set()

    @property
    def body(self) -> bytes:
        return b"".join(each for each in self.told if isinstance(each, bytes))

    @property
    def ended(self) -> bool:
        ends = [each for each in self.told if isinstance(each, tuple)]
        assert len(ends) <= 1
        assert not ends or ends[0] is self.told[-1], "nothing after the end"
        return bool(ends)

    async def until_ended(self) -> str | None:
        while not self.ended:
            await self.changed.wait()
            self.changed.clear()
        broken: str | None = self.told[-1][1]
        return broken

    async def until_body(self, size: int) -> bytes:
        while len(self.body) < size:
            await self.changed.wait()
            self.changed.clear()
        return self.body
