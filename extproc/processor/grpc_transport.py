"""The reference transport: grpc.aio, one call a stream."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Final, NoReturn

import grpc
import grpc.aio

from extproc.processor.protobuf import ProcessingRequest, ProcessingResponse, method_handlers
from extproc.processor.service import Service

MESSAGE_BYTES_MAX: Final = 16 << 20
"""Envoy's body messages follow its buffer limit (1 MiB by default); answers are bounded by what the session may hold."""

PENDING_MAX: Final = 32_768
"""Above any sensible ServiceLimits.streams_max."""

LEAVE_S_MAX: Final = 0.5
"""How long a served call waits for Envoy's reset, which follows a complete answer at once. A status that gRPC sends on a call
that was reset meanwhile leaves about 100 bytes behind for ever (measured in grpcio 1.85)."""

OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # Envoy's connection_keepalive pings a waiting stream; gRPC would answer GOAWAY too_many_pings (FACTS C5).
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    # Above 1,000 calls that wait to be taken up, gRPC would refuse some at random; how many are served is the Service's to say.
    ("grpc.server.max_pending_requests", PENDING_MAX),
    ("grpc.server.max_pending_requests_hard_limit", PENDING_MAX),
)


BegunWrite = Coroutine[asyncio.Future[None], None, None]


class BegunWrites:
    """The streams of one transport with a write that was begun and not ended.

    A stream that ends its own only with its next delta holds some KiB until then, and there are thousands. So each write looks
    after two older ones, which most often were sent long since.
    """

    def __init__(self) -> None:
        self._streams: OrderedDict[GrpcStream, None] = OrderedDict()

    def add(self, stream: "GrpcStream") -> None:
        """A write of ``stream`` was begun; one that is here already keeps its place."""
        self._streams[stream] = None

    def discard(self, stream: "GrpcStream") -> None:
        """``stream`` looks after itself from now on."""
        self._streams.pop(stream, None)

    def end_older(self) -> None:
        """Look after the oldest two: twice as many as can have come since the last time, so that they stay few."""
        for _ in range(min(2, len(self._streams))):
            stream, _ = self._streams.popitem(last=False)
            if not stream.try_end():
                self.add(stream)


class GrpcStream:
    """ports.Stream over a grpc.aio call.

    A write of grpc.aio is a coroutine that starts to send in its first step and ends with the send's completion. ``write_now``
    takes the first step itself, and leaves the rest to whoever writes next: a completion that nobody waits for wakes nobody.
    gRPC takes one write of a call at a time.
    """

    def __init__(self, call: grpc.aio.ServicerContext, writes: BegunWrites) -> None:
        self._call = call
        self._writes = writes
        self._begun: tuple[BegunWrite, asyncio.Future[None]] | None = None
        """A write that was begun so, and its completion."""

    @property
    def initial_metadata(self) -> Sequence[tuple[str, str]]:
        metadata = self._call.invocation_metadata() or ()
        return [(key, value if isinstance(value, str) else value.decode("latin-1")) for key, value in metadata]

    async def read(self) -> ProcessingRequest | None:
        message = await self._call.read()
        return message if isinstance(message, ProcessingRequest) else None

    async def write(self, message: ProcessingResponse | bytes) -> None:
        """See ports.Stream. Where it is cancelled, ``release`` ends the write: gRPC keeps the message of one that never ends."""
        self._writes.discard(self)
        while not self.try_end():
            await self._completion()
        self._step(self._call.write(message))
        if self._begun is not None:
            mine = self._begun
            await self._completion()
            if self._begun is mine:
                self._step(mine[0])

    def write_now(self, data: bytes) -> bool:
        """See ports.Stream. False also where the call is over, which ``write`` says in gRPC's words."""
        self._writes.end_older()
        if not self.try_end():
            return False
        try:
            self._step(self._call.write(data))
        except (Exception, asyncio.CancelledError):
            return False
        self._writes.add(self)
        return True

    def release(self) -> None:
        """Nobody writes any more: what was begun is ended when it can be, or gRPC would keep its message for ever."""
        self._writes.discard(self)
        if not self.try_end():
            assert self._begun is not None
            self._begun[1].add_done_callback(lambda _: self.release())

    def try_end(self) -> bool:
        """End the write that was begun, if there is one and it has been sent; whether none is under way now."""
        if self._begun is None:
            return True
        writing, completion = self._begun
        if not completion.done():
            return False
        try:
            self._step(writing)
        except (Exception, asyncio.CancelledError):
            # The call is over: whoever serves it is cancelled by grpc.aio, or learns it from its next write.
            return True
        return self._begun is None

    def _step(self, writing: BegunWrite) -> None:
        """Let a write go as far as it can without waiting. Raises what the write raises."""
        self._begun = None
        try:
            completion = writing.send(None)
        except StopIteration:
            return
        # Set by ``await``, and taken back by whoever waits for the future: that is a task elsewhere, and here this.
        completion._asyncio_future_blocking = False
        self._begun = writing, completion

    async def _completion(self) -> None:
        """Wait until the write that was begun can be ended; a cancellation does not reach it."""
        assert self._begun is not None
        await asyncio.wait((self._begun[1],))

    async def abort(self, detail: str) -> NoReturn:
        # Under a call's first write, gRPC would send its metadata twice, fail, and never end the call.
        while not self.try_end():
            await self._completion()
        await self._call.abort(grpc.StatusCode.UNAVAILABLE, detail)
        raise AssertionError("abort returned")


class GrpcTransport:
    """Serves a Service on one address (``unix:/path`` or ``host:port``)."""

    def __init__(self, service: Service, address: str) -> None:
        self._service = service
        self._address = address
        self._writes = BegunWrites()
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((method_handlers(self._process),))

    async def start(self) -> None:
        """Bind and serve. Raises OSError where the address can't be bound."""
        try:
            port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise OSError(f"can't listen on {self._address}: {error}") from error
        if port == 0:
            raise OSError(f"can't listen on {self._address}")
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no new streams, let the running ones end for ``grace_s`` seconds, then cancel them."""
        await self._server.stop(grace_s)

    async def _process(self, messages: AsyncIterator[ProcessingRequest], call: grpc.aio.ServicerContext) -> None:
        stream = GrpcStream(call, self._writes)
        try:
            await self._service.process(stream)
        finally:
            stream.release()
        await asyncio.sleep(LEAVE_S_MAX)
