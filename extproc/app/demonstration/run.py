"""``deltafence demo``: the real Envoy, the processor and two replica look-alikes, broken on purpose, line by line."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import click
from rich.console import Console
from rich.table import Table

from extproc.app.demonstration.apis import PATHS, request_body
from extproc.app.demonstration.judge import Exchange, Finding, judge
from extproc.app.demonstration.scenarios import SCENARIOS, Scenario
from extproc.sim.faults import Fault
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect

TOKENS: Final = 8
ATTEMPT_LIMIT_S: Final = 60.0
"""A line that takes longer is broken; nothing is measured by it."""
TABLE_WIDTH: Final = 116
PLACINGS_MAX: Final = 4
"""Requests until the placement's turn has come round to the replica that is to break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    scenario: Scenario
    exchange: Exchange
    finding: Finding
    replicas: tuple[str, ...]


async def send(session: aiohttp.ClientSession, url: str, dialect: Dialect, *, stream: bool = True) -> Exchange:
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
                body += piece
        except aiohttp.ClientError as error:
            broken = repr(error)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Exchange(status=answer.status, headers=headers, body=bytes(body), broken=broken)


async def break_first(send: Callable[[], Awaitable[Exchange]], armed: ReplicaProcess, fault: Fault | None) -> Exchange:
    """Send requests until one of them met ``fault`` on its first attempt, and return that one.

    One replica is armed; which replica is asked first is the placement's turn, so an unarmed one may answer before.
    Raises LookupError where the turn never comes.
    """
    if fault is None:
        return await send()
    await armed.set_faults(fault)
    for _ in range(PLACINGS_MAX):
        exchange = await send()
        if await has_struck(armed):
            return exchange
    raise LookupError(f"{fault.label}: the armed replica was never asked")


async def has_struck(replica: ReplicaProcess) -> bool:
    """Whether a replica's armed fault has happened."""
    if replica.returncode is not None:
        return True
    return any(record["fault"] is not None for record in await replica.log())


async def replicas_asked(session: aiohttp.ClientSession, admin: str, request_id: str) -> tuple[str, ...]:
    """The replicas of a request's attempts, from the journal."""
    async with session.get(f"{admin}/deltafence/v1/requests/{request_id}") as answer:
        facts = await answer.json()
    return tuple(attempt["replica"] for attempt in facts.get("attempts", ()))


class GatewayStartError(Exception):
    """``deltafence up`` did not become ready; the message holds its log."""


@asynccontextmanager
async def gateway(replicas: Sequence[ReplicaProcess], log: Path, *options: str) -> AsyncIterator[tuple[str, str]]:
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


def admin_url(log: Path) -> str:
    """The admin address that ``up`` has logged; with port 0 nobody else knows it. Raises GatewayStartError."""
    text = log.read_text()
    for line in text.splitlines():
        if "journal at http" in line:
            return line.rpartition(" at ")[2].strip()
    raise GatewayStartError(text)


async def run_scenarios(log: Path) -> list[Line]:
    """Every scenario once, in order."""
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(start_replica(Settings(name=name, tokens=TOKENS)))
            for name in ("replica-a", "replica-b")
        ]
        names = {replica.address: replica.settings.name for replica in replicas}
        front, admin = await stack.enter_async_context(gateway(replicas, log))
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_LIMIT_S)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        lines = []
        for scenario in SCENARIOS:
            exchange = await break_first(partial(send, session, front, Dialect.CHAT), replicas[0], scenario.fault)
            finding = judge(scenario, Dialect.CHAT, exchange, stream=True, tokens=TOKENS)
            asked = await replicas_asked(session, admin, exchange.request_id)
            asked_names = tuple(names.get(address, address) for address in asked)
            lines.append(Line(scenario=scenario, exchange=exchange, finding=finding, replicas=asked_names))
            await mend(replicas)
        return lines


async def mend(replicas: Sequence[ReplicaProcess]) -> None:
    """Start again what was killed, and take back what was armed."""
    for replica in replicas:
        if replica.returncode is None:
            await replica.reset()
        else:
            await replica.restart()


def table_of(lines: list[Line]) -> Table:
    """The demo's table for people."""
    table = Table(title="What a client receives when a replica breaks", title_justify="left")
    for column in ("fault", "client received", "how the stream ended", "attempts", "replicas", ""):
        table.add_column(column)
    for line in lines:
        verdict = "[green]OK[/green]" if line.finding.is_ok else "[red]NOT OK[/red]"
        tokens = len(line.finding.text.split())
        table.add_row(
            line.scenario.name,
            f"{tokens} of {TOKENS} tokens",
            line.finding.ending,
            str(line.exchange.attempts),
            " → ".join(line.replicas),
            verdict,
        )
    return table


@click.command()
def demo() -> None:
    """Break replicas on purpose behind the real Envoy and show what a client receives. Status 0 only if every line is OK."""
    console = Console()
    console = Console(width=max(console.width, TABLE_WIDTH))
    with tempfile.TemporaryDirectory(prefix="deltafence-demo-") as directory:
        log = Path(directory) / "up.log"
        try:
            lines = asyncio.run(run_scenarios(log))
        except (LookupError, TimeoutError, aiohttp.ClientError) as error:
            click.echo(log.read_text(), err=True)
            raise click.ClickException(f"the demo broke off: {error!r}; the gateway's log is above") from error
        except GatewayStartError as error:
            raise click.ClickException(f"deltafence up did not become ready:\n{error}") from error
    console.print(table_of(lines))
    for line in lines:
        for problem in line.finding.problems:
            console.print(f"NOT OK {line.scenario.name}: {problem}", markup=False)
    sys.exit(0 if all(line.finding.is_ok for line in lines) else 1)
