"""``--api-server-count 2``: a cancel or a renewal that reaches the API server process which does not serve the attempt
takes effect."""

import asyncio
import http.client
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from extproc.contract import headers
from extproc.contract.guard import CANCEL_PATH_FORMAT, FACTS_PATH, HEARTBEAT_PATH
from tests.real_vllm.conftest import ENVIRONMENT
from tests.real_vllm.server import CHAT, MODEL, SECRET, VllmServer, chat, served

CONNECTIONS_MAX = 200
ACCEPT_DEADLINE_S = 60
TTL_MS = 10_000
"""Time enough for an attempt's first byte and a renewal, whatever else the machine does."""


@pytest.fixture(scope="module")
def two_processes(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with served(model, tmp_path_factory.mktemp("vllm"), ENVIRONMENT, "--api-server-count", "2") as server:
        yield server


class Visitor:
    """A connection to one API server process. uvicorn keeps one that has asked nothing yet for as long as it is wanted."""

    def __init__(self, server: VllmServer) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.close = self.connection.close
        self.connection.connect()
        self.process = owner_of(self.connection.sock.getsockname()[1], server.port)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = json.dumps(body).encode() if body is not None else None
        self.connection.request(method, path, body=content, headers=SECRET)
        answer = self.connection.getresponse().read()
        return dict(json.loads(answer)) if answer else {}


def owner_of(client_port: int, server_port: int) -> int:
    """The process that holds the server's end of a loopback connection, once one has accepted it (proc_net(5))."""
    deadline = time.monotonic() + ACCEPT_DEADLINE_S
    while time.monotonic() < deadline:
        if (inode := inode_of(client_port, server_port)) and (owner := holder_of(f"socket:[{inode}]")):
            return owner
        time.sleep(0.02)
    raise AssertionError(f"nobody holds the connection from port {client_port}")


def inode_of(client_port: int, server_port: int) -> int:
    """Of the server's end of a connection; 0 as long as nobody has accepted it."""
    ends = (f"0100007F:{server_port:04X}", f"0100007F:{client_port:04X}")
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return next((int(row[9]) for row in rows if (row[1], row[2]) == ends), 0)


def holder_of(opened: str) -> int | None:
    """The process that has it open."""
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(descriptor) == opened:
                return int(descriptor.parts[2])
        except OSError:
            continue  # it ended while we looked
    return None


@contextmanager
def visiting_each(server: VllmServer) -> Iterator[dict[int, Visitor]]:
    """One for each of the two processes; which one accepts a connection is the kernel's choice, so it may take several."""
    with ExitStack() as opened:
        found: dict[int, Visitor] = {}
        for _ in range(CONNECTIONS_MAX):
            visitor = opened.enter_context(closing(Visitor(server)))
            found.setdefault(visitor.process, visitor)
            if len(found) == 2:
                yield found
                return
        raise AssertionError(f"every connection was accepted by one process: {list(found)}")


async def start(
    server: VllmServer, session: aiohttp.ClientSession, attempt_id: str, *, ttl_ms: int
) -> tuple[aiohttp.ClientResponse, int]:
    """An attempt that streams, and the process that serves it."""
    lease = await server.lease(session, attempt_id, ttl_ms=ttl_ms)
    response = await session.post(server.url + CHAT, headers=lease, json=chat(max_tokens=30_000))
    assert response.status == 200, await response.text()
    await response.content.readline()
    assert response.connection is not None
    assert response.connection.transport is not None
    client_port = response.connection.transport.get_extra_info("sockname")[1]
    return response, owner_of(client_port, server.port)


def other_than(process: int, visitors: dict[int, Visitor]) -> Visitor:
    (other,) = (visitor for visitor in visitors.values() if visitor.process != process)
    return other


@pytest.fixture
async def visitors(two_processes: VllmServer, session: aiohttp.ClientSession) -> AsyncIterator[dict[int, Visitor]]:
    """A visitor for each process, connected before any lease begins to run."""
    await two_processes.wait_until_ready(session)
    with visiting_each(two_processes) as visitors:
        yield visitors


async def test_cancel_through_the_other_process_frees_the_slot(
    two_processes: VllmServer, session: aiohttp.ClientSession, visitors: dict[int, Visitor]
) -> None:
    response, process = await start(two_processes, session, "att_1", ttl_ms=60_000)
    path = CANCEL_PATH_FORMAT.format(attempt_id="att_1")
    answer = await asyncio.to_thread(other_than(process, visitors).ask, "POST", path)
    assert (answer["state"], answer["boot_id"]) == ("stopped", response.headers[headers.BOOT_ID])
    with pytest.raises(aiohttp.ClientPayloadError):
        await response.read()
    await two_processes.wait_until_running(session, 0)


async def test_renewal_through_the_other_process_keeps_the_attempt(
    two_processes: VllmServer, session: aiohttp.ClientSession, visitors: dict[int, Visitor]
) -> None:
    response, process = await start(two_processes, session, "att_2", ttl_ms=TTL_MS)
    granted_ms = int(response.headers[headers.NOW_MS])
    renewal = {"processor_id": "test", "leases": [{"attempt_id": "att_2", "valid_until_ms": granted_ms + 50_000}]}
    answer = await asyncio.to_thread(other_than(process, visitors).ask, "POST", HEARTBEAT_PATH, renewal)
    assert answer["attempts"][0]["state"] == "running"
    # Read on until the worker's own clock is past the first lease.
    while (await two_processes.stamp(session))["now_ms"] < granted_ms + TTL_MS + 500:
        assert await response.content.readline()
    assert (await two_processes.cancel(session, "att_2"))["state"] == "stopped"
    response.close()


async def test_every_process_tells_what_the_command_line_says(visitors: dict[int, Visitor]) -> None:
    facts = [visitor.ask("GET", FACTS_PATH)["facts"] for visitor in visitors.values()]
    assert facts[0] == facts[1]
    assert facts[0]["model"] == MODEL
