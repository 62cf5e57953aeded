"""Our own gRPC server, called by grpcio's client and, where a client must misbehave, by bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from extproc.processor.grpc_framing import encode_message
from extproc.processor.http2_transport import PATH
from extproc.processor.ports import Stream
from extproc.processor.protobuf import ProcessingRequest, ProcessingResponse
from tests.unit.http2.probe import END_HEADERS, END_STREAM, number, raw, setting
from tests.unit.processor.http2_wire import CALL, Served, Wire, answer, request


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    served = Served(tmp_path)
    await served.transport.start()
    yield served
    await served.transport.stop(0)


@pytest.fixture
async def channel(served: Served) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"unix:{served.path}", options=options) as channel:
        yield channel


def call(channel: grpc.aio.Channel, path: str = PATH, **options: Any) -> Any:
    method = channel.stream_stream(
        path, request_serializer=ProcessingRequest.SerializeToString, response_deserializer=ProcessingResponse.FromString
    )
    return method(**options)


def body_of(response: ProcessingResponse) -> bytes:
    return response.streamed_immediate_response.body_response.body


async def outcome(stream: Any) -> tuple[grpc.StatusCode, str]:
    """How a call ends, once everything before its end was read."""
    with suppress(grpc.aio.AioRpcError):
        while await stream.read() is not grpc.aio.EOF:
            pass
    return await stream.code(), await stream.details()


# --- calls as grpcio makes them ---


@pytest.mark.parametrize("size", [0, 1, 127, 16_379, 16_380, 70_000, 300_000, 3_000_000])
async def test_messages_of_any_size_go_both_ways(served: Served, channel: grpc.aio.Channel, size: int):
    """The largest exceed every window on their way."""
    stream = call(channel)
    for number_of in range(2):
        await stream.write(request(bytes((number_of,)) * size))
        assert body_of(await stream.read()) == bytes((number_of,)) * size
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await outcome(stream) == (grpc.StatusCode.OK, "")
    assert await served.service.ended.get() == "returned"


async def test_many_calls_run_beside_each_other(served: Served, channel: grpc.aio.Channel):
    streams = [call(channel) for _ in range(200)]
    for index, stream in enumerate(streams):
        await stream.write(request(str(index).encode()))
    for index, stream in reversed(list(enumerate(streams))):
        assert body_of(await stream.read()) == str(index).encode()
    for stream in streams:
        await stream.done_writing()
        assert (await outcome(stream))[0] is grpc.StatusCode.OK


async def test_bytes_and_messages_may_be_written(served: Served, channel: grpc.aio.Channel):
    async def serve(stream: Stream) -> None:
        await stream.write(answer(b"a").SerializeToString())
        await stream.write(answer(b"b"))

    served.script(serve)
    stream = call(channel)
    assert [body_of(await stream.read()) for _ in range(2)] == [b"a", b"b"]


async def test_metadata_is_the_callers_own(served: Served, channel: grpc.aio.Channel):
    seen = asyncio.get_running_loop().create_future()

    async def serve(stream: Stream) -> None:
        seen.set_result(list(stream.initial_metadata))

    served.script(serve)
    await outcome(call(channel, metadata=(("x-deltafence-policy", '{"mode": "off"}'),)))
    names = [name for name, _ in await seen]
    assert ("x-deltafence-policy", '{"mode": "off"}') in await seen
    assert not any(name.startswith((":", "grpc-", "te", "content-")) for name in names)


async def test_a_call_may_end_before_a_message(served: Served, channel: grpc.aio.Channel):
    async def serve(stream: Stream) -> None:
        assert await stream.read() is None
        assert await stream.read() is None

    served.script(serve)
    stream = call(channel)
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert (await outcome(stream))[0] is grpc.StatusCode.OK


@pytest.mark.parametrize("first", [False, True], ids=["before a message", "after one"])
async def test_an_abort_gives_unavailable_and_the_detail(served: Served, channel: grpc.aio.Channel, first: bool):
    async def serve(stream: Stream) -> None:
        if first:
            await stream.write(answer(b"a"))
        await stream.abort("100 % broken: é")

    served.script(serve)
    stream = call(channel)
    assert await outcome(stream) == (grpc.StatusCode.UNAVAILABLE, "100 % broken: é")


async def test_a_fault_of_ours_is_logged_and_not_told(
    served: Served, channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
):
    async def serve(stream: Stream) -> None:
        raise KeyError("secret")

    served.script(serve)
    stream = call(channel)
    assert await outcome(stream) == (grpc.StatusCode.UNKNOWN, "see the gateway's log")
    assert "KeyError: 'secret'" in caplog.text


@pytest.mark.parametrize("path", ["/", "/envoy.service.ext_proc.v3.ExternalProcessor/Other", PATH + "/"])
async def test_other_methods_are_unimplemented(served: Served, channel: grpc.aio.Channel, path: str):
    assert (await outcome(call(channel, path)))[0] is grpc.StatusCode.UNIMPLEMENTED
    assert served.service.ended.empty()


async def test_compressed_messages_are_unimplemented(served: Served, channel: grpc.aio.Channel):
    stream = call(channel, compression=grpc.Compression.Gzip)
    assert (await outcome(stream))[0] is grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_that_is_too_large_ends_its_call(served: Served, channel: grpc.aio.Channel):
    stream = call(channel)
    with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
        await stream.write(request(bytes(17 << 20)))
    assert (await outcome(stream))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await served.service.ended.get() == "CallFault"


async def test_a_caller_that_cancels_cancels_the_task(served: Served, channel: grpc.aio.Channel):
    started = asyncio.Event()

    async def serve(stream: Stream) -> None:
        started.set()
        await asyncio.Event().wait()

    served.script(serve)
    stream = call(channel)
    await started.wait()
    stream.cancel()
    assert await served.service.ended.get() == "cancelled"


async def test_a_connection_that_breaks_cancels_all_its_tasks(served: Served):
    async def serve(stream: Stream) -> None:
        await stream.read()
        await stream.read()

    served.script(serve)
    async with Wire(served) as wire:
        wire.call(1, raw(0, 0, 1, encode_message(b"")))
        wire.call(3)
        await wire.settled()
        assert served.service.running == 2
        wire.writer.transport.abort()
        assert [await served.service.ended.get() for _ in range(2)] == ["cancelled", "cancelled"]


# --- clients that misbehave, in bytes ---


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ((":method", "GET"), {":status": "405"}),
        (("content-type", "application/json"), {":status": "415"}),
        (("content-type", "application/grpc+json"), {":status": "415"}),
        (("grpc-encoding", "gzip"), {":status": "200", "grpc-status": "12"}),
    ],
)
async def test_what_is_no_call_of_the_method_is_answered_and_never_served(
    served: Served, changed: tuple[str, str], expected: dict[str, str]
):
    async with Wire(served) as wire:
        wire.call(
            1,
            fields=[*(each for each in CALL if each[0] != changed[0]), changed]
            if changed[0] != ":method"
            else [changed, *CALL[1:]],
        )
        assert expected.items() <= (await wire.fields()).items()
    assert served.service.ended.empty()


async def test_a_call_that_is_left_at_once_leaves_nothing_behind(served: Served):
    """CVE-2023-44487: the task is cancelled before its first step."""
    async with Wire(served) as wire:
        for stream_id in range(1, 401, 2):
            wire.call(stream_id, raw(3, 0, stream_id, number(8)))
        await wire.settled()
        (link,) = served.transport._links
        assert (link.tasks, link._streams, link.connection.streams, link.connection._core.occupied) == ([], {}, 0, set())


async def test_a_call_that_ends_within_a_message_is_internal(served: Served):
    async with Wire(served) as wire:
        wire.call(1, raw(0, END_STREAM, 1, encode_message(b"abc")[:-1]))
        assert (await wire.fields())["grpc-status"] == "13"
    assert await served.service.ended.get() == "CallFault"


async def test_a_message_that_is_no_request_is_internal(served: Served):
    async with Wire(served) as wire:
        wire.call(1, raw(0, 0, 1, encode_message(b"\xff\xff\xff")))
        assert (await wire.fields())["grpc-status"] == "13"


async def test_trailers_end_a_request_as_an_end_of_stream_does(served: Served):
    async with Wire(served) as wire:
        wire.call(1)
        wire.call(1, fields=[("x-end", "1")], flags=END_HEADERS | END_STREAM)
        assert (await wire.fields())["grpc-status"] == "0"


async def test_a_request_that_ends_with_its_head_is_served(served: Served):
    async with Wire(served) as wire:
        wire.call(1, flags=END_HEADERS | END_STREAM)
        assert (await wire.fields())["grpc-status"] == "0"


async def test_messages_come_whole_however_they_were_cut(served: Served):
    said = b"".join(encode_message(request(bytes((number_of,)) * 100).SerializeToString()) for number_of in range(5))
    async with Wire(served) as wire:
        wire.call(1)
        for start in range(0, len(said), 7):
            wire.writer.write(raw(0, 0, 1, said[start : start + 7]))
        wire.writer.write(raw(0, END_STREAM, 1))
        await wire.fields()
        data = b""
        while (frame := await wire.frame())[0] == 0:
            data += frame[3]
        assert data == b"".join(encode_message(answer(bytes((number_of,)) * 100).SerializeToString()) for number_of in range(5))


async def test_a_writer_waits_for_room_and_keeps_one_message_at_most(served: Served):
    written = 0

    async def serve(stream: Stream) -> None:
        nonlocal written
        while True:
            await stream.write(answer(bytes(100)))
            written += 1

    served.script(serve)
    message = len(encode_message(answer(bytes(100)).SerializeToString()))
    async with Wire(served, setting(4, 3 * message + 1)) as wire:
        wire.call(1)
        await wire.settled()
        assert written == 3
        wire.writer.write(raw(8, 0, 1, number(message)))
        await wire.settled()
        assert written == 4
        wire.writer.write(raw(3, 0, 1, number(8)))
        assert await served.service.ended.get() == "cancelled"


async def test_bytes_are_written_at_once_only_where_nothing_has_to_wait(served: Served):
    """ports.Stream.write_now: the head first, within the windows, never past a message that waits, never to one who left."""
    message = answer(bytes(100)).SerializeToString()
    said: list[bool] = []
    asked: asyncio.Queue[None] = asyncio.Queue()

    async def serve(stream: Stream) -> None:
        assert stream.write_now is not None
        said.append(stream.write_now(message))
        await stream.write(message)
        for _ in range(2):
            said.append(stream.write_now(message))
        waiting = asyncio.ensure_future(stream.write(message))
        await asyncio.sleep(0)
        said.append(stream.write_now(b""))
        await waiting
        await asked.get()
        said.append(stream.write_now(b""))
        await stream.read()

    served.script(serve)
    size = len(encode_message(message))
    async with Wire(served, setting(4, 2 * size)) as wire:
        wire.call(1)
        await wire.settled()
        wire.writer.write(raw(8, 0, 1, number(size)))
        await wire.settled()
        assert said == [False, True, False, False]
        (link,) = served.transport._links
        link.is_writable.clear()
        asked.put_nowait(None)
        while len(said) < 5:
            await asyncio.sleep(0)
        assert not said[4]
        link.is_writable.set()


async def test_a_writer_waits_while_the_peer_does_not_read(served: Served):
    written = 0

    async def serve(stream: Stream) -> None:
        nonlocal written
        while True:
            await stream.write(answer(bytes(10_000)))
            written += 1
            await asyncio.sleep(0)

    served.script(serve)
    async with Wire(served, setting(4, 2**31 - 1), raw(8, 0, 0, number(2**30))) as wire:
        wire.reader._limit = 1  # asyncio's reader stops reading the socket then
        wire.call(1)
        (link,) = await links(served)
        while link.is_writable.is_set() or served.service.running == 0:
            await asyncio.sleep(0)
        at_pause = written
        for _ in range(100):
            await asyncio.sleep(0)
        assert written <= at_pause + 1
        assert link.connection._outbox._window > 2**29, "it is not the windows that hold it back"
        wire.reader._limit = 1 << 20
        await wire.reader.read(1 << 20)
        while written <= at_pause + 1:
            await asyncio.sleep(0)


async def links(served: Served) -> list[Any]:
    while not served.transport._links:
        await asyncio.sleep(0)
    return list(served.transport._links)


async def test_an_upload_that_nobody_reads_gets_no_more_room(served: Served):
    read = asyncio.Event()

    async def serve(stream: Stream) -> None:
        await read.wait()
        while await stream.read() is not None:
            pass

    served.script(serve)
    piece = encode_message(request(bytes(16_000)).SerializeToString())
    async with Wire(served) as wire:
        wire.call(1)
        # The stream's window, and as much again that was given back before whole messages had filled the bound.
        sent = 0
        room = 262_144
        while room >= len(piece):
            wire.writer.write(raw(0, 0, 1, piece[: len(piece) // 2]) + raw(0, 0, 1, piece[len(piece) // 2 :]))
            sent += len(piece)
            room += sum(int.from_bytes(frame[3], "big") for frame in await wire.settled() if frame[0] == 8) - len(piece)
        assert sent < 3 * 262_144
        read.set()
        while room < 131_072:
            frame = await wire.frame()
            if frame[0] == 8 and frame[2] == 1:
                room += int.from_bytes(frame[3], "big")


async def test_one_turn_of_the_loop_is_one_write(served: Served, monkeypatch: pytest.MonkeyPatch):
    go = asyncio.Event()

    async def serve(stream: Stream) -> None:
        await go.wait()
        await stream.write(answer(b"delta"))

    served.script(serve)
    async with Wire(served) as wire:
        for stream_id in range(1, 41, 2):
            wire.call(stream_id)
        await wire.settled()
        (link,) = served.transport._links
        writes: list[bytes] = []
        original = link._transport
        monkeypatch.setattr(link, "_transport", Recorder(original, writes))
        go.set()
        for _ in range(20):
            assert (await wire.fields())[":status"] == "200"
    assert len(writes) <= 2, "one for the messages, one for the ends"


class Recorder:
    """A transport that keeps what is written to it, and writes it."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport = transport
        self._writes = writes

    def write(self, data: bytes) -> None:
        self._writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_no_http2_is_told_so_and_let_go(served: Served, caplog: pytest.LogCaptureFixture):
    reader, writer = await asyncio.open_unix_connection(served.path)
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    said = await reader.read()
    writer.close()
    assert b"no HTTP/2 preface" in said
    assert "no HTTP/2 preface" in caplog.text


# --- stopping ---


async def test_a_stop_lets_calls_end_and_takes_no_new_ones(served: Served):
    finish = asyncio.Event()

    async def serve(stream: Stream) -> None:
        await finish.wait()
        await stream.write(answer(b"whole"))

    served.script(serve)
    async with Wire(served) as wire:
        wire.call(1)
        await wire.settled()
        stopping = asyncio.create_task(served.transport.stop(60))
        while (frame := await wire.frame())[0] != 7:
            pass
        assert frame[3][:4] == number(2**31 - 1), "the first GOAWAY ends nothing"
        assert (await wire.frame())[0] == 6
        wire.writer.write(raw(6, 1, 0, b"shutdown"))
        while (frame := await wire.frame())[0] != 7:
            pass
        assert frame[3][:4] == number(1)
        wire.call(3)
        assert (await wire.frame())[::2] == (3, 3)
        with pytest.raises(OSError, match=r"refused|No such file"):
            await asyncio.open_unix_connection(served.path)
        finish.set()
        assert (await wire.fields())[":status"] == "200"
        assert (await wire.fields())["grpc-status"] == "0"
        await stopping
        while await wire.reader.read(1000):
            pass
    assert await served.service.ended.get() == "returned"


async def test_a_stop_cancels_what_outlives_its_grace(served: Served):
    async def serve(stream: Stream) -> None:
        await asyncio.Event().wait()

    served.script(serve)
    async with Wire(served) as wire:
        wire.call(1)
        await wire.settled()
        await served.transport.stop(0)
        assert await served.service.ended.get() == "cancelled"
        assert (await wire.fields())["grpc-status"] == "14"


async def test_a_stale_socket_file_is_replaced(tmp_path: Path):
    first = Served(tmp_path)
    await first.transport.start()
    second = Served(tmp_path)
    await second.transport.start()
    async with grpc.aio.insecure_channel(f"unix:{second.path}") as channel:
        stream = call(channel)
        await stream.done_writing()
        assert (await outcome(stream))[0] is grpc.StatusCode.OK
    assert await second.service.ended.get() == "returned"
    await second.transport.stop(0)
    await first.transport.stop(0)
    assert not Path(second.path).exists()


async def test_a_transport_that_never_started_can_be_stopped(tmp_path: Path):
    await Served(tmp_path).transport.stop(0)
