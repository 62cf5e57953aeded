"""``deltafence up`` as a process of its own, for tests of what it tells."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

PATH = "/v1/chat/completions"


@dataclass(frozen=True, kw_only=True)
class Running:
    """One gateway: clients connect to ``front``, people and Prometheus to ``admin``."""

    process: asyncio.subprocess.Process
    front: str
    admin: str
    log: Path

    async def stop(self) -> None:
        """Drain and end, so that everything is written. Fails where the end is not a clean one."""
        if self.process.returncode is None:
            self.process.terminate()
        assert await self.process.wait() == 0, self.log.read_text()[-4000:]

    async def scrape_once(self, expected: str) -> str:
        """What Prometheus reads, once ``expected`` is in it: health takes its first look a moment after the start."""
        async with asyncio.timeout(30), httpx.AsyncClient(timeout=30) as client:
            while expected not in (text := (await client.get(f"{self.admin}/metrics")).text):
                await asyncio.sleep(0.05)
        return text

    async def chat(
        self, content: bytes | None = None, *, stream: bool = True, model: str = "sim-model", **headers: str
    ) -> httpx.Response:
        """One chat request, read to its end."""
        document = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hello"}]}
        async with httpx.AsyncClient(timeout=30) as client:
            if content is None:
                return await client.post(self.front + PATH, json=document, headers=headers)
            return await client.post(self.front + PATH, content=content, headers={"content-type": "application/json", **headers})


@asynccontextmanager
async def running(*options: object, directory: Path, **environment: str) -> AsyncIterator[Running]:
    """``deltafence up`` with these options, on free ports, once a request would succeed."""
    log = directory / "up.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extproc.app", "up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
            *map(str, options),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **environment},
        )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        admin = re.search(r"status and journal at (http://[0-9.:]+[0-9])", log.read_text())
        assert line.startswith("ready "), log.read_text()
        assert admin is not None
        yield Running(process=process, front=line.split()[1], admin=admin[1], log=log)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
