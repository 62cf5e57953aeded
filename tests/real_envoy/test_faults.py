"""The demo's nine faults over both HTTP versions, all four APIs, streamed and not, through the real Envoy (R2, R9, R10, R17)."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from extproc.app.demonstration.apis import PATHS, request_body
from extproc.app.demonstration.judge import Exchange, judge
from extproc.app.demonstration.scenarios import SCENARIOS, Scenario
from extproc.app.demonstration.stage import (
    QUICK_HEALTH,
    Delivered,
    break_first,
    gateway,
    may_repeat,
    mend,
    until_every_replica,
)
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 8


@dataclass
class Stage:
    replicas: list[ReplicaProcess]
    front: str
    admin: str
    clients: dict[str, httpx.AsyncClient]

    async def send(self, http: str, dialect: Dialect, delivered: Delivered, *, stream: bool) -> Exchange:
        body = bytearray()
        broken = None
        async with self.clients[http].stream(
            "POST",
            self.front + PATHS[dialect],
            content=request_body(dialect, model="sim-model", stream=stream),
            headers={"content-type": "application/json"},
        ) as answer:
            assert answer.http_version == http
            try:
                async for piece in answer.aiter_bytes():
                    if not body:
                        await delivered()
                    body += piece
            except httpx.HTTPError as error:
                broken = repr(error)
        return Exchange(status=answer.status_code, headers=dict(answer.headers), body=bytes(body), broken=broken)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    log = tmp_path_factory.mktemp("gateway") / "up.log"
    async with AsyncExitStack() as stack:
        settings = Settings(tokens=TOKENS)
        replicas = [await stack.enter_async_context(start_replica(replace(settings, name=name))) for name in ("a", "b")]
        policy = log.with_name("policy.json")
        policy.write_text(json.dumps({"retry_budget": {"percent": 100, "burst": 1_000}}))  # most requests here are repeated
        front, admin = await stack.enter_async_context(gateway(replicas, log, "--policy", str(policy), *QUICK_HEALTH))
        await until_every_replica(may_repeat, admin)
        clients = {
            "HTTP/1.1": await stack.enter_async_context(httpx.AsyncClient(timeout=30)),
            "HTTP/2": await stack.enter_async_context(httpx.AsyncClient(timeout=30, http1=False, http2=True)),
        }
        yield Stage(replicas=replicas, front=front, admin=admin, clients=clients)
        broken = [line for line in Path(log).read_text().splitlines() if "Traceback" in line or "the session broke" in line]
        assert not broken, Path(log).read_text()[-4000:]


@pytest.mark.parametrize("http", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
async def test_client_gets_one_whole_answer_or_one_terminal_event(
    stage: Stage, scenario: Scenario, dialect: Dialect, stream: bool, http: str
) -> None:
    faults = scenario.faults if stream else scenario.whole_faults
    ask = partial(stage.send, http, dialect, stream=stream)
    try:
        exchange = await break_first(ask, stage.replicas[0], *faults)
    finally:
        await mend(stage.replicas)

    finding = judge(scenario, dialect, exchange, stream=stream, tokens=TOKENS)

    assert finding.problems == ()
    facts = (await stage.clients["HTTP/1.1"].get(f"{stage.admin}/deltafence/v1/requests/{exchange.request_id}")).json()
    assert facts["outcome"] == ("completed" if "finish" in finding.ending or not stream else "interrupted")
    assert facts["first_delta_sent"] is True
    assert len(facts["attempts"]) == exchange.attempts
