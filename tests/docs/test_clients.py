"""The code for client authors, run as it stands on the page: against a replica that answers, and against one that breaks."""

import asyncio
import os
import sys

import pytest

from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import start_replica
from extproc.sim.settings import Settings
from tests.docs.pages import DOCS, blocks
from tests.telemetry.running import running

PROGRAMS = dict(zip(("openai", "anthropic"), blocks(DOCS / "clients.md", "python"), strict=True))
BROKEN = Fault(where=Where.MID_DECODE, what=What.RESET, deltas=3)


async def run(program: str, gateway: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", program),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "GATEWAY": gateway},
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.parametrize("sdk", PROGRAMS)
async def test_code_of_the_page_tells_partial_from_complete(tmp_path, sdk: str) -> None:
    async with (
        start_replica(Settings(tokens=6)) as replica,
        running("--replica", replica.url, directory=tmp_path) as gateway,
    ):
        whole = await run(PROGRAMS[sdk], gateway.front)
        await replica.set_faults(BROKEN)
        partial = await run(PROGRAMS[sdk], gateway.front)
    assert whole.startswith("complete: r1:0 r1:1 r1:2 r1:3 r1:4 r1:5")
    first, second = partial.splitlines()
    assert first.startswith("partial: r1:0 r1:1")
    assert "r1:5" not in first
    assert second.startswith("tokens: 3 request: req_")
