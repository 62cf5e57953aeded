"""A gateway whose processor is a process of the test's own, to be killed, starved and started again under a living Envoy."""

import asyncio
import signal
import sys
from dataclasses import dataclass, field

import httpx

from extproc.app.children import Child, start_child
from tests.real_envoy.durable import Gateway

PROCESSOR = (sys.executable, "-m", "extproc.app", "processor")


@dataclass
class Frail(Gateway):
    """A gateway whose processor can be killed and started again under its Envoy."""

    options: tuple[str, ...] = ()
    tools: str = ""
    processor: Child | None = field(default=None, init=False)

    async def start(self, *command: str) -> None:
        """Start a processor, and wait until it serves."""
        self.processor = await start_child("processor", [*(command or PROCESSOR), *self.options])
        async with asyncio.timeout(60):
            while True:
                assert not self.processor.has_ended, "the processor ended before it served"
                try:
                    if (await self.http.get(f"{self.admin}/readyz")).status_code == 200:
                        return
                except httpx.HTTPError:
                    await asyncio.sleep(0.02)

    async def kill(self) -> None:
        assert self.processor is not None
        await self.processor.kill()

    async def stop(self) -> bool:
        """Stop the processor, if it lives; whether it did."""
        assert self.processor is not None
        await self.processor.stop(grace_s=30)
        return await self.processor.wait() != -signal.SIGKILL
