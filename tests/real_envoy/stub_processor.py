"""A processor without decisions, for tests of what surrounds one.

Takes `deltafence processor`'s options and answers every request with one event, then waits for `POST /finish` on its admin
address, or for SIGTERM, and ends the stream with another.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from aiohttp import web

from extproc.processor import protobuf
from extproc.processor.protobuf import (
    HeaderMap,
    HeaderValue,
    HttpHeaders,
    ProcessingResponse,
    StreamedBodyResponse,
    StreamedImmediateResponse,
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--egress", required=True)
    parser.add_argument("--drain-limit")
    parser.add_argument("--log-format")
    parser.add_argument("--admin")
    parser.add_argument("--sibling", action="append")
    parser.add_argument("--replica", action="append", required=True)
    parser.add_argument("--policy")
    parser.add_argument("--journal")
    parser.add_argument("--token-file")
    parser.add_argument("--health-interval")
    return parser.parse_args()


def streamed(**fields: Any) -> ProcessingResponse:
    return ProcessingResponse(streamed_immediate_response=StreamedImmediateResponse(**fields))


async def main() -> None:
    options = arguments()
    finish = asyncio.Event()

    async def process(messages: AsyncIterator[Any], call: Any) -> AsyncIterator[ProcessingResponse]:
        async for message in messages:  # an answer that begins before the request is read is cut by Envoy
            if message.request_headers.end_of_stream or message.request_body.end_of_stream:
                break
        status = HeaderValue(key=":status", raw_value=b"200")
        yield streamed(headers_response=HttpHeaders(headers=HeaderMap(headers=[status])))
        yield streamed(body_response=StreamedBodyResponse(body=b"data: one\n\n"))
        await finish.wait()
        yield streamed(body_response=StreamedBodyResponse(body=b"data: two\n\n", end_of_stream=True))

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/finish":
            finish.set()
        return web.Response(text=" ".join(sys.argv[1:]))

    server = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
    server.add_generic_rpc_handlers((protobuf.method_handlers(process),))
    server.add_insecure_port(f"unix:{options.socket}")
    await server.start()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, handle_signals=False)
    await runner.setup()
    if options.admin:
        host, _, port = options.admin.rpartition(":")
        await web.TCPSite(runner, host.strip("[]"), int(port)).start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    finish.set()
    await server.stop(5)
    await runner.cleanup()


asyncio.run(main())
