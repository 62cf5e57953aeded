"""The demo's props: a gateway of its own, requests, and the ways to break the first replica that one of them meets."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

from extproc.app.demonstration.apis import PATHS, request_body
from extproc.app.demonstration.judge import Exchange
from extproc.replicas.identities import unproven
from extproc.sim.faults import Fault, What
from extproc.sim.link import Direction, Link
from extproc.sim.process import ReplicaProcess
from extproc.sim.request_log import Ended
from extproc.sse.dialects import Dialect

ATTEMPT_LIMIT_S: Final = 60.0
"""A line that takes longer is broken; nothing is measured by it."""
POLL_S: Final = 0.02
QUICK_HEALTH: Final = ("--", "--health-interval", "200ms")
"""For stages whose replicas are killed and started again all the time: what was started gets requests soon."""

Delivered = Callable[[], Awaitable[None]]
"""What a sender calls once its client has the first of an answer."""


async def nobody_waits() -> None:
    """Where nothing depends on what the client has."""


async def send(
    session: aiohttp.ClientSession, url: str, dialect: Dialect, delivered: Delivered = nobody_waits, *, stream: bool = True
) -> Exchange:
    """One request of the demo's, read to its end or to its break."""
    body = bytearray()
    async with session.post(
        url + PATHS[dialect],
        data=request_body(dialect, model="sim-model", stream=stream),
        headers={"content-type": "application/json"},
    ) as answer:
        broken = None
        try:
            async for piece in answer.content.iter_any():
                if not body:
                    await delivered()
                body += piece
        except aiohttp.ClientError as error:
            broken = repr(error)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Exchange(status=answer.status, headers=headers, body=bytes(body), broken=broken)


async def break_first(send: Callable[[Delivered], Awaitable[Exchange]], armed: ReplicaProcess, *faults: Fault) -> Exchange:
    """Send requests until one of them met a fault on its first attempt, and return that one.

    One replica is armed; which replica is asked first is the placement's turn, so an unarmed one may answer before.
    What a fault holds is released when the client has the first of its answer. Raises LookupError where the turn never comes.
    """
    if not faults:
        return await send(nobody_waits)
    await armed.set_faults(*faults)
    delivered = armed.release if any(fault.what is What.HOLD for fault in faults) else nobody_waits
    return await _repeat(partial(send, delivered), lambda: has_struck(armed), " and ".join(fault.label for fault in faults))


async def has_struck(replica: ReplicaProcess) -> bool:
    """Whether a replica's armed fault has happened."""
    if replica.returncode is not None:
        return True
    try:
        records = await replica.log()
    except aiohttp.ClientConnectionError:
        # Killed: its sockets close a moment before it counts as ended.
        await replica.wait()
        return True
    return any(record["fault"] is not None for record in records)


async def cut_first(
    send: Callable[[], Awaitable[Exchange]], link: Link, mark: bytes, direction: Direction = Direction.BOTH
) -> Exchange:
    """Send requests until the link went silent in one of them, and return that one. Raises LookupError."""
    link.cut_after(mark, direction)

    async def is_cut() -> bool:
        return link.is_cut

    return await _repeat(send, is_cut, "cut")


async def _repeat(send: Callable[[], Awaitable[Exchange]], has_met: Callable[[], Awaitable[bool]], what: str) -> Exchange:
    deadline = asyncio.get_running_loop().time() + ATTEMPT_LIMIT_S
    while asyncio.get_running_loop().time() < deadline:
        exchange = await send()
        if await has_met():
            return exchange
        # One that was just started again gets requests once health has seen it.
        await asyncio.sleep(POLL_S)
    raise LookupError(f"{what}: no request came to the replica that was to break")


async def replicas_asked(session: aiohttp.ClientSession, admin: str, request_id: str) -> tuple[str, ...]:
    """The replicas of a request's attempts, from the journal."""
    async with session.get(f"{admin}/deltafence/v1/requests/{request_id}") as answer:
        facts = await answer.json()
    return tuple(attempt["replica"] for attempt in facts.get("attempts", ()))


async def problems_of_cut(replicas: Sequence[ReplicaProcess], request_id: str) -> list[str]:
    """What the replicas' own logs say against the cut: the first must have stopped by itself, before the second began (R6)."""
    records = await ended_records(replicas, request_id)
    problems = []
    if records[0]["ended"] not in (Ended.CANCELLED, Ended.CLIENT_GONE):
        problems.append(f"the replica that was cut off ended {records[0]['ended']}")
    problems += [
        f"two attempts at once: {first['slot_freed_at']} and {second['received_at']}"
        for first, second in pairwise(records)
        if first["slot_freed_at"] is None or first["slot_freed_at"] > second["received_at"]
    ]
    return problems


async def ended_records(replicas: Sequence[ReplicaProcess], request_id: str) -> list[dict[str, Any]]:
    """A request's attempts as the replicas logged them, oldest first, once all have ended. Raises TimeoutError."""
    async with asyncio.timeout(ATTEMPT_LIMIT_S):
        while True:
            records = [record for replica in replicas for record in await replica.log() if record["request_id"] == request_id]
            if records and all(record["ended"] is not None for record in records):
                return sorted(records, key=lambda record: float(record["received_at"]))
            await asyncio.sleep(POLL_S)


async def mend(replicas: Sequence[ReplicaProcess]) -> None:
    """Start again what was killed, and take back what was armed."""
    for replica in replicas:
        if replica.returncode is None:
            await replica.reset()
        else:
            await replica.restart()


class GatewayStartError(Exception):
    """``deltafence up`` did not become ready; the message holds its log."""


class HasUrl(Protocol):
    """What stands for a replica on the command line: itself, or a link to it."""

    @property
    def url(self) -> str: ...


@asynccontextmanager
async def gateway(replicas: Sequence[HasUrl], log: Path, *options: str) -> AsyncIterator[tuple[str, str]]:
    """A ``deltafence up`` of its own process, as users run it: the URLs of its front and its admin interface.

    Its log goes to the file ``log``. Raises GatewayStartError.
    """
    arguments = [word for replica in replicas for word in ("--replica", replica.url)]
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extproc.app", "up", "--listen", ":0", "--admin", ":0", *arguments, *options),
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), ATTEMPT_LIMIT_S)).decode()
        if not line.startswith("ready "):
            raise GatewayStartError(log.read_text())
        yield line.split()[1], admin_url(log)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


Row = Mapping[str, Any]
"""What a gateway's ``/deltafence/v1/replicas`` says of one replica."""


def is_placeable(row: Row) -> bool:
    return bool(row["standing"] == "placeable")


def may_repeat(row: Row) -> bool:
    """Placeable, and it is known what it serves (R8)."""
    return is_placeable(row) and bool(row["identity"] != unproven(row["destination"]))


async def until_every_replica(is_right: Callable[[Row], bool], *admins: str) -> None:
    """Wait for what gateways think of their replicas: each looks by itself, and a look that got no answer in time is taken
    again only at its next turn. Raises TimeoutError."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(ATTEMPT_LIMIT_S):
        for admin in admins:
            while True:
                async with session.get(f"{admin}/deltafence/v1/replicas") as answer:
                    rows = (await answer.json())["replicas"]
                if all(map(is_right, rows)):
                    break
                await asyncio.sleep(POLL_S)


def admin_url(log: Path) -> str:
    """The admin address that ``up`` has logged; with port 0 nobody else knows it. Raises GatewayStartError."""
    text = log.read_text()
    for line in text.splitlines():
        if "journal at http" in line:
            return line.rpartition(" at ")[2].strip()
    raise GatewayStartError(text)
