"""What only the way with a connection an attempt has to look after; the rest is in test_attempt_clients.py."""

import asyncio
from pathlib import Path

import pytest

from extproc.replicas.attempt_client import AttemptRequest, ResponseHead
from extproc.replicas.http1_attempt_client import Http1AttemptClient
from tests.unit.replicas.scripted_egress import Listener

LARGE = b"x" * 8_000_000


@pytest.mark.parametrize(
    ("answer", "broken"),
    [
        (b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nno", True),
    ],
    ids=["whole", "cut"],
)
async def test_en_12_an_answer_that_came_before_the_write_failed_is_read(tmp_path: Path, answer: bytes, broken: bool) -> None:
    """The egress answers a request that it has not read to its end, and closes; the client was not reading just then."""
    is_paused = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await is_paused.wait()
        writer.write(answer)
        await writer.drain()
        writer.transport.abort()

    path = str(tmp_path / "egress.sock")
    server = await asyncio.start_unix_server(serve, path)
    listener = Listener()
    request = AttemptRequest(method="POST", path="/", authority="g", headers=(), body=LARGE)
    connection = await Http1AttemptClient(path).open(request, listener)
    connection.pause_reading()
    is_paused.set()

    ending = await listener.until_ended()
    assert (ending is not None) == broken
    head, *body, _ = listener.told
    assert isinstance(head, ResponseHead)
    assert b"".join(body) == b"no"
    server.close()
    await server.wait_closed()
