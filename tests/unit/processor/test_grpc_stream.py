"""Writes that don't wait, over a real grpc.aio call: nothing is lost, doubled or overtaken, and one at a time is under way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from extproc.processor import messages
from extproc.processor.grpc_transport import GrpcStream, GrpcTransport
from extproc.processor.protobuf import METHOD, SERVICE_NAME, ProcessingRequest, ProcessingResponse, method_handlers

Serve = Callable[[GrpcStream], Awaitable[None]]


@asynccontextmanager
async def called(folder: Path, serve: Serve) -> AsyncIterator["grpc.aio.StreamStreamCall[ProcessingRequest, ProcessingResponse]"]:
    """A client's call that ``serve`` answers."""

    async def process(_: object, call: grpc.aio.ServicerContext) -> None:
        await serve(GrpcStream(call))

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((method_handlers(process),))
    server.add_insecure_port(f"unix:{folder}/s")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{folder}/s") as channel:
        method = channel.stream_stream(
            f"/{SERVICE_NAME}/{METHOD}",
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        yield method()
    await server.stop(None)


def delta(number: int) -> bytes:
    return messages.encode_delta(b"data: %d\n\n" % number)


def text(message: object) -> str:
    assert isinstance(message, ProcessingResponse)
    return message.streamed_immediate_response.body_response.body.decode()


async def test_both_ways_of_writing_keep_their_order(tmp_path: Path):
    at_once: list[bool] = []

    async def serve(stream: GrpcStream) -> None:
        for number in range(500):
            at_once.append(stream.write_now(delta(number)))
            if not at_once[-1]:
                await stream.write(delta(number))

    async with called(tmp_path, serve) as call:
        assert [text(message) async for message in call] == [f"data: {number}\n\n" for number in range(500)]
    assert True in at_once
    assert False in at_once, "two writes of a call were under way at once"


async def test_a_write_that_was_begun_is_finished_though_nobody_waits(tmp_path: Path):
    written, leave = asyncio.Event(), asyncio.Event()

    async def serve(stream: GrpcStream) -> None:
        await stream.write(delta(0))
        assert stream.write_now(delta(1))
        written.set()
        await leave.wait()

    async with called(tmp_path, serve) as call:
        await written.wait()
        assert [text(await call.read()) for _ in range(2)] == ["data: 0\n\n", "data: 1\n\n"]
        leave.set()


async def test_a_client_that_left_is_told_by_cancellation_and_by_the_next_write(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(stream: GrpcStream) -> None:
        await stream.write(delta(0))
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            stream.write_now(delta(1))
            with pytest.raises((grpc.aio.BaseError, asyncio.CancelledError)):
                await stream.write(delta(2))
            told.set_result(None)
            raise

    async with called(tmp_path, serve) as call:
        await call.read()
        call.cancel()
        await told
    assert "Exception in callback" not in caplog.text


async def test_a_thousand_calls_that_wait_at_once_are_all_taken_up(tmp_path: Path):
    """They come while the loop is busy, so that none is taken up before all have come."""

    class TakesUp:
        async def process(self, stream: GrpcStream) -> None:
            await stream.read()

    transport = GrpcTransport(TakesUp(), f"unix:{tmp_path}/s")  # type: ignore[arg-type]
    await transport.start()
    with grpc.insecure_channel(f"unix:{tmp_path}/s") as channel:
        grpc.channel_ready_future(channel).result()
        method = channel.unary_stream(f"/{SERVICE_NAME}/{METHOD}", request_serializer=ProcessingRequest.SerializeToString)
        calls = [method(ProcessingRequest()) for _ in range(3_000)]
        codes = await asyncio.to_thread(lambda: {call.code() for call in calls})
    await transport.stop(None)
    assert codes == {grpc.StatusCode.OK}
