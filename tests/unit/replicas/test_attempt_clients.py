"""Both ways to the egress do the same for an attempt: whatever carries it, its listener hears the same."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extproc.replicas.attempt_client import AttemptRequest, ResponseHead
from tests.unit.replicas.scripted_egress import Listener, ScriptedEgress, scripted_egress


def request(body: bytes = b'{"stream": true}', *headers: tuple[str, str], method: str = "POST") -> AttemptRequest:
    return AttemptRequest(method=method, path="/v1/x?y=1", authority="gateway", headers=headers, body=body)


@pytest.fixture(params=["h1", "h2"])
async def egress(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ScriptedEgress]:
    async with scripted_egress(tmp_path, request.param) as egress:
        yield egress


async def test_the_request_arrives_as_it_is(egress: ScriptedEgress):
    said = request(b"{}", ("x-name", "\xe9\xe8"), ("x-name", "twice"), ("authorization", "Bearer a"))
    await egress.client.open(said, Listener())
    asked = await egress.asked.get()
    assert (asked.method, asked.path, asked.body, asked.header("host")) == ("POST", "/v1/x?y=1", b"{}", "gateway")
    assert [value for name, value in asked.headers if name == "x-name"] == ["\xe9\xe8", "twice"]
    assert (asked.header("authorization"), asked.header("content-length")) == ("Bearer a", "2")


async def test_a_request_without_a_body_says_so(egress: ScriptedEgress):
    await egress.client.open(request(b"", method="GET"), Listener())
    asked = await egress.asked.get()
    assert (asked.method, asked.body, asked.header("content-length")) == ("GET", b"", "0")


async def test_a_body_larger_than_every_window_arrives_whole(egress: ScriptedEgress):
    body = bytes(range(256)) * 12_000
    await egress.client.open(request(body), Listener())
    assert (await egress.asked.get()).body == body


async def test_the_answer_is_told_in_order(egress: ScriptedEgress):
    listener = Listener()
    await egress.client.open(request(), listener)
    asked = await egress.asked.get()
    asked.head(200, ("content-type", "text/event-stream"), ("x-name", "a"), ("x-name", "b"))
    asked.send(b"first")
    await listener.until_body(5)
    asked.send(b"second")
    asked.end()
    assert await listener.until_ended() is None
    head, *body, _ = listener.told
    assert isinstance(head, ResponseHead)
    assert head.status == 200
    assert [each for each in head.headers if each[0] != "transfer-encoding"] == [
        ("content-type", "text/event-stream"),
        ("x-name", "a"),
        ("x-name", "b"),
    ]
    assert body == [b"first", b"second"]


async def test_an_answer_without_a_body_ends_with_its_head(egress: ScriptedEgress):
    listener = Listener()
    await egress.client.open(request(), listener)
    (await egress.asked.get()).head(503, ("x-egress-flags", "UF"), end=True)
    assert await listener.until_ended() is None
    assert (listener.told[0].status, listener.told[0].get("x-egress-flags")) == (503, "UF")


@pytest.mark.parametrize(
    ("started", "where"), [(False, "before the response headers"), (True, "in the response body")], ids=["before head", "in body"]
)
async def test_a_replica_that_breaks_off_is_told_with_the_place(egress: ScriptedEgress, started: bool, where: str):
    listener = Listener()
    await egress.client.open(request(), listener)
    asked = await egress.asked.get()
    if started:
        asked.head()
        asked.send(b"a")
    asked.break_off()
    evidence = await listener.until_ended()
    assert evidence is not None
    assert evidence.endswith(where)
    assert listener.body == (b"a" if started else b"")


async def test_closing_breaks_the_exchange_off_and_nothing_more_is_told(egress: ScriptedEgress):
    listener = Listener()
    connection = await egress.client.open(request(), listener)
    asked = await egress.asked.get()
    asked.head()
    asked.send(b"a")
    await listener.until_body(1)
    told = list(listener.told)
    connection.close()
    connection.close()
    await asked.left.wait()
    assert listener.told == told


async def test_an_attempt_may_be_closed_from_what_it_is_told(egress: ScriptedEgress):
    class Leaver(Listener):
        def response_started(self, head: ResponseHead) -> None:
            super().response_started(head)
            connection.close()

    listener = Leaver()
    connection = await egress.client.open(request(), listener)
    asked = await egress.asked.get()
    asked.head()
    asked.send(b"a")
    await asked.left.wait()
    assert [type(each) for each in listener.told] == [ResponseHead]


async def test_a_closed_attempt_may_be_paused_and_resumed(egress: ScriptedEgress):
    listener = Listener()
    connection = await egress.client.open(request(), listener)
    asked = await egress.asked.get()
    connection.close()
    connection.pause_reading()
    connection.resume_reading()
    await asked.left.wait()
    assert listener.told == []


async def test_a_paused_attempt_is_told_little_and_then_everything(egress: ScriptedEgress):
    listener = Listener()
    connection = await egress.client.open(request(), listener)
    asked = await egress.asked.get()
    asked.head()
    asked.send(b"a")
    await listener.until_body(1)
    connection.pause_reading()
    feeding = asyncio.create_task(feed(asked, 40))
    other = Listener()
    await egress.client.open(request(), other)
    beside = await egress.asked.get()
    beside.head()
    beside.send(bytes(10))
    await other.until_body(10)
    assert len(listener.body) <= 262_144 + 1, "no more than one window"
    connection.resume_reading()
    await listener.until_body(40 * 16_000 + 1)
    await feeding


async def feed(asked: object, pieces: int) -> None:
    """16,000 bytes at a time, as far as windows allow."""
    for _ in range(pieces):
        protocol = getattr(asked.connection, "protocol", None)  # type: ignore[attr-defined]
        while protocol is not None and protocol.local_flow_control_window(asked.stream_id) < 16_000:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        asked.send(bytes(16_000))  # type: ignore[attr-defined]


async def test_envoys_own_end_is_told_late_enough_for_the_session_to_be_cancelled_first(
    egress: ScriptedEgress, monkeypatch: pytest.MonkeyPatch
):
    """FACTS C12. The wait is the loop's timer; here it is kept instead."""
    delayed = []
    loop = asyncio.get_running_loop()
    listener = Listener()
    await egress.client.open(request(), listener)
    asked = await egress.asked.get()
    lost = asyncio.Event()

    def call_later(delay: float, callback: object, *arguments: object) -> None:
        delayed.append((delay, callback, arguments))
        lost.set()

    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_later", call_later)
        asked.lose_connection()
        await lost.wait()
    assert listener.told == []
    ((delay, callback, arguments),) = delayed
    assert delay == 0.1
    callback(*arguments)  # type: ignore[operator]
    assert "before the response headers" in (await listener.until_ended() or "")


async def test_an_egress_that_is_not_there_is_an_oserror(egress: ScriptedEgress, tmp_path: Path):
    client = type(egress.client)(str(tmp_path / "nobody.sock"))  # type: ignore[call-arg]
    with pytest.raises(OSError, match="No such file"):
        await client.open(request(), Listener())


@pytest.mark.parametrize("field", [("x-name", "a\r\nx-other: b"), ("x-name", "a\0")])
async def test_a_header_that_would_end_its_line_is_refused(egress: ScriptedEgress, field: tuple[str, str]):
    with pytest.raises(ValueError, match=r"line break|can't be sent"):
        await egress.client.open(request(b"", field), Listener())


async def test_an_answer_before_the_request_has_ended_is_whole(egress: ScriptedEgress):
    """A replica refuses an upload that it has not read (RFC 9113 section 8.1)."""
    listener = Listener()
    if egress.protocol == "h1":
        pytest.skip("HTTP/1.1 has one body under way, which the socket takes")
    await egress.client.open(request(), Listener())
    connection = (await egress.asked.get()).connection
    await egress.client.open(request(bytes(1_000_000)), listener)
    while len(connection.exchanges) < 2:
        await asyncio.sleep(0)
    connection.exchanges[3].head(413, end=True)
    assert await listener.until_ended() is None
    await connection.exchanges[3].left.wait()


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "closed"])
async def test_an_exchange_that_is_over_is_in_no_circle(egress: ScriptedEgress, is_whole: bool):
    """Its memory is free at once, and the garbage collector, which stops every stream, has nothing to find."""
    gc.collect()
    gc.disable()
    try:
        listener = Listener()
        connection = await egress.client.open(request(), listener)
        asked = await egress.asked.get()
        asked.head(200)
        asked.send(b"first")
        await listener.until_body(5)
        gone = weakref.ref(listener)
        if is_whole:
            asked.end()
            await listener.until_ended()
        else:
            connection.close()
        del listener, connection
        while gone() is not None:  # the transport holds its protocol until it is closed
            await asyncio.sleep(0)
    finally:
        gc.enable()
