"""Only the network breaks, in front of replicas with the lease guard, through the real Envoy (R5, R6, R7, R17.4).

Either way of a cut, both APIs' forms, before and after the first delta. What the replicas themselves say is part of the proof:
the one that was cut off has stopped by itself before another attempt began.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from extproc.app.demonstration.judge import Exchange, judge
from extproc.app.demonstration.scenarios import CUTS, Received, Scenario
from extproc.app.demonstration.stage import (
    QUICK_HEALTH,
    cut_first,
    gateway,
    may_repeat,
    mend,
    problems_of_cut,
    send,
    until_every_replica,
)
from extproc.sim.link import Direction, Link, start_link
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 8
LEASE_MS = 6_000
TOKEN_INTERVALS_MS = {"replica-a": 1_000, "replica-b": 25}
"""An answer of the one that is cut off outlasts its lease."""


@dataclass
class CutStage:
    replicas: list[ReplicaProcess]
    links: list[Link]
    front: str
    admin: str
    session: aiohttp.ClientSession

    async def events(self, request_id: str) -> list[dict[str, Any]]:
        async with self.session.get(f"{self.admin}/deltafence/v1/requests/{request_id}") as answer:
            return list((await answer.json())["events"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CutStage]:
    directory: Path = tmp_path_factory.mktemp("cuts")
    policy, token = directory / "policy.json", directory / "token"
    policy.write_text(json.dumps({"lease": {"ttl_ms": LEASE_MS, "cancel_timeout_ms": LEASE_MS // 2}}))
    token.write_text("a secret of this test")
    async with AsyncExitStack() as stack:
        guarded = Settings(tokens=TOKENS, guard=True, token="a secret of this test")
        replicas = [
            await stack.enter_async_context(start_replica(replace(guarded, name=name, token_interval_ms=interval_ms)))
            for name, interval_ms in TOKEN_INTERVALS_MS.items()
        ]
        links = [await stack.enter_async_context(start_link(replica.port)) for replica in replicas]
        options = ("--policy", str(policy), "--token-file", str(token), *QUICK_HEALTH)
        front, admin = await stack.enter_async_context(gateway(links, directory / "up.log", *options))
        await until_every_replica(may_repeat, admin)
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)))
        yield CutStage(replicas, links, front, admin, session)


@pytest.mark.parametrize("direction", [Direction.FROM_REPLICA, Direction.BOTH])
@pytest.mark.parametrize("scenario", CUTS, ids=lambda scenario: scenario.name.replace(" ", "-"))
async def test_a_cut_answer_never_leads_to_two_publishers(stage: CutStage, scenario: Scenario, direction: Direction) -> None:
    exchange, events = await cut_and_collect(stage, scenario, direction)
    assert judge(scenario, Dialect.CHAT, exchange, stream=True, tokens=TOKENS).problems == ()
    kinds = [event["kind"] for event in events]
    if scenario.received is Received.TERMINAL_EVENT:
        assert (kinds.count("attempt_started"), kinds[-1]) == (1, "ended")
        return
    failed, fenced = (next(event for event in events if event["kind"] == kind) for kind in ("attempt_failed", "fenced"))
    assert failed["detail"]["cause"] == "uncertain"
    assert fenced["detail"]["proof"] == "lease_expired"
    assert kinds.index("fenced") < len(kinds) - 1 - kinds[::-1].index("attempt_started")


@pytest.mark.parametrize("scenario", CUTS, ids=lambda scenario: scenario.name.replace(" ", "-"))
async def test_a_replica_that_hears_nothing_stops_at_its_leases_end_though_its_answer_arrives(
    stage: CutStage, scenario: Scenario
) -> None:
    exchange, events = await cut_and_collect(stage, scenario, Direction.TO_REPLICA)
    interrupted = replace(scenario, received=Received.TERMINAL_EVENT, attempts=1)
    assert judge(interrupted, Dialect.CHAT, exchange, stream=True, tokens=TOKENS).problems == ()
    assert [event["kind"] for event in events].count("attempt_started") == 1


async def cut_and_collect(stage: CutStage, scenario: Scenario, direction: Direction) -> tuple[Exchange, list[dict[str, Any]]]:
    """One request over the first link as it is cut; its journal. The replicas' logs must agree that no two published."""
    link = stage.links[0]
    try:
        ask = partial(send, stage.session, stage.front, Dialect.CHAT)
        exchange = await cut_first(ask, link, scenario.cut_after or b"", direction)
        assert await problems_of_cut(stage.replicas, exchange.request_id) == []
        return exchange, await stage.events(exchange.request_id)
    finally:
        link.heal()
        await mend(stage.replicas)
