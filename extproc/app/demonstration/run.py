"""``deltafence demo``: the real Envoy, the processor and two replica look-alikes, broken on purpose, line by line."""

import asyncio
import secrets
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import click
from rich.console import Console
from rich.table import Table

from extproc.app.demonstration.judge import Exchange, Finding, judge
from extproc.app.demonstration.scenarios import CUTS, SCENARIOS, Scenario
from extproc.app.demonstration.stage import (
    ATTEMPT_LIMIT_S,
    QUICK_HEALTH,
    GatewayStartError,
    break_first,
    cut_first,
    gateway,
    may_repeat,
    mend,
    problems_of_cut,
    replicas_asked,
    send,
    until_every_replica,
)
from extproc.sim.link import start_link
from extproc.sim.process import start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect

TOKENS: Final = 8
REPLICA: Final = Settings(tokens=TOKENS)
OUTLASTING_MS: Final = 500.0
"""Between tokens of the replica that is cut off: its answer lasts longer than its lease."""
TABLE_WIDTH: Final = 116
SHORT_LEASE: Final = "lease: {ttl_ms: 2500, cancel_timeout_ms: 1200}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    scenario: Scenario
    exchange: Exchange
    finding: Finding
    replicas: tuple[str, ...]


async def run_scenarios(log: Path) -> list[Line]:
    """Every scenario once, in order."""
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(start_replica(replace(REPLICA, name=name))) for name in ("replica-a", "replica-b")
        ]
        names = {replica.address: replica.settings.name for replica in replicas}
        front, admin = await stack.enter_async_context(gateway(replicas, log, *QUICK_HEALTH))
        await until_every_replica(may_repeat, admin)
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_LIMIT_S)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        lines = []
        for scenario in SCENARIOS:
            ask = partial(send, session, front, Dialect.CHAT)
            exchange = await break_first(ask, replicas[0], *scenario.faults)
            finding = judge(scenario, Dialect.CHAT, exchange, stream=True, tokens=TOKENS)
            asked = await replicas_asked(session, admin, exchange.request_id)
            asked_names = tuple(names.get(address, address) for address in asked)
            lines.append(Line(scenario=scenario, exchange=exchange, finding=finding, replicas=asked_names))
            await mend(replicas)
        return lines


async def run_cuts(directory: Path) -> list[Line]:
    """The scenarios in which only the network breaks, in front of replicas with the lease guard."""
    policy, token = directory / "policy.yaml", directory / "token"
    policy.write_text(SHORT_LEASE)
    token.write_text(secrets.token_hex())
    guarded = replace(REPLICA, guard=True, token=token.read_text())
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(start_replica(replace(guarded, name=name, token_interval_ms=interval_ms)))
            for name, interval_ms in (("replica-a", OUTLASTING_MS), ("replica-b", REPLICA.token_interval_ms))
        ]
        links = [await stack.enter_async_context(start_link(replica.port)) for replica in replicas]
        options = ("--policy", str(policy), "--token-file", str(token), *QUICK_HEALTH)
        front, admin = await stack.enter_async_context(gateway(links, directory / "up-cuts.log", *options))
        await until_every_replica(may_repeat, admin)
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_LIMIT_S)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        names = {urlsplit(link.url).netloc: replica.settings.name for link, replica in zip(links, replicas, strict=True)}
        lines = []
        for scenario in CUTS:
            exchange = await cut_first(partial(send, session, front, Dialect.CHAT), links[0], scenario.cut_after or b"")
            finding = judge(scenario, Dialect.CHAT, exchange, stream=True, tokens=TOKENS)
            alone = await problems_of_cut(replicas, exchange.request_id)
            finding = replace(finding, problems=(*finding.problems, *alone))
            asked = await replicas_asked(session, admin, exchange.request_id)
            lines.append(
                Line(scenario=scenario, exchange=exchange, finding=finding, replicas=tuple(names.get(one, one) for one in asked))
            )
            links[0].heal()
            await mend(replicas)
        return lines


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
            lines = [*asyncio.run(run_scenarios(log)), *asyncio.run(run_cuts(Path(directory)))]
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
