"""Peers that don't read what they are sent: once their connection has ended, nothing of ours waits for them."""

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import hpack
import pytest
import uvloop

from extproc.http2.limits import WINDOW_DEFAULT
from extproc.links import http2_link
from extproc.processor.http2_transport import ServerLink
from extproc.processor.ports import Stream
from tests.unit.http2.probe import END_HEADERS, GOAWAY, HEADERS, PREFACE, WINDOW_UPDATE, number, raw, setting
from tests.unit.processor.http2_wire import CALL, Served, answer

INITIAL_WINDOW = 4
ROOM = 2**30
CALLS = 16
"""Each with a message larger than its window: together they fill the socket and what the transport keeps."""
FAULT = raw(WINDOW_UPDATE, 0, 0, number(0))

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test in a loop of either kind."""

    def run(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(test, 30))

    return run


class Deaf:
    """A peer with calls that are being answered, of which it reads nothing until it is told to."""

    def __init__(self, served: Served, window: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(served.path)
        encoder = hpack.Encoder()
        calls = [raw(HEADERS, END_HEADERS, stream_id, encoder.encode(CALL)) for stream_id in range(1, 2 * CALLS, 2)]
        self.socket.sendall(PREFACE + setting(INITIAL_WINDOW, window) + raw(WINDOW_UPDATE, 0, 0, number(ROOM)) + b"".join(calls))

    def is_hung_up(self) -> bool:
        """Whether the other end's socket is closed, not only shut in one direction."""
        poll = select.poll()
        poll.register(self.socket, 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    async def read_all(self) -> bytes:
        self.socket.setblocking(False)
        data = bytearray()
        while piece := await asyncio.get_running_loop().sock_recv(self.socket, 1 << 20):
            data += piece
        return bytes(data)


@asynccontextmanager
async def stuck(folder: Path, window: int) -> AsyncIterator[tuple[Served, ServerLink, Deaf]]:
    """A transport all of whose tasks wait for one peer to read."""

    async def serve(stream: Stream) -> None:
        while True:
            await stream.write(answer(bytes(2 * WINDOW_DEFAULT)))
            await asyncio.sleep(0)  # as a session waits for more; the transport is written to at the end of a turn

    served = Served(folder)
    served.script(serve)
    await served.transport.start()
    peer = Deaf(served, window)
    await until(lambda: served.service.running == CALLS)
    (link,) = served.transport._links
    await until(lambda: not link.is_writable.is_set())
    if window < ROOM:
        await until(lambda: all(stream._room is not None for stream in link._streams.values()))
    yield served, link, peer
    await served.transport.stop(0)
    peer.socket.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def break_a_rule(peer: Deaf) -> None:
    peer.socket.sendall(FAULT)


def end_its_half(peer: Deaf) -> None:
    peer.socket.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("window", [WINDOW_DEFAULT, ROOM], ids=["waiting for room", "waiting for the transport"])
@pytest.mark.parametrize("end", [break_a_rule, end_its_half])
def test_a_connection_that_has_ended_cancels_its_tasks_though_its_peer_never_reads(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, end: Callable[[Deaf], None], window: int
) -> None:
    monkeypatch.setattr(http2_link, "CLOSING_S_MAX", 1e6)

    async def test() -> None:
        async with stuck(tmp_path, window) as (served, link, peer):
            end(peer)
            assert [await served.service.ended.get() for _ in range(CALLS)] == ["cancelled"] * CALLS
            assert (served.service.running, served.transport._links) == (0, set())
            assert not peer.is_hung_up(), "the tasks must not have waited for the socket's end"
            link.abort()

    run(test())


@pytest.mark.parametrize("end", [break_a_rule, end_its_half])
def test_its_socket_is_given_up_after_a_while(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, end: Callable[[Deaf], None]
) -> None:
    monkeypatch.setattr(http2_link, "CLOSING_S_MAX", 0.01)

    async def test() -> None:
        async with stuck(tmp_path, WINDOW_DEFAULT) as (_, _, peer):
            end(peer)
            await until(peer.is_hung_up)

    run(test())


def test_a_stop_gives_up_the_socket_of_a_peer_that_never_reads(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_link, "CLOSING_S_MAX", 0.01)

    async def test() -> None:
        async with stuck(tmp_path, ROOM) as (served, _, peer):
            await served.transport.stop(0)
            await until(peer.is_hung_up)

    run(test())


def test_a_peer_that_reads_late_is_still_told_which_rule_it_broke(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2_link, "CLOSING_S_MAX", 1e6)

    async def test() -> None:
        async with stuck(tmp_path, WINDOW_DEFAULT) as (served, _, peer):
            break_a_rule(peer)
            await until(lambda: served.service.running == 0)
            *_, last = frames(await peer.read_all())
            assert last[0] == GOAWAY
            assert last[1].endswith(b"WINDOW_UPDATE by 0")

    run(test())


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """Type and payload of each; what is cut is an error."""
    found = []
    while data:
        size = int.from_bytes(data[:3], "big")
        assert len(data) >= 9 + size
        found.append((data[3], data[9 : 9 + size]))
        data = data[9 + size :]
    return found
