"""The suite's client leaves no connection open, whoever closes first."""

import asyncio

import pytest

from extproc.faults.client import Client


async def test_leaving_closes_our_end_of_what_the_other_side_has_closed() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()
        # Half closed until our end is closed too.
        ended.set_result(await reader.read())

    ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = await Client.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/", (), b"")
    await client.end()
    client.leave()
    assert client._writer.is_closing()
    await ended
    server.close()


async def test_a_request_that_can_not_be_sent_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer:
        closed = False

        def write(self, data: bytes) -> None:
            """Into nothing."""

        async def drain(self) -> None:
            raise ConnectionResetError

        def close(self) -> None:
            self.closed = True

    async def connect(host: str, port: int) -> tuple[asyncio.StreamReader, Writer]:
        return asyncio.StreamReader(), writer

    writer = Writer()
    monkeypatch.setattr(asyncio, "open_connection", connect)
    with pytest.raises(ConnectionResetError):
        await Client.send("http://127.0.0.1:1", "/", (), b"")
    assert writer.closed
