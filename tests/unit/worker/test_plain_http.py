"""The probe's HTTP exchange on real sockets: every way in which an answer can come or fail."""

import asyncio
import socket
import ssl

import pytest

from extproc.decision.looks import BODY_BYTES_MAX, Look, LookRequest, Outcome, request_for
from extproc.worker.plain_http import ExchangeError, Target, exchange, tls_context
from tests.unit.scripted_replica import ScriptedReplica, answer

GET = LookRequest(method="GET", path="/x")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def ask(target: Target, request: LookRequest = GET, *, total_ms: int = 5_000) -> tuple[int, bytes]:
    return await exchange(target, request, connect_ms=2_000, total_ms=total_ms)


async def ask_for(raw: bytes | None, **how: int) -> tuple[int, bytes]:
    async with ScriptedReplica(pages={"/x": raw}).serving() as replica:
        return await ask(Target.parse(replica.url), **how)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (answer(b"hello"), (200, b"hello")),
        (answer(b"", 503), (503, b"")),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", (200, b"to the end")),
        (CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: 1\r\n\r\n", (200, b"abcde")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"hi"), (200, b"hi")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
    ],
)
async def test_every_framing_of_an_answer_is_read(raw: bytes, expected: tuple[int, bytes]):
    assert await ask_for(raw) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1),
        CHUNKED + b"zz\r\n",
        CHUNKED + b"%x\r\n" % (BODY_BYTES_MAX + 1),
        CHUNKED + b"5\r\nab",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * (BODY_BYTES_MAX + 1),
    ],
)
async def test_an_answer_that_is_not_whole_is_closed(raw: bytes):
    with pytest.raises(ExchangeError) as failure:
        await ask_for(raw)
    assert failure.value.outcome is Outcome.CLOSED


async def test_silence_is_a_read_timeout_and_the_connection_is_broken_off():
    async with ScriptedReplica(pages={"/x": None}).serving() as replica:
        with pytest.raises(ExchangeError) as failure:
            await ask(Target.parse(replica.url), total_ms=200)
        assert failure.value.outcome is Outcome.READ_TIMEOUT
        await replica.until_quiet()


async def test_a_cancelled_exchange_breaks_its_connection_off():
    async with ScriptedReplica(pages={"/x": None}).serving() as replica:
        asking = asyncio.create_task(ask(Target.parse(replica.url)))
        await replica.until_asked("/x")
        asking.cancel()
        await replica.until_left("/x")
        with pytest.raises(asyncio.CancelledError):
            await asking


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nobody_listening_is_refused(host: str):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ExchangeError) as failure:
        await ask(Target.parse(f"http://{host}:{port}"))
    assert failure.value.outcome is Outcome.REFUSED


async def test_a_full_backlog_is_no_connection_in_time():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        blockers = [socket.socket() for _ in range(8)]
        for blocker in blockers:
            blocker.setblocking(False)
            blocker.connect_ex(full.getsockname())
        target = Target.parse(f"http://127.0.0.1:{full.getsockname()[1]}")
        with pytest.raises(ExchangeError) as failure:
            await exchange(target, GET, connect_ms=50, total_ms=5_000)
        assert failure.value.outcome is Outcome.CONNECT_TIMEOUT
        for blocker in blockers:
            blocker.close()


async def test_an_unknown_name_is_unreachable():
    with pytest.raises(ExchangeError) as failure:
        await ask(Target.parse("http://no-such-host.invalid:1"))
    assert failure.value.outcome is Outcome.UNREACHABLE


async def test_a_plain_server_behind_https_is_unreachable():
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        target = Target.parse(f"https://127.0.0.1:{port}", tls=tls_context(ca_file=None, insecure=True))
        with pytest.raises(ExchangeError) as failure:
            await ask(target)
        assert failure.value.outcome is Outcome.UNREACHABLE


async def test_the_key_goes_to_v1_paths_only():
    async with ScriptedReplica(pages={}).serving() as replica:
        target = Target.parse(replica.url, api_key="secret")
        for look in Look:
            await ask(target, request_for(look, "m"))
        with_key = [head.split(" ")[1] for head in replica.heads if "authorization: Bearer secret" in head]
        assert with_key == ["/v1/models", "/v1/completions"]
        assert all(f"host: 127.0.0.1:{replica.port}\r\n" in head for head in replica.heads)
        assert b'"max_tokens": 1' in replica.bodies[-1]


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://a", "a:80"),
        ("http://a:8000/", "a:8000"),
        ("https://a", "a:443"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_targets_are_read(url: str, authority: str):
    target = Target.parse(url)
    assert (target.authority, target.tls is not None) == (authority, url.startswith("https"))


@pytest.mark.parametrize("url", ["", "a:8000", "ftp://a", "http://", "http://a/x", "http://a?x", "http://u@a", "http://a:99999"])
def test_other_targets_are_refused(url: str):
    with pytest.raises(ValueError, match=r"."):
        Target.parse(url)


def test_insecure_skips_verification_and_nothing_else_does():
    assert tls_context(ca_file=None, insecure=True).verify_mode is ssl.CERT_NONE
    assert tls_context(ca_file=None, insecure=False).verify_mode is ssl.CERT_REQUIRED
