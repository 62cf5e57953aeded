"""The one door to the generated message classes and to grpc's way of serving them.

Nothing else imports ``ext_proc_pb2``: it is compiled from ``proto/ext_proc.proto`` at build, so that what a checkout knows
about it, its types included, is written here once.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, cast

import grpc
from google.protobuf.struct_pb2 import Struct

from extproc.processor.ext_proc_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    GrpcStatus,
    HeaderMap,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpBody,
    HttpHeaders,
    HttpStatus,
    HttpTrailers,
    ImmediateResponse,
    Metadata,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
    StatusCode,
    StreamedBodyResponse,
    StreamedImmediateResponse,
    TrailersResponse,
)

__all__ = [
    "METHOD",
    "SERVICE_NAME",
    "BodyMutation",
    "BodyResponse",
    "CommonResponse",
    "GrpcStatus",
    "HeaderMap",
    "HeaderMutation",
    "HeaderValue",
    "HeaderValueOption",
    "HeadersResponse",
    "HttpBody",
    "HttpHeaders",
    "HttpStatus",
    "HttpTrailers",
    "ImmediateResponse",
    "Metadata",
    "Process",
    "ProcessingMode",
    "ProcessingRequest",
    "ProcessingResponse",
    "ProtocolConfiguration",
    "StreamedBodyResponse",
    "StreamedImmediateResponse",
    "Struct",
    "TrailersResponse",
    "http_status",
    "method_handlers",
]

SERVICE_NAME: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
"""What Envoy dials, whatever our own package is called."""
METHOD: Final = "Process"

Process = Callable[
    [AsyncIterator[ProcessingRequest], "grpc.aio.ServicerContext[ProcessingRequest, ProcessingResponse]"],
    AsyncIterator[ProcessingResponse | bytes] | Awaitable[None],
]
"""One call per HTTP request: an async generator, or a coroutine that uses the stream's own ``read`` and ``write``."""


def http_status(code: int) -> HttpStatus:
    """The message for HTTP status ``code``; the enum is open, so every number is one of its values."""
    return HttpStatus(code=cast("StatusCode", code))


def _serialize(response: ProcessingResponse | bytes) -> bytes:
    """A message, or the bytes of one that was encoded by hand (messages.encode_delta)."""
    return response if isinstance(response, bytes) else response.SerializeToString()


def method_handlers(process: Process) -> grpc.GenericRpcHandler:
    """The generic handler that serves ``process`` as Envoy's external processor."""
    method = grpc.stream_stream_rpc_method_handler(
        process,
        request_deserializer=ProcessingRequest.FromString,
        response_serializer=_serialize,
    )
    return grpc.method_handlers_generic_handler(SERVICE_NAME, {METHOD: method})
