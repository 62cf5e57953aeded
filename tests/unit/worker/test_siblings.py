"""Several API server processes on one socket: what reaches the wrong one takes effect in the right one."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from extproc.contract import headers
from extproc.contract.guard import CANCEL_PATH_FORMAT, HEARTBEAT_PATH
from tests.unit.worker.guarded_replica import CHAT, TOKEN

SERVER = Path(__file__).parent / "sibling_server.py"
SECRET = {headers.TOKEN: TOKEN}


@dataclass(slots=True, kw_only=True)
class Siblings:
    """One session with a single kept connection per process, so that a test chooses whom it talks to."""

    url: str
    sessions: dict[int, aiohttp.ClientSession]
    stamps: dict[int, dict[str, str | int]] = field(default_factory=dict)
    responses: list[aiohttp.ClientResponse] = field(default_factory=list)

    async def begin(self, process: int, *, ttl_ms: int = 10_000) -> aiohttp.ClientResponse:
        """An attempt that ``process`` serves and that has published one chunk."""
        stamp = self.stamps[process]
        lease = {
            headers.ATTEMPT_ID: "att_1",
            headers.BOOT_ID: str(stamp["boot_id"]),
            headers.VALID_UNTIL_MS: str(int(stamp["now_ms"]) + ttl_ms),
        }
        response = await self.sessions[process].post(self.url + CHAT, headers=SECRET | lease)
        self.responses.append(response)
        if response.status == 200:
            assert await response.content.readany() == str(process).encode()
        return response

    async def renew_stamp(self, process: int) -> int:
        """The worker's clock as it is now: that of the fixture is as old as the other worker's start took."""
        async with self.sessions[process].post(self.url + HEARTBEAT_PATH, headers=SECRET, json={"leases": []}) as response:
            self.stamps[process] = await response.json()
        return int(self.stamps[process]["now_ms"])

    async def cancel(self, process: int) -> dict[str, str | int]:
        path = CANCEL_PATH_FORMAT.format(attempt_id="att_1")
        async with self.sessions[process].post(self.url + path, headers=SECRET) as response:
            assert response.status == 200
            answer: dict[str, str | int] = await response.json()
            return answer

    async def heartbeat(self, process: int, *, valid_until_ms: int) -> str:
        body = {"processor_id": "gateway-1", "leases": [{"attempt_id": "att_1", "valid_until_ms": valid_until_ms}]}
        async with self.sessions[process].post(self.url + HEARTBEAT_PATH, headers=SECRET, json=body) as response:
            return str((await response.json())["attempts"][0]["state"])


@pytest.fixture
async def siblings(tmp_path: Path) -> AsyncIterator[Siblings]:
    environment = os.environ | {"DELTAFENCE_TOKEN": TOKEN, "DELTAFENCE_STATE_DIR": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), stdout=asyncio.subprocess.PIPE, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(await process.stdout.readline())}"
        async with AsyncExitStack() as stack:
            sessions: dict[int, aiohttp.ClientSession] = {}
            while len(sessions) < 2:
                session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)))
                async with session.get(url) as response:
                    identity = int(await response.read())
                if identity in sessions:
                    continue
                sessions[identity] = session
            siblings = Siblings(url=url, sessions=sessions)
            for identity in sessions:
                await siblings.renew_stamp(identity)
            yield siblings
            for response in siblings.responses:
                response.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def test_siblings_share_one_boot_id(siblings: Siblings) -> None:
    first, second = siblings.stamps.values()
    assert first["boot_id"] == second["boot_id"]


async def test_cancel_through_a_sibling_stops_the_attempt(siblings: Siblings) -> None:
    owner, sibling = siblings.sessions
    response = await siblings.begin(owner)
    answer = await siblings.cancel(sibling)
    assert (answer["state"], answer["published_chunks"]) == ("stopped", 1)
    with pytest.raises(aiohttp.ClientPayloadError):
        await response.read()


async def test_tombstone_bars_arrival_at_a_sibling(siblings: Siblings) -> None:
    first, second = siblings.sessions
    assert (await siblings.cancel(first))["state"] == "never_started"
    refused = await siblings.begin(second)
    assert (refused.status, (await refused.json())["refusal"]) == (409, "tombstoned")


async def test_attempt_is_served_by_one_of_them_only(siblings: Siblings) -> None:
    first, second = siblings.sessions
    await siblings.begin(first)
    refused = await siblings.begin(second)
    assert (refused.status, (await refused.json())["refusal"]) == (409, "duplicate_attempt")


async def test_renewal_through_a_sibling_keeps_the_attempt(siblings: Siblings) -> None:
    """The lease first granted ends while the attempt runs; only the renewal, which the other process got, can keep it."""
    owner, sibling = siblings.sessions
    granted_ms = await siblings.renew_stamp(owner)
    await siblings.begin(owner, ttl_ms=8_000)
    assert await siblings.heartbeat(sibling, valid_until_ms=granted_ms + 50_000) == "running"
    now_ms = granted_ms
    while now_ms <= granted_ms + 8_100:  # a look at the worker's own clock, not at ours
        now_ms = await siblings.renew_stamp(sibling)
    assert await siblings.heartbeat(sibling, valid_until_ms=0) == "running"


async def test_cancel_of_an_attempt_whose_process_died_is_acknowledged(siblings: Siblings) -> None:
    owner, sibling = siblings.sessions
    response = await siblings.begin(owner)
    os.kill(owner, signal.SIGKILL)
    with pytest.raises(aiohttp.ClientPayloadError):
        await response.read()
    assert (await siblings.cancel(sibling))["state"] == "stopped"
