"""The reference transport: grpc.aio, one call a stream."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NoReturn

import grpc
import grpc.aio

from extproc.processor.protobuf import ProcessingRequest, ProcessingResponse, method_handlers
from extproc.processor.service import Service

MESSAGE_BYTES_MAX: Final = 16 << 20
"""Envoy's body messages follow its buffer limit (1 MiB by default); answers are bounded by what the session may hold."""

OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # Envoy's connection_keepalive pings a waiting stream; gRPC would answer GOAWAY too_many_pings (FACTS C5).
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)


class GrpcStream:
    """ports.Stream over a grpc.aio call. ``write`` is the call's own method: one coroutine fewer on the per-delta path."""

    write: Callable[[ProcessingResponse | bytes], Awaitable[None]]
    write_now = None

    def __init__(self, call: grpc.aio.ServicerContext) -> None:
        self._call = call
        self.write = call.write

    @property
    def initial_metadata(self) -> Sequence[tuple[str, str]]:
        metadata = self._call.invocation_metadata() or ()
        return [(key, value if isinstance(value, str) else value.decode("latin-1")) for key, value in metadata]

    async def read(self) -> ProcessingRequest | None:
        message = await self._call.read()
        return message if isinstance(message, ProcessingRequest) else None

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
