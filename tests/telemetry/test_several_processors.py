"""A gateway of two processes: any one of its pages speaks for both, and each has metrics of its own (Prometheus adds up)."""

import asyncio
import re

import httpx

from extproc.contract.headers import REQUEST_ID
from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import start_replica
from extproc.sim.settings import Settings
from tests.telemetry.running import running

WHY = "Because part of it was delivered, the request was not repeated."
ENDED = re.compile(r"^deltafence_requests_total\{[^}]*\} ([0-9.]+)$", re.MULTILINE)


async def served(admin: str) -> int:
    async with httpx.AsyncClient() as client:
        return sum(int(float(number)) for number in ENDED.findall((await client.get(f"{admin}/metrics")).text))


async def test_any_process_tells_of_all_requests_and_every_process_is_scraped(tmp_path) -> None:
    async with start_replica(Settings(tokens=4)) as replica:
        options = ("--replica", replica.url, "--processors", 2, "--journal", tmp_path / "journal.db")
        async with running(*options, directory=tmp_path) as gateway, httpx.AsyncClient(timeout=30) as client:
            pages = re.findall(r"(http://[0-9.:]+)/metrics", gateway.log.read_text())
            assert len(pages) == 2
            assert pages[0] == gateway.admin
            count = 0
            async with asyncio.timeout(60):  # Envoy chooses the process at random
                while count < 2 or not all([await served(page) for page in pages]):
                    await gateway.chat()
                    count += 1
            await replica.set_faults(Fault(where=Where.MID_DECODE, what=What.RESET, times=1, deltas=2, header=REQUEST_ID))
            broken = await gateway.chat()
            request_id = broken.headers["x-deltafence-request-id"]

            assert sum([await served(page) for page in pages]) == count + 1
            for page in pages:
                status = (await client.get(f"{page}/deltafence/v1/status")).json()
                assert status["processes"] == {"answering": 2, "silent": []}
                assert status["ended"] == {"completed": count, "interrupted": 1}
                assert request_id in (await client.get(f"{page}/?refresh=off")).text
                async with asyncio.timeout(30):  # what nobody waits for is stored a moment later
                    while WHY not in (await client.get(f"{page}/requests/{request_id}")).text:
                        await asyncio.sleep(0.05)
