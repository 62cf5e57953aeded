"""How attempts share connections, and what ends one of them or all."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.replicas.attempt_client import AttemptRequest
from extproc.replicas.http2_attempt_client import RESETS_PER_CONNECTION, STREAMS_PER_CONNECTION, Http2AttemptClient
from tests.unit.http2.probe import GOAWAY, SETTINGS, WINDOW_UPDATE, number, raw
from tests.unit.replicas.scripted_egress import Asked, Listener, ScriptedEgress, scripted_egress

GOING_AWAY = raw(GOAWAY, 0, 0, number(1) + number(0))
"""Stream 1 was looked at, and no other."""
REQUEST = AttemptRequest(method="POST", path="/", authority="gateway", headers=(("x-padded", " a "),), body=b"{}")


@pytest.fixture
async def egress(tmp_path: Path) -> AsyncIterator[ScriptedEgress]:
    async with scripted_egress(tmp_path, "h2") as egress:
        yield egress


async def answered(egress: ScriptedEgress) -> Asked:
    """One attempt from its beginning to its end."""
    listener = Listener()
    await egress.client.open(REQUEST, listener)
    asked = await egress.asked.get()
    asked.head(end=True)
    assert await listener.until_ended() is None
    return asked


def links(egress: ScriptedEgress) -> list[int]:
    """How many attempts each open connection carries."""
    assert isinstance(egress.client, Http2AttemptClient)
    return sorted(link.attempts for link in egress.client._links)


async def until(condition: object) -> None:
    for _ in range(1000):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0)
    raise AssertionError("never happened")


async def test_attempts_follow_each_other_on_one_connection(egress: ScriptedEgress):
    first, second = await answered(egress), await answered(egress)
    assert first.connection is second.connection
    assert (first.stream_id, second.stream_id) == (1, 3)
    assert first.header("x-padded") == "a"


async def test_attempts_that_begin_together_share_the_connection_that_the_first_opens(egress: ScriptedEgress):
    await asyncio.gather(*(egress.client.open(REQUEST, Listener()) for _ in range(STREAMS_PER_CONNECTION)))
    assert links(egress) == [STREAMS_PER_CONNECTION]
    assert len(egress.connections) == 1


async def test_full_connections_are_joined_by_another_and_the_fullest_with_room_is_used(egress: ScriptedEgress):
    attempts = [await egress.client.open(REQUEST, Listener()) for _ in range(STREAMS_PER_CONNECTION + 2)]
    assert links(egress) == [2, STREAMS_PER_CONNECTION]
    for attempt in attempts[:3]:
        attempt.close()
    await egress.client.open(REQUEST, Listener())
    assert links(egress) == [2, STREAMS_PER_CONNECTION - 2]


async def test_a_connection_on_which_many_were_left_gets_no_more_and_closes_with_its_last(egress: ScriptedEgress):
    """Envoy would end it with everything on it, if clients that leave made us reset twice as many."""
    staying = Listener()
    await egress.client.open(REQUEST, staying)
    stays = await egress.asked.get()
    for _ in range(RESETS_PER_CONNECTION):
        (await egress.client.open(REQUEST, Listener())).close()
    assert len(egress.connections) == 1
    other = await answered_elsewhere(egress)
    assert other.connection is not stays.connection
    stays.head(end=True)
    assert await staying.until_ended() is None
    await until(lambda: stays.connection.transport.is_closing())
    assert links(egress) == [0]


async def answered_elsewhere(egress: ScriptedEgress) -> Asked:
    listener = Listener()
    await egress.client.open(REQUEST, listener)
    while (asked := await egress.asked.get()).left.is_set() or asked.connection is egress.connections[0]:
        pass
    asked.head(end=True)
    assert await listener.until_ended() is None
    return asked


async def test_one_connection_is_kept_for_the_next_attempt_and_no_more(egress: ScriptedEgress):
    attempts = [await egress.client.open(REQUEST, Listener()) for _ in range(STREAMS_PER_CONNECTION + 1)]
    for attempt in attempts:
        attempt.close()
    await until(lambda: len(links(egress)) <= 1)


async def test_an_envoy_that_goes_away_gets_no_new_attempts_and_ends_its_own(egress: ScriptedEgress):
    listener = Listener()
    await egress.client.open(REQUEST, listener)
    asked = await egress.asked.get()
    asked.connection.transport.write(GOING_AWAY)
    await until(lambda: not next(iter(egress.client._links)).takes_attempts)
    other = await answered(egress)
    assert other.connection is not asked.connection


async def test_a_stream_that_envoy_has_not_looked_at_is_told_as_refused(egress: ScriptedEgress):
    first, second = Listener(), Listener()
    await egress.client.open(REQUEST, first)
    await egress.client.open(REQUEST, second)
    asked = await egress.asked.get()
    asked.connection.transport.write(GOING_AWAY)
    evidence = await second.until_ended()
    assert evidence == "stream the peer is going away (NO_ERROR) before the response headers"
    assert not first.ended


async def test_a_lost_connection_ends_all_its_attempts_and_no_others(egress: ScriptedEgress):
    listeners = [Listener() for _ in range(STREAMS_PER_CONNECTION + 1)]
    for listener in listeners:
        await egress.client.open(REQUEST, listener)
    asked = [await egress.asked.get() for _ in listeners]
    asked[0].lose_connection()
    for listener in listeners[:-1]:
        evidence = await listener.until_ended()
        assert evidence is not None
        assert evidence.startswith("connection ")
    assert not listeners[-1].ended
    assert (await answered(egress)).connection is egress.connections[1]


async def test_an_egress_that_speaks_no_http2_is_told_with_the_reason(tmp_path: Path):
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()

    path = str(tmp_path / "egress.sock")
    server = await asyncio.start_unix_server(speak, path)
    listener = Listener()
    await Http2AttemptClient(path).open(REQUEST, listener)
    evidence = await listener.until_ended()
    assert evidence is not None
    assert evidence.startswith("FRAME_SIZE_ERROR")
    server.close()


async def test_an_egress_that_breaks_a_rule_and_never_reads_ends_its_attempts(tmp_path: Path):
    """The request's rest waits in the transport for ever; the attempt doesn't wait with it."""
    much_room = raw(SETTINGS, 0, 0, b"\0\4" + number(2**30)) + raw(WINDOW_UPDATE, 0, 0, number(2**30))
    fault = raw(WINDOW_UPDATE, 0, 0, number(0))
    asked, over = asyncio.Event(), asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(much_room)
        await asked.wait()
        writer.write(fault)
        await over.wait()
        writer.transport.abort()

    path = str(tmp_path / "egress.sock")
    server = await asyncio.start_unix_server(speak, path)
    client = Http2AttemptClient(path)
    listener = Listener()
    await client.open(replace(REQUEST, body=bytes(8 << 20)), listener)
    (link,) = client._links
    while link.is_writable.is_set():
        await asyncio.sleep(0.001)
    asked.set()
    evidence = await listener.until_ended()
    assert evidence == "PROTOCOL_ERROR: WINDOW_UPDATE by 0 before the response headers"
    assert not client._links
    over.set()
    server.close()


async def test_trailers_end_an_answer(egress: ScriptedEgress):
    listener = Listener()
    await egress.client.open(REQUEST, listener)
    asked = await egress.asked.get()
    asked.head()
    asked.connection.protocol.send_headers(asked.stream_id, [("x-end", "1")], end_stream=True)
    asked.connection.flush()
    assert await listener.until_ended() is None


async def test_closing_the_client_closes_its_connections(egress: ScriptedEgress):
    listener = Listener()
    await egress.client.open(REQUEST, listener)
    asked = await egress.asked.get()
    assert isinstance(egress.client, Http2AttemptClient)
    egress.client.close()
    await asked.left.wait()
