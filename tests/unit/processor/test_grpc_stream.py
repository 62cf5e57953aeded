"""Writes that don't wait, over a real grpc.aio call: nothing is lost, doubled or overtaken, and one at a time is under way."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from extproc.processor import grpc_transport, messages
from extproc.processor.grpc_transport import BegunWrites, GrpcStream, GrpcTransport
from extproc.processor.protobuf import METHOD, SERVICE_NAME, ProcessingRequest, ProcessingResponse, method_handlers
from tests.unit.processor.stage import until

Serve = Callable[[GrpcStream], Awaitable[None]]


@asynccontextmanager
async def called(folder: Path, serve: Serve) -> AsyncIterator["grpc.aio.StreamStreamCall[ProcessingRequest, ProcessingResponse]"]:
    """A client's call that ``serve`` answers."""

    async def process(_: object, call: grpc.aio.ServicerContext) -> None:
        stream = GrpcStream(call, BegunWrites())
        try:
            await serve(stream)
        finally:
            stream.release()

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
    waits = asyncio.Event()

    async def serve(stream: GrpcStream) -> None:
        await stream.write(delta(0))
        try:
            waits.set()
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            stream.write_now(delta(1))
            with pytest.raises((grpc.aio.BaseError, asyncio.CancelledError)):
                await stream.write(delta(2))
            told.set_result(None)
            raise

    async with called(tmp_path, serve) as call:
        await call.read()
        await waits.wait()  # the message is here before its write has ended there
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


class Served:
    """A service that has served its stream at once."""

    def __init__(self) -> None:
        self.streams: list[GrpcStream] = []

    async def process(self, stream: GrpcStream) -> None:
        self.streams.append(stream)


def serve_scripted_call(service: Served) -> "asyncio.Task[None]":
    transport = GrpcTransport(service, "unix:/unused")  # type: ignore[arg-type]
    return asyncio.create_task(transport._process(None, ScriptedCall()))  # type: ignore[arg-type]


async def test_a_served_call_waits_for_its_reset_so_that_grpc_sends_no_status_after_it():
    service = Served()
    call = serve_scripted_call(service)
    await until(lambda: service.streams)
    call.cancel()  # as gRPC does at a reset
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_served_call_that_nobody_resets_ends_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grpc_transport, "LEAVE_S_MAX", 0)
    await serve_scripted_call(Served())


class ScriptedCall:
    """A call whose sends the test completes."""

    def __init__(self) -> None:
        self.completions: list[asyncio.Future[None]] = []
        self.ended = 0

    async def abort(self, _: grpc.StatusCode, detail: str) -> None:
        assert self.ended == len(self.completions), "aborted under a write"
        raise grpc.aio.AbortError(detail)

    async def write(self, _: bytes) -> None:
        self.completions.append(asyncio.get_running_loop().create_future())
        try:
            await self.completions[-1]
        finally:
            self.ended += 1  # as gRPC, which frees the message here


@pytest.mark.parametrize("is_sent_before", [True, False], ids=["already sent", "still under way"])
@pytest.mark.parametrize("fault", [None, grpc.aio.UsageError("the call is over")], ids=["sent", "failed"])
async def test_the_last_write_that_was_begun_is_ended_when_nobody_writes_any_more(is_sent_before: bool, fault: Exception | None):
    call = ScriptedCall()
    stream = GrpcStream(call, BegunWrites())  # type: ignore[arg-type]
    assert stream.write_now(delta(0))
    (completion,) = call.completions

    def complete() -> None:
        if fault is None:
            completion.set_result(None)
        else:
            completion.set_exception(fault)

    if is_sent_before:
        complete()
    stream.release()
    assert call.ended == is_sent_before
    if not is_sent_before:
        complete()
        await until(lambda: call.ended)
    assert call.ended == 1


async def test_nothing_holds_a_stream_that_was_released():
    writes = BegunWrites()
    stream = GrpcStream(ScriptedCall(), writes)  # type: ignore[arg-type]
    call = weakref.ref(stream._call)
    assert stream.write_now(delta(0))
    stream._call.completions[0].set_result(None)
    stream.release()
    del stream
    assert call() is None


async def test_a_write_that_is_still_under_way_makes_the_next_one_wait():
    call = ScriptedCall()
    stream = GrpcStream(call, BegunWrites())  # type: ignore[arg-type]
    assert stream.write_now(delta(0))
    assert not stream.write_now(delta(1))
    assert len(call.completions) == 1
    call.completions[0].set_result(None)
    assert stream.write_now(delta(2))
    assert (len(call.completions), call.ended) == (2, 1)
    call.completions[1].set_result(None)
    stream.release()


async def test_other_streams_writes_end_what_was_begun_and_a_stuck_one_holds_up_nobody():
    writes = BegunWrites()
    calls = [ScriptedCall() for _ in range(6)]
    stuck, *streams = [GrpcStream(call, writes) for call in calls]  # type: ignore[arg-type]
    assert stuck.write_now(delta(0))
    for stream, call in zip(streams, calls[1:], strict=True):
        assert stream.write_now(delta(0))
        call.completions[0].set_result(None)
    for number in range(3):
        assert streams[-1].write_now(delta(number))
        calls[-1].completions[-1].set_result(None)
    assert [call.ended for call in calls[:-1]] == [0, 1, 1, 1, 1]
    calls[0].completions[0].set_result(None)
    for stream in (stuck, *streams):
        stream.release()
    assert [call.ended for call in calls] == [len(call.completions) for call in calls]


async def begun(call: ScriptedCall, number: int) -> None:
    await until(lambda: len(call.completions) == number)


async def begun_write() -> "tuple[ScriptedCall, GrpcStream, asyncio.Task[None]]":
    """A write that waits until the test completes its send."""
    call = ScriptedCall()
    stream = GrpcStream(call, BegunWrites())  # type: ignore[arg-type]
    writing = asyncio.create_task(stream.write(delta(0)))
    await begun(call, 1)
    return call, stream, writing


async def test_a_cancelled_write_is_ended_all_the_same_when_it_has_been_sent():
    call, stream, writing = await begun_write()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    stream.release()
    assert call.ended == 0
    call.completions[0].set_result(None)
    await until(lambda: call.ended)


async def test_a_write_that_waits_is_ended_by_itself_alone():
    """Whoever ended it for others would keep its failure to himself."""
    writes = BegunWrites()
    calls = [ScriptedCall() for _ in range(2)]
    stream, other = (GrpcStream(call, writes) for call in calls)  # type: ignore[arg-type]
    assert stream.write_now(delta(0))
    calls[0].completions[0].set_result(None)
    writing = asyncio.create_task(stream.write(delta(1)))
    await begun(calls[0], 2)
    calls[0].completions[1].set_exception(grpc.aio.UsageError("the call is over"))
    assert other.write_now(delta(0))  # before the other task has heard of it
    with pytest.raises(grpc.aio.UsageError):
        await writing
    assert calls[0].ended == 2


async def test_a_write_fails_with_what_grpc_says_of_it():
    call, _, writing = await begun_write()
    call.completions[0].set_exception(grpc.aio.UsageError("the call is over"))
    with pytest.raises(grpc.aio.UsageError):
        await writing
    assert call.ended == 1


async def test_a_write_that_its_stream_has_let_go_of_ends_once():
    """A tool's caller that leaves releases the stream, while the call's own task may still write."""
    call, stream, writing = await begun_write()
    stream.release()
    call.completions[0].set_result(None)
    await writing
    assert call.ended == 1


async def test_a_call_is_aborted_only_when_its_write_has_been_sent():
    call = ScriptedCall()
    stream = GrpcStream(call, BegunWrites())  # type: ignore[arg-type]
    assert stream.write_now(delta(0))
    asyncio.get_running_loop().call_soon(call.completions[0].set_result, None)
    with pytest.raises(grpc.aio.AbortError):
        await stream.abort("the tool broke")


async def test_an_abort_right_behind_the_first_write_reaches_the_client(tmp_path: Path):
    async def serve(stream: GrpcStream) -> None:
        assert stream.write_now(delta(0))
        await stream.abort("the tool broke")

    async with called(tmp_path, serve) as call:
        await call.read()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
