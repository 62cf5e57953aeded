"""The tutorial, typed into a shell line by line, prints what it says (ports are other ones, so that it can run anywhere)."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.docs.pages import DOCS, ROOT, Command, commands

LIMIT_S = 60.0
PORTS = (8001, 8002, 8080, 9090)
ASKED_WITHOUT_OPTIONS = {8080: "--listen", 9090: "--admin"}


class Shell:
    """One bash that lives through the whole page."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def type(self, line: str) -> str:
        """What a line prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\necho __END__$?\n".encode())
        await self._process.stdin.drain()
        printed = ""
        async with asyncio.timeout(LIMIT_S):
            while "__END__" not in printed:
                piece = await self._process.stdout.readline()
                assert piece, f"the shell ended at {line!r} after {printed!r}"
                printed += piece.decode()
        return printed.partition("__END__")[0]


@asynccontextmanager
async def shell(directory: Path) -> AsyncIterator[Shell]:
    process = await asyncio.create_subprocess_exec(
        "bash",
        "--norc",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=directory,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        yield Shell(process)
    finally:
        os.killpg(process.pid, 9)
        await process.wait()


def on_other_ports(text: str, ports: dict[int, int]) -> str:
    for port, other in ports.items():
        text = re.sub(rf"\b{port}\b", str(other), text)
    return text


def with_other_defaults(line: str, ports: dict[int, int]) -> str:
    """The commands whose defaults are the page's ports are told the others."""
    line = line.replace("deltafence up ", f"deltafence up --listen 127.0.0.1:{ports[8080]} --admin 127.0.0.1:{ports[9090]} ")
    return line.replace("deltafence top ", f"deltafence top --admin http://127.0.0.1:{ports[9090]} ")


def matches(command: Command, printed: str) -> bool:
    """Every line of the page's output in order; ``…`` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in command.output.split("…"))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


async def test_every_command_of_the_tutorial_prints_what_the_page_says(tmp_path, unused_tcp_port_factory) -> None:
    ports = {port: unused_tcp_port_factory() for port in PORTS}
    page = list(commands(DOCS / "tutorial.md"))
    assert len(page) > 15
    async with shell(tmp_path) as typed:
        for command in page:
            command = Command(on_other_ports(command.line, ports), on_other_ports(command.output, ports))
            printed = await typed.type(with_other_defaults(command.line, ports))
            assert matches(command, printed), f"$ {command.line}\n{printed}\ninstead of\n{command.output}"
