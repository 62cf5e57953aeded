"""Two whole gateways (``deltafence up`` twice) over one PostgreSQL: the same key through both at once, one runs (R11, R12)."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from ulid import ULID

from extproc.contract import headers as names
from extproc.links.listening import free_ports
from extproc.sim.process import start_replica
from extproc.sim.settings import Settings
from tests.real_envoy.durable import Answer, chat, durable_gateway, logged, verified
from tests.real_envoy.scripted_tool import scripted_tool

Outcome = TypeVar("Outcome")

RACES = 100
AT_ONCE = 10
"""Races that run together, so that locks of different keys meet as well."""


@pytest.fixture
def database(make_database_url: Callable[[], str]) -> str:
    url = make_database_url()
    assert url.startswith("postgresql://"), "run this through make test-postgres"
    return url


async def in_groups(race: Callable[[int], Awaitable[list[Outcome]]]) -> list[list[Outcome]]:
    races: list[list[Outcome]] = []
    for start in range(0, RACES, AT_ONCE):
        races += await asyncio.gather(*(race(number) for number in range(start, start + AT_ONCE)))
    return races


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processors", [1, 2])
async def test_a_key_that_comes_through_both_gateways_runs_once(database: str, tmp_path: Path, processors: int) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(start_replica(Settings(name=name, tokens=2))) for name in ("a", "b")]
        policy = {"journal": {"replay": True}}
        options = ("--processors", str(processors))
        gateways = [
            await stack.enter_async_context(durable_gateway(replicas, tmp_path / name, database, *options, policy=policy))
            for name in ("first", "second")
        ]

        async def race(number: int) -> list[Answer]:
            key = {names.IDEMPOTENCY_KEY: f'"race {number}"'}
            return list(await asyncio.gather(*(gateway.ask(chat(), key) for gateway in gateways)))

        races = await in_groups(race)
        records = await logged(replicas)
    runs = Counter(record["request_id"] for record in records)
    for answers in races:
        (request_id,) = {answer.request_id for answer in answers}
        assert runs[request_id] == 1
        assert len([answer for answer in answers if answer.is_whole and not answer.replayed]) == 1
        others = [answer for answer in answers if not answer.is_whole]
        assert {(answer.status, answer.error["code"]) for answer in others} <= {(409, "request_in_progress")}
    assert sum(runs.values()) == RACES
    assert (await verified(database))["requests"] == RACES


@pytest.mark.timeout(300)
async def test_a_tool_call_that_comes_through_both_gateways_acts_once(database: str, tmp_path: Path) -> None:
    ports = free_ports(2)
    async with AsyncExitStack() as stack:
        tool = await stack.enter_async_context(scripted_tool())
        replica = await stack.enter_async_context(start_replica(Settings()))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60))
        for number, port in enumerate(ports):
            options = ("--tool", f"mail=http://127.0.0.1:{tool.port},wait_ms=60000", "--tools-listen", f"127.0.0.1:{port}")
            await stack.enter_async_context(durable_gateway([replica], tmp_path / str(number), database, *options))

        async def call(port: int, number: int) -> httpx.Response:
            headers = {names.REQUEST_ID: f"req_{ULID.from_int(number)}", names.TOOL_CALL: "call_07"}
            return await client.post(f"http://127.0.0.1:{port}/tools/mail/send", content=b"%d" % number, headers=headers)

        async def race(number: int) -> list[httpx.Response]:
            return list(await asyncio.gather(*(call(port, number) for port in (*ports, *ports))))

        races = await in_groups(race)
    for answers in races:
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in answers}) == 1
        assert [answer.headers.get(names.REPLAYED) for answer in answers].count(None) == 1
    assert sorted(int(execution.body) for execution in tool.log) == list(range(RACES))
