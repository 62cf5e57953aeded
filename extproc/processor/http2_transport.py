"""The second transport: our own HTTP/2 server for ext_proc's one method, on a Unix socket.

It does what the reference transport (grpc_transport.py) does for the same Service, at a third of the cost per message. The rules
of HTTP/2 are http2/'s, and its limits too; here a stream becomes a task, and a task's end becomes a status.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from extproc.http2.connection import Connection
from extproc.http2.errors import Code
from extproc.http2.events import DataReceived, Drained, Event, HeadReceived, StreamBroken, TrailersReceived
from extproc.http2.limits import Limits
from extproc.http2.streams import Role
from extproc.links.http2_link import Http2Link
from extproc.processor import grpc_framing
from extproc.processor.grpc_framing import CallFault, Status
from extproc.processor.http2_stream import Http2Stream
from extproc.processor.protobuf import METHOD, SERVICE_NAME
from extproc.processor.service import Service

LOGGER: Final = logging.getLogger("deltafence.processor")

PATH: Final = f"/{SERVICE_NAME}/{METHOD}"
STREAMS_MAX: Final = 32_768
"""Of one connection; above any sensible ServiceLimits.streams_max, since the Service refuses in words and HTTP/2 can't."""


class Http2Transport:
    """Serves a Service on a Unix socket."""

    def __init__(self, service: Service, socket: str) -> None:
        self._service = service
        self._socket = socket
        self._server: asyncio.Server | None = None
        self._links: set[ServerLink] = set()

    async def start(self) -> None:
        """Bind and serve. Raises OSError where the socket can't be bound."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: ServerLink(self._service, self._links), self._socket)

    async def stop(self, grace_s: float) -> None:
        """Take no new streams, let the running ones end for ``grace_s`` seconds, then cancel them."""
        if self._server is None:
            return
        self._server.close()
        with suppress(FileNotFoundError):
            Path(self._socket).unlink()
        for link in self._links:
            link.shut_down()
        calls = [task for link in self._links for task in link.tasks]
        if calls:
            await asyncio.wait(calls, timeout=grace_s)
        for link in tuple(self._links):
            await link.end()


class ServerLink(Http2Link):
    """One connection of Envoy's: a task a stream."""

    def __init__(self, service: Service, links: "set[ServerLink]") -> None:
        super().__init__(Connection(Role.SERVER, Limits(streams_max=STREAMS_MAX)))
        self._service = service
        self._links = links
        self._streams: dict[int, Http2Stream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Invariant: a stream is here exactly while its task runs.
        links.add(self)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The calls that run."""
        return list(self._tasks.values())

    def shut_down(self) -> None:
        """Take no new streams."""
        self.connection.shut_down()
        self.flush_soon()

    async def end(self) -> None:
        """Cancel what still runs, then close."""
        tasks = self.tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.close()

    def take_events(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, DataReceived):
                if (stream := self._streams.get(event.stream_id)) is not None:
                    stream.take_data(event.data, ended=event.ended)
                continue
            match event:
                case HeadReceived():
                    self._open(event)
                case TrailersReceived(stream_id):
                    if (stream := self._streams.get(stream_id)) is not None:
                        stream.take_data(b"", ended=True)
                case Drained(stream_id):
                    if (stream := self._streams.get(stream_id)) is not None:
                        stream.take_room()
                case StreamBroken(stream_id):
                    # Whoever opened the call has left it.
                    if (task := self._tasks.get(stream_id)) is not None:
                        task.cancel()

    def link_lost(self, evidence: str) -> None:
        self._links.discard(self)
        if self.connection.broken is not None:
            LOGGER.warning("Envoy's connection was ended: %s", evidence)
        for task in self._tasks.values():
            task.cancel()

    def _open(self, head: HeadReceived) -> None:
        refusal = grpc_framing.refusal_of(head.fields, PATH)
        if refusal is not None:
            self.connection.send_fields(head.stream_id, refusal, end_stream=True)
            self.connection.reset_stream(head.stream_id, Code.NO_ERROR)
            self.connection.release(head.stream_id)
            return
        stream = Http2Stream(head.stream_id, head.fields, self)
        if head.ended:
            stream.take_data(b"", ended=True)
        self._streams[head.stream_id] = stream
        task = self._loop.create_task(self._service.process(stream))
        self._tasks[head.stream_id] = task
        task.add_done_callback(partial(self._close, head.stream_id))

    def _close(self, stream_id: int, task: asyncio.Task[None]) -> None:
        """A callback, since a task that is cancelled before its first step runs no code of its own."""
        stream = self._streams.pop(stream_id)
        del self._tasks[stream_id]
        stream.end(*status_of(task))
        self.connection.release(stream_id)


def status_of(task: asyncio.Task[None]) -> tuple[Status, str]:
    """How a call ends whose task is done."""
    if task.cancelled():
        return Status.UNAVAILABLE, "the gateway is shutting down"
    match task.exception():
        case None:
            return Status.OK, ""
        case CallFault() as fault:
            return fault.status, str(fault)
        case error:
            LOGGER.error("a call broke", exc_info=error)
            return Status.UNKNOWN, "see the gateway's log"
