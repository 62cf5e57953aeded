"""Envoy and real processors, started apart so that each can be given limits of its own, or be killed."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from extproc.app.addresses import ReplicaAddress
from extproc.app.children import Child, start_child
from extproc.links.listening import free_port
from tests.real_envoy.acts import GOOD
from tests.real_envoy.raw_client import Answer, Client
from tests.real_envoy.scripted_replica import Attempt, Replica, scripted_replicas
from tests.real_envoy.stage import Stage
from tests.real_envoy.wire import LIMIT_S
from tests.unit.sse.streams import R, T

MEGABYTE = 1 << 20


@dataclass(kw_only=True)
class Gateway(Stage):
    """Envoy and its processors, started apart so that each can be given limits of its own, or be killed."""

    processors: list[Child]
    admins: list[str]
    """The processors' own HTTP interfaces, in the same order."""
    envoy: Any
    """A RunningEnvoy of conftest.py."""

    @property
    def processor(self) -> Path:
        """The first one's directory in /proc."""
        return Path(f"/proc/{self.processors[0].process.pid}")

    async def served(self) -> Answer:
        """An ordinary client's answer, from the first byte to the last."""
        client = await self.ask()
        await (await self.attempt()).stream(GOOD)
        return await client.answer()

    async def running(self, count: int) -> list[tuple[Client, Attempt]]:
        """So many streams past their first delta, each client with its own attempt."""
        pairs = []
        for number in range(count):
            client = await self.ask()
            attempt = await self.attempt()
            await attempt.begin()
            await attempt.send(R, T(f"[{number}]"))
            await client.until(b"[%d]" % number)
            pairs.append((client, attempt))
        return pairs


StartGateway = Callable[..., Awaitable[Gateway]]
"""``await start_gateway(*processor options, **fields of EnvoySettings)``; ``processors`` says how many, one otherwise."""


@dataclass
class Starter:
    """What the fixtures of a test give, to start gateways with; all of them end with ``stack``."""

    stack: AsyncExitStack
    directory: Path
    start_envoy: Callable[..., Awaitable[Any]]
    eventually: Callable[..., Awaitable[Any]]

    async def start(self, *options: str, processors: int = 1, **envoy_fields: Any) -> Gateway:
        arrivals: asyncio.Queue[Attempt] = asyncio.Queue()
        replicas = await self.stack.enter_async_context(scripted_replicas(arrivals, "a", "b"))
        http = await self.stack.enter_async_context(httpx.AsyncClient(timeout=LIMIT_S))
        sockets = tuple(self.directory / f"p{number}.sock" for number in range(1, processors + 1))
        started = [await self._start_processor(http, replicas, options, socket) for socket in sockets]
        addresses = [ReplicaAddress.parse(replica.url) for replica in replicas]
        envoy = await self.start_envoy(addresses, processor_sockets=sockets, **envoy_fields)
        gateway = Gateway(
            replicas=replicas,
            arrivals=arrivals,
            front=envoy.url,
            admin=started[0][1],
            log=self.directory / "log",
            http=http,
            processors=[processor for processor, _ in started],
            admins=[admin for _, admin in started],
            envoy=envoy,
        )
        self.stack.callback(gateway.leave_nothing)
        return gateway

    async def _start_processor(
        self, http: httpx.AsyncClient, replicas: list[Replica], options: tuple[str, ...], socket: Path
    ) -> tuple[Child, str]:
        admin = f"127.0.0.1:{free_port()}"
        words = [word for replica in replicas for word in ("--replica", replica.url)]
        sockets = ["--socket", str(socket), "--egress", str(self.directory / "egress.sock")]
        command = [sys.executable, "-m", "extproc.app", "processor", *sockets, *words, "--admin", admin, *options]
        processor = await start_child("processor", command)
        self.stack.push_async_callback(processor.kill)

        async def is_ready() -> bool:
            return (await http.get(f"http://{admin}/readyz")).status_code == 200

        await self.eventually(is_ready, "the processor is ready")
        return processor, f"http://{admin}"


def memory(process: Path, field: str) -> int:
    """``VmRSS``: bytes in memory now; ``VmHWM``: most of them since the last 5 was written to clear_refs (proc(5))."""
    return int((process / "status").read_text().partition(f"{field}:")[2].split()[0]) * 1024


@dataclass
class Growth:
    """How far a process has grown at most since this was made."""

    process: Path

    def __post_init__(self) -> None:
        (self.process / "clear_refs").write_text("5")
        self.before = memory(self.process, "VmRSS")

    @property
    def bytes(self) -> int:
        return memory(self.process, "VmHWM") - self.before


async def pour(attempt: Attempt, piece: bytes, megabytes: int) -> int:
    """Send pieces as fast as they are taken; how many megabytes went out before the other side was gone."""
    some = piece * (MEGABYTE // len(piece))
    for number in range(megabytes):
        try:
            await attempt.send(some)
        except ConnectionError:
            return number
    return megabytes


def error_of(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = answer.json["error"]
    return error


def last_error(body: bytes) -> dict[str, Any]:
    """The error event that ends a stream."""
    error: dict[str, Any] = json.loads(body.rpartition(b"data: ")[2])["error"]
    return error
