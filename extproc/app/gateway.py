"""Envoy and its processors as one thing with one life: start, become ready, drain, stop.

Theory: every wait is a race against the death of a child and against a signal, so that nothing is waited for in vain. Whatever
ends it, ``run_gateway`` leaves through one door that ends the children; should this process itself be killed, the kernel ends
them (children.py).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import aiohttp

from extproc.app.addresses import Address
from extproc.app.children import Child, ChildGroup
from extproc.app.envoy_config import EnvoySettings, render
from extproc.app.envoy_drain import drain_envoy
from extproc.app.envoy_process import EnvoyAdmin, envoy_command
from extproc.app.gateway_settings import GatewaySettings, run_directory
from extproc.app.stop_signals import StopSignals

POLL_S: Final = 0.05
PATIENCE_S: Final = 5.0
"""How long a start waits for something before it says so, and again after as long."""
PROCESSOR_STOP_S: Final = 15.0
"""A processor's time, after SIGTERM, to end what is left with its terminal event and to close its journal."""
ENVOY_STOP_S: Final = 5.0

log = logging.getLogger("deltafence.up")


class StoppedAtOnceError(Exception):
    """A signal came before the gateway was ready, or a second one while running requests had their time."""


async def run_gateway(settings: GatewaySettings, *, announce: Callable[[str], None]) -> None:
    """Serve until a signal comes, then drain. ``announce`` is called once, with the front's URL, when a request would succeed.

    Raises StartRefusedError, ChildDiedError or StoppedAtOnceError. In every case no child is left.
    """
    stop = StopSignals()
    settings.require_shared_journal()
    settings.require_free_ports()
    settings = settings.with_admin_ports()
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(stop.installed())
            directory = stack.enter_context(run_directory())
            children = await stack.enter_async_context(ChildGroup(grace_s=ENVOY_STOP_S))
            gateway = await start_gateway(settings, directory, children, stack)
            url = await children.outlive(_first_of(gateway.become_ready(), stop.wished))
            if url is None:
                raise StoppedAtOnceError("stopped before it was ready")
            announce(url)
            await children.outlive(stop.wished.wait())
            await children.outlive(gateway.let_requests_end())
            await gateway.stop()
    except asyncio.CancelledError:
        if not stop.insisted:
            raise
        raise StoppedAtOnceError("stopped at once by a second signal; running requests were cut") from None


async def start_gateway(settings: GatewaySettings, directory: Path, children: ChildGroup, stack: AsyncExitStack) -> "Gateway":
    """Start every child; what is opened beside them is closed with ``stack``. Raises StartRefusedError."""
    envoy_settings = settings.envoy_settings(directory)
    config = directory / "envoy.yaml"
    config.write_text(render(envoy_settings), encoding="utf-8")
    processors = [
        await children.start(f"processor {number}", settings.processor_arguments(envoy_settings, number))
        for number in range(1, settings.processors + 1)
    ]
    envoy = await children.start("Envoy", envoy_command(settings.envoy, config, concurrency=settings.envoy_concurrency))
    return Gateway(
        settings=settings,
        envoy_settings=envoy_settings,
        envoy=envoy,
        processors=tuple(processors),
        envoy_admin=await stack.enter_async_context(EnvoyAdmin.at(envoy_settings.admin_socket)),
        http=await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The running children and the ways to talk to them."""

    settings: GatewaySettings
    envoy_settings: EnvoySettings
    envoy: Child
    processors: tuple[Child, ...]
    envoy_admin: EnvoyAdmin
    http: aiohttp.ClientSession

    async def become_ready(self) -> str:
        """The front's URL, once a request to it would succeed. Waits as long as it takes: replicas may be loading a model."""
        await _until(self._processors_answer, "the processors")
        await _until(self.envoy_admin.is_live, "Envoy")
        front = replace(self.settings.listen, port=await self.envoy_admin.front_port()).reachable
        log.info("status and journal at http://%s", self.settings.admin.reachable)
        if self.settings.processors > 1:
            pages = [f"http://{admin.reachable}/metrics" for admin in self.settings.admins]
            log.info("each processor has its own metrics: %s", ", ".join(pages))
        await self._tell_tools()
        await _until(lambda: self._replica_answers(front), "an answer to GET /v1/models from a replica")
        return f"http://{front}"

    async def let_requests_end(self) -> None:
        """Turn clients away and wait for the running requests, up to the drain limit."""
        limit_s = self.settings.drain_limit_s
        try:
            left = await drain_envoy(self.envoy_admin, limit_s=limit_s)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("Envoy does not answer (%r); the processor ends the requests that still run", error)
        else:
            if left:
                log.warning("%d requests still run after %g s; the processor ends them", left, limit_s)

    async def stop(self) -> None:
        """Processors first: through Envoy they still reach the clients whose streams they have to end."""
        await asyncio.gather(*(processor.stop(grace_s=PROCESSOR_STOP_S) for processor in self.processors))
        with suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(ENVOY_STOP_S):
                await self.envoy_admin.quit()
        await self.envoy.end_within(grace_s=ENVOY_STOP_S)

    async def _tell_tools(self) -> None:
        for tool in self.settings.tools:
            address = replace(self.settings.tools_listen, port=await self.envoy_admin.port_of("tools")).reachable
            log.info("tool %s at http://%s%s", tool, address, tool.prefix)

    async def _processors_answer(self) -> bool:
        for path in self.envoy_settings.processor_sockets:
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
        for admin in self.settings.admins:
            async with self.http.get(f"http://{admin.reachable}/readyz") as answer:
                if answer.status != 200:
                    return False
        return True

    async def _replica_answers(self, front: Address) -> bool:
        """A refusal for want of a key is an answer: clients bring their own."""
        async with self.http.get(f"http://{front}/v1/models") as answer:
            return answer.status in (200, 401, 403)


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Poll until a condition holds; connection trouble means that it does not hold yet."""
    patience_ends = time.monotonic() + PATIENCE_S
    trouble = ""
    while True:
        try:
            if await condition():
                return
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            trouble = f" ({error})"
        if time.monotonic() >= patience_ends:
            log.info("still waiting for %s%s", what, trouble)
            patience_ends = time.monotonic() + PATIENCE_S
        await asyncio.sleep(POLL_S)


async def _first_of(work: Awaitable[str], event: asyncio.Event) -> str | None:
    """The work's result, or None when the event comes first."""
    task = asyncio.ensure_future(work)
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for pending in (task, waiter):
            pending.cancel()
        await asyncio.gather(task, waiter, return_exceptions=True)
