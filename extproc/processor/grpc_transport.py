"""The reference transport: grpc.aio, one call a stream."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from functools import partial
from typing import Final, NoReturn

import grpc
import grpc.aio

from extproc.processor.protobuf import ProcessingRequest, ProcessingResponse, method_handlers
from extproc.processor.service import Service

MESSAGE_BYTES_MAX: Final = 16 << 20
"""Envoy's body messages follow its buffer limit (1 MiB by default); answers are bounded by what the session may hold."""

PENDING_MAX: Final = 32_768
"""Above any sensible ServiceLimits.streams_max."""

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


class GrpcStream:
    """ports.Stream over a grpc.aio call.

    A write of grpc.aio is a coroutine that starts to send in its first step and ends with the send's completion. ``write_now``
    takes the first step itself and lets the completion take the next, as a task would, without the two wake-ups of a task.
    gRPC takes one write of a call at a time.
    """

    def __init__(self, call: grpc.aio.ServicerContext) -> None:
        self._call = call
        self._completion: asyncio.Future[None] | None = None
        """What the write that was begun so waits for; None where none is under way."""

    @property
    def initial_metadata(self) -> Sequence[tuple[str, str]]:
        metadata = self._call.invocation_metadata() or ()
        return [(key, value if isinstance(value, str) else value.decode("latin-1")) for key, value in metadata]

    async def read(self) -> ProcessingRequest | None:
        message = await self._call.read()
        return message if isinstance(message, ProcessingRequest) else None

    async def write(self, message: ProcessingResponse | bytes) -> None:
        """See ports.Stream."""
        while self._completion is not None:
            await asyncio.wait((self._completion,))
        await self._call.write(message)

    def write_now(self, data: bytes) -> bool:
        """See ports.Stream. False also where the call is over, which ``write`` says in gRPC's words."""
        return self._completion is None and self._step(self._call.write(data))

    def _step(self, writing: BegunWrite, _: object = None) -> bool:
        """Let a write go as far as it can without waiting; whether it has not failed."""
        self._completion = None
        try:
            completion = writing.send(None)
        except StopIteration:
            return True
        except (Exception, asyncio.CancelledError):
            # The call is over: whoever serves it is cancelled by grpc.aio, or learns it from its next write.
            return False
        # Set by ``await``, and taken back by whoever waits for the future: that is a task elsewhere, and here this.
        completion._asyncio_future_blocking = False
        completion.add_done_callback(partial(self._step, writing))
        self._completion = completion
        return True

    async def abort(self, detail: str) -> NoReturn:
        await self._call.abort(grpc.StatusCode.UNAVAILABLE, detail)
        raise AssertionError("abort returned")


class GrpcTransport:
    """Serves a Service on one address (``unix:/path`` or ``host:port``)."""

    def __init__(self, service: Service, address: str) -> None:
        self._service = service
        self._address = address
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((method_handlers(self._process),))

    async def start(self) -> None:
        """Bind and serve. Raises OSError or RuntimeError where the address can't be bound."""
        if self._server.add_insecure_port(self._address) == 0:
            raise OSError(f"can't listen on {self._address}")
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no new streams, let the running ones end for ``grace_s`` seconds, then cancel them."""
        await self._server.stop(grace_s)

    async def _process(self, messages: AsyncIterator[ProcessingRequest], call: grpc.aio.ServicerContext) -> None:
        await self._service.process(GrpcStream(call))
