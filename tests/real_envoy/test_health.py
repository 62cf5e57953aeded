"""Health in the path, on the real Envoy: where new attempts go, and what becomes of those on a hung replica (R20-R23)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from extproc.app.demonstration.judge import Exchange, read_events
from extproc.app.demonstration.stage import break_first, gateway, mend, send
from extproc.contract.headers import REQUEST_ID
from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import MetricsMode, Settings
from extproc.sse.dialects import Dialect

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLL_S = 0.02
QUICK = ("--", "--hung-after", "1s", "--health-interval", "300ms")
LIMIT_S = 30.0


@dataclass
class HealthStage:
    replicas: list[ReplicaProcess]
    front: str
    admin: str
    session: aiohttp.ClientSession
    log: Path

    def changes(self, replica: ReplicaProcess) -> list[str]:
        """Every verdict that the gateway has logged of a replica; a page may be read too late for a short one."""
        return re.findall(rf"health of {re.escape(replica.address)}: \w+ -> (\w+)", self.log.read_text())

    async def verdicts(self) -> dict[str, str]:
        return {name: row["verdict"] for name, row in (await self._rows()).items()}

    async def until(self, name: str, *verdicts: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while (await self.verdicts())[name] not in verdicts:
                await asyncio.sleep(POLL_S)

    async def until_answered(self, name: str) -> None:
        """Until a replica is idle and has given health its short answer, so that none is on its way there."""
        async with asyncio.timeout(LIMIT_S):
            while "a short answer came" not in (row := (await self._rows())[name])["evidence"] or row["verdict"] != "idle":
                await asyncio.sleep(POLL_S)

    async def _rows(self) -> dict[str, dict[str, Any]]:
        async with self.session.get(f"{self.admin}/deltafence/v1/replicas") as answer:
            document = await answer.json()
        names = {replica.address: replica.settings.name for replica in self.replicas}
        return {names[row["destination"]]: row for row in document["replicas"]}

    async def hung(self, replica: ReplicaProcess, where: Where) -> Exchange:
        """A request under which its replica hangs. Health's own short answers have no id, and are not what hangs it."""
        hang = Fault(where=where, what=What.HANG, times=1, header=REQUEST_ID)
        return await break_first(partial(send, self.session, self.front, Dialect.CHAT), replica, hang)

    async def facts(self, exchange: Exchange) -> dict[str, Any]:
        async with self.session.get(f"{self.admin}/deltafence/v1/requests/{exchange.request_id}") as answer:
            return dict(await answer.json())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HealthStage]:
    directory: Path = tmp_path_factory.mktemp("health")
    policy, token = directory / "policy.json", directory / "token"
    policy.write_text(json.dumps({"lease": {"cancel_timeout_ms": 10_000}}))  # longer than a stall of the machine
    token.write_text("a secret of this test")
    start = partial(Settings, tokens=40, token_interval_ms=50, prefill_ms=1_000, guard=True, token="a secret of this test")
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(start_replica(start(name=name))) for name in ("a", "b")]
        options = ("--policy", str(policy), "--token-file", str(token), *QUICK)
        front, admin = await stack.enter_async_context(gateway(replicas, directory / "up.log", *options))
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)))
        yield HealthStage(replicas, front, admin, session, directory / "up.log")


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def mended(stage: HealthStage) -> AsyncIterator[None]:
    for replica in stage.replicas:
        await stage.until_answered(replica.settings.name)
    yield
    await mend(stage.replicas)


async def test_idle_and_busy_are_told_apart_and_no_probe_meets_a_busy_replica(stage: HealthStage) -> None:
    a = stage.replicas[0]
    async with asyncio.timeout(LIMIT_S):
        while "busy" not in stage.changes(a):
            assert (await send(stage.session, stage.front, Dialect.CHAT)).status == 200
    asked = [record for record in await a.log() if record["request_id"] is None]
    generated = [record for record in await a.log() if record["request_id"] is not None]
    assert not [
        probe
        for probe in asked
        for record in generated
        if record["slot_taken_at"] and record["slot_taken_at"] < probe["received_at"] < record["slot_freed_at"]
    ]


async def test_an_attempt_in_prefill_on_a_hung_replica_is_fenced_and_repeated(stage: HealthStage) -> None:
    exchange = await stage.hung(stage.replicas[0], Where.IN_PREFILL)
    facts = await stage.facts(exchange)
    assert [attempt["cause"] for attempt in facts["attempts"]] == ["replica_hung", None]
    assert facts["attempts"][0]["fence_proof"] == "cancel_acknowledged"
    assert "hung" in facts["attempts"][0]["evidence"]
    assert read_events(exchange.body)[-1] == "[DONE]"
    assert (await stage.verdicts())["a"] == "hung"


async def test_a_started_answer_on_a_hung_replica_ends_with_replica_hung(stage: HealthStage) -> None:
    exchange = await stage.hung(stage.replicas[1], Where.MID_DECODE)
    error = read_events(exchange.body)[-1]["error"]
    assert (error["code"], error["reason"]) == ("upstream_decode_interrupted", "replica_hung")


async def test_a_dead_replica_gets_no_attempt_and_comes_back(stage: HealthStage) -> None:
    a, b = stage.replicas
    a.kill()
    await stage.until("a", "dead")
    exchanges = [await send(stage.session, stage.front, Dialect.CHAT) for _ in range(2)]
    assert [exchange.attempts for exchange in exchanges] == [1, 1]
    await a.restart()
    await stage.until("a", "idle")
    assert len([record for record in await b.log() if record["request_id"]]) >= 2


async def test_a_replica_that_stands_still_is_suspect_before_it_is_hung(stage: HealthStage) -> None:
    a = stage.replicas[0]
    earlier = len(stage.changes(a))
    await stage.hung(a, Where.IN_PREFILL)
    await stage.until("a", "hung")
    verdicts = stage.changes(a)[earlier:]
    assert "suspect" in verdicts[: verdicts.index("hung")]


async def test_without_its_metrics_a_replica_is_unknown_never_idle(stage: HealthStage) -> None:
    a = stage.replicas[0]
    await a.set_metrics(MetricsMode.ERROR)
    await stage.until("a", "unknown")


async def test_a_replica_that_never_answered_is_starting_and_gets_no_attempt(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        up, absent = ReplicaProcess(Settings(name="a")), ReplicaProcess(Settings(name="b"))
        for replica in (up, absent):
            await replica.start()
            stack.callback(replica.kill)
        absent.kill()
        front, admin = await stack.enter_async_context(gateway([up, absent], tmp_path / "up.log", *QUICK))
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)))
        stage = HealthStage([up, absent], front, admin, session, tmp_path / "up.log")
        await stage.until("b", "starting")
        exchanges = [await send(session, front, Dialect.CHAT) for _ in range(4)]
        assert [exchange.attempts for exchange in exchanges] == [1, 1, 1, 1]
        await absent.start()
        await stage.until("b", "idle")


async def test_a_restart_between_two_looks_is_seen_and_an_answer_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "up.log"
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(start_replica(Settings(name="a")))
        options = ("--", "--hung-after", "60s", "--health-interval", "15s")  # a restart takes less
        front, admin = await stack.enter_async_context(gateway([replica], log, *options))
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)))
        stage = HealthStage([replica], front, admin, session, log)
        await stage.until("a", "idle")
        await replica.restart()
        async with asyncio.timeout(2 * LIMIT_S):
            while "idle -> restarted" not in log.read_text():
                await asyncio.sleep(POLL_S)
        await stage.until("a", "idle")
        assert [record["ended"] for record in await replica.log()] == ["finished"]
