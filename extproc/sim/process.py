"""One replica as a child process: started, asked, broken and started again by tests, the demo and benchmarks."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any, Final

import aiohttp

from extproc.sim.faults import Fault, encode_fault
from extproc.sim.settings import MetricsMode, Settings

START_TIMEOUT_S: Final = 30.0
CALL_TIMEOUT_S: Final = 10.0
_MARK: Final = "listening "


class ReplicaStartError(Exception):
    """The process ended or stayed silent; the message holds what it wrote to stderr."""


@dataclass(slots=True)
class ReplicaProcess:
    """A running replica. Its methods work from any event loop, and ``kill`` needs none."""

    settings: Settings
    _process: subprocess.Popen[str] = field(init=False)
    _stderr: IO[str] = field(init=False)
    _last_words: str = ""
    """Its stderr, kept when the file was closed."""

    @property
    def port(self) -> int:
        return self.settings.port

    @property
    def address(self) -> str:
        return f"{self.settings.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    async def start(self) -> None:
        """Start it; a replica that ran before gets its old port again. Raises ReplicaStartError."""
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by kill)
        # Here and not in a worker thread: Linux ties the death signal to the thread that forks.
        self._process = subprocess.Popen(  # noqa: S603, ASYNC220  (our own program; a fork takes milliseconds)
            [sys.executable, "-m", "extproc.sim", *replace(self.settings, die_with_parent=True).arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            process_group=0,
        )
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(self._process.stdout.readline), START_TIMEOUT_S)
        except TimeoutError:
            line = ""
        if not line.startswith(_MARK):
            self.kill()
            raise ReplicaStartError(f"{self.settings.name}: {line!r}\n{self.stderr()}")
        self.settings = replace(self.settings, port=int(line.rpartition(":")[2]))

    def kill(self) -> None:
        """SIGKILL to the process group, and wait for its end. Does nothing to one that has ended."""
        if self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        if not self._stderr.closed:
            self._last_words = self.stderr()
            self._stderr.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def send_signal(self, number: signal.Signals) -> None:
        """For SIGSTOP, SIGCONT and SIGTERM."""
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
        return await asyncio.to_thread(self._process.wait)

    async def restart(self) -> None:
        """Kill it and start it on the same port."""
        self.kill()
        await self.start()

    def stderr(self) -> str:
        """What it has written to stderr: tracebacks, warnings."""
        if self._stderr.closed:
            return self._last_words
        self._stderr.seek(0)
        return self._stderr.read()

    async def set_faults(self, *faults: Fault) -> None:
        """Replace its armed faults."""
        await self._call("POST", "/sim/faults", [encode_fault(fault) for fault in faults])

    async def set_metrics(self, mode: MetricsMode) -> None:
        await self._call("POST", "/sim/metrics", {"mode": mode})

    async def hang(self, engine: str | None = None) -> None:
        """Stop the progress of all engines, or of the one with this label."""
        await self._call("POST", "/sim/hang" if engine is None else f"/sim/hang?engine={engine}")

    async def unhang(self) -> None:
        await self._call("POST", "/sim/unhang")

    async def release(self) -> None:
        """Let everything go on that a ``hold`` has stopped."""
        await self._call("POST", "/sim/release")

    async def die(self) -> None:
        """Let the engine die; the process follows."""
        await self._call("POST", "/sim/die")

    async def reset(self) -> None:
        """No faults, nothing held or hung, an empty log."""
        await self._call("POST", "/sim/reset")

    async def log(self) -> list[dict[str, Any]]:
        """Its requests, oldest first, as ``extproc.sim.request_log.Record.listing`` gives them."""
        records: list[dict[str, Any]] = await self._call("GET", "/sim/log")
        return records

    async def state(self) -> dict[str, Any]:
        """``name, pid, now, running, waiting, hung``."""
        state: dict[str, Any] = await self._call("GET", "/sim/state")
        return state

    async def _call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401  (JSON)
        timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
            session.request(method, self.url + path, json=body) as answer,
        ):
            return await answer.json()


@asynccontextmanager
async def start_replica(settings: Settings | None = None) -> AsyncIterator[ReplicaProcess]:
    """A replica for the length of a block; killed at its end whatever happened."""
    replica = ReplicaProcess(settings or Settings())
    await replica.start()
    try:
        yield replica
    finally:
        replica.kill()
