"""One gRPC call on our own HTTP/2 server: ports.Stream, and what its connection tells it."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NoReturn

from google.protobuf.message import DecodeError

from extproc.http2.connection import Connection
from extproc.http2.errors import Code
from extproc.http2.fields import Fields
from extproc.links.http2_link import Http2Link
from extproc.processor import grpc_framing
from extproc.processor.grpc_framing import CallFault, MessageReader, Status
from extproc.processor.protobuf import ProcessingRequest, ProcessingResponse

MESSAGE_BYTES_MAX: Final = 16 << 20
"""As the reference transport: Envoy's body messages follow its buffer limit, far below."""
UNREAD_BYTES_MAX: Final = 262_144
"""Of whole messages that nobody has read yet: above it the peer gets no more room, so an upload waits for its reader."""


class Http2Stream:
    """A call. Its connection feeds it; the task that serves it reads and writes.

    Invariant: the peer is owed exactly the bytes in ``_unacknowledged``; they are given back when the messages that they made
    are read, so a message of any size comes whole and a reader that is behind holds little.
    """

    def __init__(self, stream_id: int, fields: Fields, link: Http2Link) -> None:
        self.initial_metadata: Sequence[tuple[str, str]] = grpc_framing.initial_metadata(fields)
        self._id = stream_id
        self._link = link
        self._connection: Connection = link.connection
        self._reader = MessageReader(MESSAGE_BYTES_MAX)
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._unacknowledged = 0
        self._end_received = False
        self._fault: CallFault | None = None
        self._head_sent = False
        self._arrival: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    # ports.Stream

    async def read(self) -> ProcessingRequest | None:
        """See ports.Stream. Raises CallFault for what is no message."""
        while not self._unread:
            if self._fault is not None:
                raise self._fault
            if self._end_received:
                return None
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        data = self._unread.popleft()
        self._unread_bytes -= len(data)
        if self._unacknowledged and self._unread_bytes < UNREAD_BYTES_MAX:
            self._acknowledge(self._unacknowledged)
            self._unacknowledged = 0
        return _parse(data)

    async def write(self, message: ProcessingResponse | bytes) -> None:
        """See ports.Stream. Waits while the peer gives no room, so that no more than one message of a stream is kept."""
        if not self._head_sent:
            self._head_sent = True
            self._connection.send_fields(self._id, grpc_framing.RESPONSE_HEAD, end_stream=False)
        data = message if isinstance(message, bytes) else message.SerializeToString()
        sent = self._connection.send_data(self._id, grpc_framing.encode_message(data))
        self._link.flush_soon()
        if not sent:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
            self._room = None
        if not self._link.is_writable.is_set():
            await self._link.is_writable.wait()

    def write_now(self, data: bytes) -> bool:
        """See ports.Stream."""
        if not self._head_sent or self._room is not None or not self._link.is_writable.is_set():
            return False
        if not self._connection.send_data_now(self._id, grpc_framing.encode_message(data)):
            return False
        self._link.flush_soon()
        return True

    async def abort(self, detail: str) -> NoReturn:
        """See ports.Stream."""
        raise CallFault(Status.UNAVAILABLE, detail)

    # the connection's side

    def take_data(self, data: bytes, *, ended: bool) -> None:
        """A piece of the request's side of the call."""
        try:
            for message in self._reader.feed(data):
                self._unread.append(message)
                self._unread_bytes += len(message)
            if ended and not self._reader.is_between_messages:
                raise CallFault(Status.INTERNAL, "the call ended within a message")
        except CallFault as fault:
            self._fault = fault
        self._end_received |= ended
        if self._unread_bytes < UNREAD_BYTES_MAX:
            self._acknowledge(len(data))
        else:
            self._unacknowledged += len(data)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def take_room(self) -> None:
        """What ``write`` had to keep back has been sent."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def end(self, status: Status, text: str) -> None:
        """End the call from our side; the peer needs to send no more (RFC 9113 section 8.1)."""
        if self._room is not None:
            # A message was broken off within; no status may follow half of one.
            self._connection.reset_stream(self._id, Code.INTERNAL_ERROR)
        else:
            head = () if self._head_sent else grpc_framing.RESPONSE_HEAD
            self._connection.send_fields(self._id, [*head, *grpc_framing.encode_status(status, text)], end_stream=True)
            self._connection.reset_stream(self._id, Code.NO_ERROR)
        self._link.flush_soon()

    def _acknowledge(self, size: int) -> None:
        self._connection.acknowledge(self._id, size)
        self._link.flush_soon()


def _parse(data: bytes) -> ProcessingRequest:
    try:
        return ProcessingRequest.FromString(data)
    except DecodeError as error:
        raise CallFault(Status.INTERNAL, "a message that is no ProcessingRequest") from error
