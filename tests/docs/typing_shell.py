"""A shell that commands of a page are typed into."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.docs.pages import ROOT

LIMIT_S = 60.0


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
