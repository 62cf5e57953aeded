"""One gateway as two processes, Envoy and a processor, each of which can be killed and started again by itself.

Both are the commands that operators run: ``deltafence processor``, and Envoy with what ``deltafence envoy-config`` writes.
"""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from extproc.contract import headers as names
from extproc.faults.evidence import AccessLine
from extproc.links.listening import free_ports

START_LIMIT_S: Final = 60.0
POLL_S: Final = 0.02
LOG_FLUSH_MS: Final = 50


class GatewayError(Exception):
    """The gateway did not start, or its processor is not what it was; the message holds its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """How to start what the suite stands on; app/ knows that. Each is the beginning of a command line."""

    processor: tuple[str, ...]
    envoy_config: tuple[str, ...]
    envoy: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """One gateway of a stage."""

    replicas: tuple[str, ...]
    """Their origins."""
    policy: Mapping[str, object]
    token: str
    hung_after_s: float
    health_interval_s: float
    tool: str
    """The origin of a tool named ``charge`` behind the ledger."""
    tools_port: int
    """Where the replicas call it."""


@dataclass(slots=True, kw_only=True)
class Gateway:
    """Running processes, and the files that they write."""

    commands: Commands
    settings: GatewaySettings
    directory: Path
    http: aiohttp.ClientSession
    _ports: dict[str, int] = field(default_factory=lambda: dict(zip(("front", "admin"), free_ports(2), strict=True)))
    _processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    @property
    def front(self) -> str:
        return f"http://127.0.0.1:{self._ports['front']}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self._ports['admin']}"

    @property
    def journal(self) -> Path:
        return self.directory / "journal.db"

    @property
    def access_log(self) -> Path:
        return self.directory / "access.log"

    @property
    def decisions(self) -> Path:
        """What the processor's decisions were, one a line (extproc/processor/decision_log.py)."""
        return self.directory / "decisions.jsonl"

    @property
    def log(self) -> Path:
        return self.directory / "gateway.log"

    async def start(self) -> None:
        """Start both; returns when a request would succeed. Raises GatewayError."""
        (self.directory / "token").write_text(self.settings.token)
        (self.directory / "policy.json").write_text(json.dumps(self.settings.policy))
        await self._write_envoy_config()
        await self.start_processor()
        await self.start_envoy()

    async def start_processor(self) -> None:
        """Start the processor, and wait until it answers."""
        settings = self.settings
        await self._spawn(
            "processor",
            *self.commands.processor,
            *("--socket", str(self._path("processor.sock")), "--egress", str(self._path("egress.sock"))),
            *("--admin", f"127.0.0.1:{self._ports['admin']}", "--policy", str(self._path("policy.json"))),
            *("--token-file", str(self._path("token")), "--journal", str(self.journal), "--drain-limit", "0s"),
            *("--hung-after", _milliseconds(settings.hung_after_s)),
            *("--health-interval", _milliseconds(settings.health_interval_s)),
            *("--decision-log", str(self.decisions)),
            *(word for origin in settings.replicas for word in ("--replica", origin)),
        )
        await self._until("processor", self._processor_answers)

    async def start_envoy(self) -> None:
        """Start Envoy, and wait until it lets a request through to a replica."""
        await self._spawn(
            "envoy",
            *self.commands.envoy,
            *("--config-path", str(self._path("envoy.yaml")), "--concurrency", "1", "--log-level", "warning"),
            *("--file-flush-interval-msec", str(LOG_FLUSH_MS), "--disable-hot-restart"),
        )
        await self._until("envoy", self._envoy_answers)

    async def kill(self, name: str) -> None:
        """SIGKILL to ``processor`` or ``envoy``."""
        await self._end(name, signal.SIGKILL)

    async def terminate(self, name: str) -> None:
        """SIGTERM, and wait for the end."""
        await self._end(name, signal.SIGTERM)

    async def stop(self) -> None:
        """Kill what still runs."""
        for name in tuple(self._processes):
            await self.kill(name)

    async def attempts_of_generation(self, path: str, body: bytes) -> int:
        """Send a request; how many attempts its whole answer took, 0 where there was none."""
        try:
            async with self.http.post(self.front + path, data=body, headers={"content-type": "application/json"}) as answer:
                await answer.read()
                return int(answer.headers.get(names.ATTEMPTS, 0)) if answer.status == 200 else 0
        except aiohttp.ClientError:
            return 0

    async def verdicts(self) -> dict[str, str]:
        """Health's verdict of each replica, by its address."""
        document = await self._get_json(f"{self.admin}/deltafence/v1/replicas")
        return {row["destination"]: row["verdict"] for row in document["replicas"]}

    async def facts(self, request_id: str) -> dict[str, Any]:
        """The journal's facts of a request, with its events; empty where it does not know it."""
        return await self._get_json(f"{self.admin}/deltafence/v1/requests/{request_id}")

    @contextmanager
    def journal_lost(self) -> Iterator[None]:
        """For the length of a block no other process can write to the journal's file."""
        with contextlib.closing(sqlite3.connect(self.journal, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    def _path(self, name: str) -> Path:
        return self.directory / name

    async def _write_envoy_config(self) -> None:
        settings = self.settings
        process = await asyncio.create_subprocess_exec(
            *self.commands.envoy_config,
            *("--listen", f"127.0.0.1:{self._ports['front']}", "--processor-socket", str(self._path("processor.sock"))),
            *("--egress-socket", str(self._path("egress.sock")), "--envoy-admin", str(self._path("envoy-admin.sock"))),
            *("--access-log", str(self.access_log), "--output", str(self._path("envoy.yaml"))),
            *(word for origin in settings.replicas for word in ("--replica", origin)),
            *("--tool", f"charge={settings.tool}", "--tools-listen", f"127.0.0.1:{settings.tools_port}"),
            stderr=asyncio.subprocess.PIPE,
        )
        _, complaint = await process.communicate()
        if process.returncode != 0:
            raise GatewayError(f"deltafence envoy-config: {complaint.decode()}")

    async def _spawn(self, name: str, *command: str) -> None:
        with self.log.open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    async def _end(self, name: str, number: signal.Signals) -> None:
        process = self._processes.pop(name, None)
        if process is not None and process.returncode is None:
            os.killpg(process.pid, number)
            await process.wait()

    async def _until(self, name: str, answers: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._processes[name].returncode is None:
            with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
                if await answers():
                    return
            await asyncio.sleep(POLL_S)
        raise GatewayError(f"{name} did not start:\n{self.log.read_text()[-4000:]}")

    async def _processor_answers(self) -> bool:
        async with self.http.get(f"{self.admin}/readyz") as answer:
            return answer.status == 200

    async def _envoy_answers(self) -> bool:
        async with self.http.get(f"{self.front}/v1/models") as answer:
            return answer.status == 200

    async def _get_json(self, url: str) -> dict[str, Any]:
        async with self.http.get(url) as answer:
            return dict(await answer.json()) if answer.status == 200 else {}


@asynccontextmanager
async def running_gateway(commands: Commands, settings: GatewaySettings, directory: Path) -> AsyncIterator[Gateway]:
    """A gateway for the length of a block. ``directory`` must be short enough for socket names. Raises GatewayError."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        gateway = Gateway(commands=commands, settings=settings, directory=directory, http=http)
        try:
            await gateway.start()
            yield gateway
        finally:
            await gateway.stop()


def read_access_log(path: Path, offset: int) -> tuple[dict[str, list[AccessLine]], int]:
    """The whole lines behind ``offset``, by x-request-id, and where they end."""
    lines: dict[str, list[AccessLine]] = {}
    if not path.exists():
        return lines, offset
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    data = data[: data.rfind(b"\n") + 1]
    for text in data.splitlines():
        line = json.loads(text)
        if line.get("x_request_id"):
            lines.setdefault(line["x_request_id"], []).append(_access_line(line))
    return lines, offset + len(data)


def _access_line(line: Mapping[str, Any]) -> AccessLine:
    return AccessLine(
        listener=str(line["listener"]),
        request_id=line.get("request_id"),
        attempt_id=line.get("attempt_id"),
        status=int(line.get("status") or 0),
        flags=line.get("flags"),
        details=line.get("details"),
        outcome=line.get("outcome"),
        attempts=_whole(line.get("attempts")),
        delivered_output_tokens=_whole(line.get("delivered_output_tokens")),
    )


def _whole(value: object) -> int | None:
    return int(float(value)) if isinstance(value, int | float | str) and str(value) not in ("", "-") else None


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
