"""What the README's first screen shows is what its commands print."""

import asyncio
import sys

import pytest

from extproc.links.listening import free_ports
from extproc.sim.process import start_replica
from extproc.sim.settings import Settings
from tests.docs.pages import ROOT, commands
from tests.docs.typing_shell import shell

README = {command.line.split("#")[0].strip(): command.output for command in commands(ROOT / "README.md")}


@pytest.mark.timeout(300)  # it waits for leases and restarts replicas: half a minute on an idle machine
async def test_demo_prints_the_rows_that_the_readme_shows() -> None:
    shown = [row for row in README["make demo"].splitlines() if row and row != "..."]
    assert len(shown) > 5
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc.app", "demo"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    printed = out.decode()
    assert process.returncode == 0, printed + err.decode()
    places = [printed.find(row) for row in shown]
    assert -1 not in places, printed
    assert "NOT OK" not in printed


async def test_gateway_and_first_request_of_the_readme(tmp_path) -> None:
    (up,) = [line for line in README if ".venv/bin/deltafence up" in line]
    (curl,) = [line for line in README if line.startswith("curl ")]
    front, admin = free_ports(2)
    async with (
        start_replica(Settings(name="a", model="my-model")) as a,
        start_replica(Settings(name="b", model="my-model")) as b,
        shell(tmp_path) as typed,
    ):
        up = up.replace(":8001", f":{a.port}").replace(":8002", f":{b.port}").replace(".venv/bin/", "")
        await typed.type(f"{up} --listen 127.0.0.1:{front} --admin 127.0.0.1:{admin} > out 2> log & GATEWAY=$!")
        await typed.type("until grep -q ready out; do kill -0 $GATEWAY || break; sleep 0.1; done")
        (said,) = [output for line, output in README.items() if "deltafence up" in line]
        assert await typed.type("cat out") == said.strip().replace("8080", str(front)) + "\n"
        assert "data: [DONE]" in await typed.type(curl.replace(":8080", f":{front}").replace("curl -N", "curl -sN"))
