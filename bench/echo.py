"""The yardstick: a no-op external processor as one writes it in Python with grpc.aio, over a Unix socket.

``python -m bench.echo SOCKET [uvloop]`` hands every response on as it came, on asyncio's own event loop or on uvloop. It runs
on the same message classes as deltafence, so that what differs is what a processor does, not how its protobuf is encoded.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc.aio
import uvloop

from extproc.processor.protobuf import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeadersResponse,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    TrailersResponse,
    method_handlers,
)


async def process(requests: AsyncIterator[ProcessingRequest], _: object) -> AsyncIterator[ProcessingResponse]:
    async for message in requests:
        yield echo(message)


def echo(message: ProcessingRequest) -> ProcessingResponse:
    if message.HasField("response_body"):
        piece = message.response_body
        streamed = StreamedBodyResponse(body=piece.body, end_of_stream=piece.end_of_stream)
        return ProcessingResponse(
            response_body=BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed)))
        )
    if message.HasField("response_headers"):
        return ProcessingResponse(response_headers=HeadersResponse())
    return ProcessingResponse(response_trailers=TrailersResponse())


async def serve(socket: str) -> None:
    server = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
    server.add_generic_rpc_handlers((method_handlers(process),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    run = uvloop.run if sys.argv[2:] == ["uvloop"] else asyncio.run
    run(serve(sys.argv[1]))
