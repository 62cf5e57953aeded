"""A gateway of two processes: any one of its pages speaks for both, and each has metrics of its own (Prometheus adds up)."""

import asyncio
import re
from typing import Any

import httpx

from extproc.contract.headers import REQUEST_ID
from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import start_replica
from extproc.sim.settings import Settings
from tests.telemetry.running import running

WHY = "Because part of it was delivered, the request was not repeated."
ENDED = re.compile(r"^deltafence_requests_total\{[^}]*\} ([0-9.]+)$", re.MULTILINE)


async def served(client: httpx.AsyncClient, page: str) -> int:
    return sum(int(float(number)) for number in ENDED.findall((await client.get(f"{page}/metrics")).text))


async def status_of_all(client: httpx.AsyncClient, page: str) -> dict[str, Any]:
    """A page's status, once every process has answered it: a page does not wait long for the others."""
    while (status := (await client.get(f"{page}/deltafence/v1/status")).json())["processes"]["silent"]:
        await asyncio.sleep(0.05)
    return status


async def until_told(client: httpx.AsyncClient, url: str, words: str) -> None:
    while words not in (await client.get(url)).text:
        await asyncio.sleep(0.05)


async def test_any_process_tells_of_all_requests_and_every_process_is_scraped(tmp_path) -> None:
    async with start_replica(Settings(tokens=4)) as replica:
        options = ("--replica", replica.url, "--processors", 2, "--journal", tmp_path / "journal.db")
        async with running(*options, directory=tmp_path) as gateway, httpx.AsyncClient(timeout=30) as client:
            pages = re.findall(r"(http://[0-9.:]+)/metrics", gateway.log.read_text())
            assert len(pages) == 2
            assert pages[0] == gateway.admin
            count = 0
            async with asyncio.timeout(60):  # Envoy chooses the process at random
                while count < 2 or not all([await served(client, page) for page in pages]):
                    await gateway.chat()
                    count += 1
            await replica.set_faults(Fault(where=Where.MID_DECODE, what=What.RESET, times=1, deltas=2, header=REQUEST_ID))
            broken = await gateway.chat()
            request_id = broken.headers["x-deltafence-request-id"]

            async with asyncio.timeout(60):
                while sum([await served(client, page) for page in pages]) != count + 1:
                    await asyncio.sleep(0.05)
                for page in pages:
                    status = await status_of_all(client, page)
                    assert status["processes"] == {"answering": 2, "silent": []}
                    assert status["ended"] == {"completed": count, "interrupted": 1}
                    await until_told(client, f"{page}/?refresh=off", request_id)
                    await until_told(client, f"{page}/requests/{request_id}", WHY)  # stored a moment later: nobody waits for it
