"""Looks over aiohttp on real sockets: every way in which an answer can come or fail is one outcome."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from extproc.decision.looks import BODY_BYTES_MAX, Look, Outcome
from extproc.replicas.health_reader import HealthReader, new_session
from tests.unit.scripted_replica import ScriptedReplica, answer, idle_replica


@pytest.fixture
async def reader() -> AsyncIterator[HealthReader]:
    async with new_session() as session:
        yield HealthReader(session=session, api_key="secret")


async def take(reader: HealthReader, url: str, look: Look = Look.METRICS, timeout_ms: int = 5_000):
    return await reader.take(url, look, model="m", timeout_ms=timeout_ms)


async def test_each_look_reads_its_own_answer(reader: HealthReader):
    async with idle_replica().serving() as replica:
        page = (await take(reader, replica.url)).page
        assert page is not None
        assert page.in_flight == 0
        assert (await take(reader, replica.url, Look.MODELS)).models == 1
        assert (await take(reader, replica.url, Look.HEALTH)).status == 200
        assert (await take(reader, replica.url, Look.PAUSED)).status == 404
        assert (await take(reader, replica.url, Look.SHORT_ANSWER)).is_ok
        assert replica.asked == ["GET /metrics", "GET /v1/models", "GET /health", "GET /is_paused", "POST /v1/completions"]
        assert b'"max_tokens": 1' in replica.bodies[-1]
        with_key = [head.split(" ")[1] for head in replica.heads if "bearer secret" in head.lower()]
        assert with_key == ["/v1/models", "/v1/completions"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * (BODY_BYTES_MAX + 1),
    ],
)
async def test_an_answer_that_is_not_whole_is_closed(reader: HealthReader, raw: bytes):
    async with ScriptedReplica(pages={"/metrics": raw}).serving() as replica:
        assert (await take(reader, replica.url)).outcome is Outcome.CLOSED


async def test_a_redirect_is_not_followed(reader: HealthReader):
    async with ScriptedReplica(
        pages={"/metrics": b"HTTP/1.1 302 F\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"}
    ).serving() as replica:
        assert (await take(reader, replica.url)).status == 302
        assert replica.asked == ["GET /metrics"]


async def test_silence_is_a_read_timeout_and_is_broken_off(reader: HealthReader):
    async with ScriptedReplica(pages={"/metrics": None}).serving() as replica:
        assert (await take(reader, replica.url, timeout_ms=1_000)).outcome is Outcome.READ_TIMEOUT
        await replica.until_quiet()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nobody_listening_is_refused(reader: HealthReader, host: str):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert (await take(reader, f"http://{host}:{port}")).outcome is Outcome.REFUSED


async def test_a_full_backlog_is_no_connection_in_time(reader: HealthReader):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        blockers = [socket.socket() for _ in range(8)]
        for blocker in blockers:
            blocker.setblocking(False)
            blocker.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        assert (await take(reader, url, timeout_ms=200)).outcome is Outcome.CONNECT_TIMEOUT
        for blocker in blockers:
            blocker.close()


@pytest.mark.parametrize("url", ["http://no-such-host.invalid:1", "http://:x"])
async def test_no_such_address_is_unreachable(reader: HealthReader, url: str):
    observation = await take(reader, url)
    assert (observation.outcome, bool(observation.detail)) == (Outcome.UNREACHABLE, True)


async def test_cancelling_breaks_off_at_once(reader: HealthReader):
    async with ScriptedReplica(pages={"/metrics": None}).serving() as replica:
        looking = asyncio.create_task(take(reader, replica.url))
        await replica.until_asked("/metrics")
        looking.cancel()
        await replica.until_left("/metrics")
        with pytest.raises(asyncio.CancelledError):
            await looking


async def test_each_look_has_its_own_connection(reader: HealthReader):
    async with ScriptedReplica(pages={"/health": answer()}).serving() as replica:
        for _ in range(3):
            assert (await take(reader, replica.url, Look.HEALTH)).is_ok
