"""Which wire carries what between Envoy and a processor: the one choice of a transport and of an attempt client."""

from enum import StrEnum
from typing import Protocol

from extproc.processor.grpc_transport import GrpcTransport
from extproc.processor.http2_transport import Http2Transport
from extproc.processor.service import Service
from extproc.replicas.attempt_client import AttemptClient
from extproc.replicas.http1_attempt_client import Http1AttemptClient
from extproc.replicas.http2_attempt_client import Http2AttemptClient


class TransportKind(StrEnum):
    """Who serves Envoy's ext_proc calls."""

    GRPC = "grpc"
    """The reference: grpcio."""
    HTTP2 = "http2"
    """Our own server for the one method."""


class EgressProtocol(StrEnum):
    """How attempts reach the egress listener."""

    H1 = "h1"
    """A connection an attempt."""
    H2 = "h2"
    """A stream an attempt."""


class Transport(Protocol):
    """Serves a Service."""

    async def start(self) -> None:
        """Bind and serve. Raises OSError where the socket can't be bound."""

    async def stop(self, grace_s: float) -> None:
        """Take no new streams, let the running ones end for ``grace_s`` seconds, then cancel them."""


def make_transport(kind: TransportKind, service: Service, socket: str) -> Transport:
    """A transport on the Unix socket ``socket``; made in the loop that will run it."""
    match kind:
        case TransportKind.GRPC:
            return GrpcTransport(service, f"unix:{socket}")
        case TransportKind.HTTP2:
            return Http2Transport(service, socket)


def make_attempt_client(protocol: EgressProtocol, socket: str) -> AttemptClient:
    """An attempt client for the egress listener's Unix socket."""
    match protocol:
        case EgressProtocol.H1:
            return Http1AttemptClient(socket)
        case EgressProtocol.H2:
            return Http2AttemptClient(socket)
