"""The link that can go silent: nothing passes a cut, nothing is lost by it, and neither end sees a close."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extproc.sim.link import Direction, Link, start_link


class Peer:
    """A server behind the link; each connection is handed to the test."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.connections.put_nowait((reader, writer))


@pytest.fixture
async def peer_and_link() -> AsyncIterator[tuple[Peer, Link]]:
    peer = Peer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    async with start_link(server.sockets[0].getsockname()[1]) as link:
        yield peer, link
    server.close()
    for writer in peer.writers:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def is_silent(reader: asyncio.StreamReader) -> bool:
    """Whether nothing comes, not even an end, while the loop has nothing else to do."""
    try:
        async with asyncio.timeout(0.05):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("direction", [Direction.TO_REPLICA, Direction.FROM_REPLICA, Direction.BOTH])
async def test_a_cut_is_silent_in_its_directions_only_and_loses_nothing(
    peer_and_link: tuple[Peer, Link], direction: Direction
) -> None:
    peer, link = peer_and_link
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"1")
    far_reader, far_writer = await peer.connections.get()
    assert await far_reader.read(1) == b"1"
    link.cut(direction)
    writer.write(b"2")
    far_writer.write(b"b")
    for end, cut, sent in ((far_reader, Direction.TO_REPLICA, b"2"), (reader, Direction.FROM_REPLICA, b"b")):
        if cut in direction:
            assert await is_silent(end)
        else:
            assert await end.read(1) == sent
    link.heal()
    if Direction.TO_REPLICA in direction:
        assert await far_reader.read(1) == b"2"
    if Direction.FROM_REPLICA in direction:
        assert await reader.read(1) == b"b"
    writer.close()


async def test_the_cut_falls_behind_the_marked_event(peer_and_link: tuple[Peer, Link]) -> None:
    peer, link = peer_and_link
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"?")
    _, far_writer = await peer.connections.get()
    link.cut_after(b"mark")
    far_writer.write(b"data: one\n\ndata: mark\n\ndata: kept\n\n")
    assert await reader.readexactly(23) == b"data: one\n\ndata: mark\n\n"
    assert link.is_cut
    assert await is_silent(reader)
    link.heal()
    assert await reader.readexactly(12) == b"data: kept\n\n"
    writer.close()


async def test_a_close_does_not_pass_a_cut(peer_and_link: tuple[Peer, Link]) -> None:
    peer, link = peer_and_link
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"?")
    _, far_writer = await peer.connections.get()
    link.cut()
    far_writer.close()
    assert await is_silent(reader)
    link.heal()
    assert await reader.read(1) == b""
    writer.close()


async def test_a_refused_replica_is_a_closed_connection() -> None:
    async with start_link(1) as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        assert await reader.read(1) == b""
        writer.close()


async def test_late_bytes_arrive_and_none_before_their_time(peer_and_link: tuple[Peer, Link]) -> None:
    peer, link = peer_and_link
    link.delay_s = 0.05
    _, writer = await asyncio.open_connection("127.0.0.1", link.port)
    sent_at = asyncio.get_running_loop().time()
    writer.write(b"?")
    far_reader, _ = await peer.connections.get()
    assert await far_reader.read(1) == b"?"
    assert asyncio.get_running_loop().time() - sent_at >= link.delay_s
    writer.close()


async def test_dropped_connections_are_closed_though_the_link_is_cut(peer_and_link: tuple[Peer, Link]) -> None:
    peer, link = peer_and_link
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"?")
    far_reader, _ = await peer.connections.get()
    assert await far_reader.read(1) == b"?"
    link.cut()
    await link.drop()
    assert (await reader.read(), await far_reader.read()) == (b"", b"")
    writer.close()


async def test_a_connection_that_is_dropped_before_it_is_carried_is_closed_all_the_same() -> None:
    class Writer:
        closed = False

        def close(self) -> None:
            self.closed = True

    link, writer = Link(0), Writer()
    carrying = asyncio.create_task(link.carry(asyncio.StreamReader(), writer))  # type: ignore[arg-type]
    await asyncio.sleep(0)  # it has begun its relaying task, whose first step is still to come
    await link.drop()
    await carrying
    assert writer.closed
