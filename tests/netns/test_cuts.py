"""A real network cut between gateway and replica: packets are dropped, nobody is told (R5, R6, R7, R17.4, R18).

The gateway (Envoy, processor), a second replica and the client are one machine; the first replica is another. What the replicas
themselves logged is part of the proof: the one that was cut off stopped by itself before the second attempt began.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import aiohttp
import pytest
import pytest_asyncio

from extproc.app.demonstration.apis import request_body
from extproc.app.demonstration.judge import judge
from extproc.app.demonstration.scenarios import CUTS
from extproc.app.demonstration.stage import gateway, may_repeat, until_every_replica
from extproc.contract.headers import REQUEST_ID
from extproc.sim.faults import Fault, What, Where, encode_fault
from extproc.sim.link import Direction
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.request_log import Ended
from extproc.sim.settings import Settings
from extproc.sse.dialects import Dialect
from tests.netns.network import REPLICA_ADDRESS, Network, NotPermittedError, make_network
from tests.streamed_request import StreamedRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 8
SECRET = "a secret of this test"
POLICY = {"lease": {"ttl_ms": 6_000, "cancel_timeout_ms": 3_000}}
TOKEN_INTERVAL_MS = 1_000
"""At the far replica, so that an answer outlasts a lease."""
BODY = request_body(Dialect.CHAT, model="sim-model", stream=True)
BEFORE, AFTER = CUTS
LIMIT_S = 60.0
POLL_S = 0.02
PLACINGS_MAX = 4

Cut = Callable[[Network], AbstractContextManager[None]]
CUT: dict[str, Cut] = {
    "dropped-both-ways": lambda network: network.dropping(Direction.BOTH),
    "dropped-towards-replica": lambda network: network.dropping(Direction.TO_REPLICA),
    "dropped-towards-gateway": lambda network: network.dropping(Direction.FROM_REPLICA),
    "unplugged": lambda network: network.unplugged(),
}
EVERY_CUT = pytest.mark.parametrize("cut", CUT.values(), ids=CUT)


@dataclass
class Machines:
    network: Network
    far: ReplicaProcess
    """Beyond the network that is cut."""
    near: ReplicaProcess
    directory: Path

    def call_far(self, path: str, body: object = None) -> Any:
        """Ask the far replica on its own machine. No await, or other tasks of this thread would be there too."""
        data = None if body is None else json.dumps(body).encode()
        with self.network.replica.entered(), urlopen(Request(self.far.url + path, data), timeout=LIMIT_S) as answer:
            return json.load(answer)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machines]:
    """This thread is on the gateway's machine from here on."""
    async with AsyncExitStack() as stack:
        try:
            network = stack.enter_context(make_network())
            stack.enter_context(network.gateway.entered())
        except NotPermittedError as error:
            pytest.skip(f"network namespaces can't be made here: {error}")
        guarded = Settings(tokens=TOKENS, guard=True, token=SECRET)
        with network.replica.entered():
            settings = replace(guarded, name="far", host=REPLICA_ADDRESS, token_interval_ms=TOKEN_INTERVAL_MS)
            far = await stack.enter_async_context(start_replica(settings))
        near = await stack.enter_async_context(start_replica(replace(guarded, name="near")))
        yield Machines(network, far, near, tmp_path_factory.mktemp("cuts"))


@dataclass
class Cuttable:
    """A gateway in front of both replicas."""

    machines: Machines
    front: str
    admin: str
    session: aiohttp.ClientSession

    async def ask_the_far_one(self) -> StreamedRequest:
        """Requests until the placement's turn comes to the far replica; that one, once the replica computes."""
        for _ in range(PLACINGS_MAX):
            request = StreamedRequest.send(self.session, self.front, BODY)
            while not request.answer.done():
                # Health's own short answer has no id.
                if any(
                    record["request_id"] and record["slot_taken_at"] and record["ended"] is None
                    for record in self.machines.call_far("/sim/log")
                ):
                    return request
                await asyncio.sleep(POLL_S)
        raise LookupError("the far replica was never asked")

    async def attempts(self, request_id: str) -> list[dict[str, Any]]:
        async with self.session.get(f"{self.admin}/deltafence/v1/requests/{request_id}") as answer:
            return list((await answer.json())["attempts"])

    async def records(self, request_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What the far and the near replica logged of one request, once none of them works on it any more."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                logs = self.machines.call_far("/sim/log"), await self.machines.near.log()
                far, near = ([record for record in log if record["request_id"] == request_id] for log in logs)
                if all(record["ended"] for record in (*far, *near)):
                    return far, near
                await asyncio.sleep(POLL_S)


@pytest_asyncio.fixture(loop_scope="module")
async def cuttable(machines: Machines) -> AsyncIterator[Cuttable]:
    policy, token, log = (machines.directory / name for name in ("policy.json", "token", "up.log"))
    policy.write_text(json.dumps(POLICY))
    token.write_text(SECRET)
    options = ("--policy", str(policy), "--token-file", str(token))
    async with (
        gateway([machines.far, machines.near], log, *options) as (front, admin),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as session,
    ):
        await until_every_replica(may_repeat, admin)
        yield Cuttable(machines, front, admin, session)
    machines.call_far("/sim/reset", {})
    await machines.near.reset()


@EVERY_CUT
async def test_cut_before_the_first_delta_gives_one_whole_answer_after_the_lease(cuttable: Cuttable, cut: Cut) -> None:
    stall = Fault(where=Where.IN_PREFILL, what=What.STALL, header=REQUEST_ID)
    cuttable.machines.call_far("/sim/faults", [encode_fault(stall)])
    request = await cuttable.ask_the_far_one()
    with cut(cuttable.machines.network):
        exchange = await request.answer
        assert judge(BEFORE, Dialect.CHAT, exchange, stream=True, tokens=TOKENS).problems == ()
        (far,), (near,) = await cuttable.records(exchange.request_id)
    assert (far["ended"], far["bytes_published"]) == (Ended.CANCELLED, 0)
    assert far["slot_freed_at"] <= near["received_at"]
    first, second = await cuttable.attempts(exchange.request_id)
    assert first["fence_proof"] == "lease_expired"
    assert (far["attempt_id"], near["attempt_id"]) == (first["attempt_id"], second["attempt_id"])


@EVERY_CUT
async def test_cut_after_the_first_delta_ends_the_stream_and_the_replica_stops_by_itself(cuttable: Cuttable, cut: Cut) -> None:
    request = await cuttable.ask_the_far_one()
    await request.until_first_delta()
    with cut(cuttable.machines.network):
        exchange = await request.answer
        assert judge(AFTER, Dialect.CHAT, exchange, stream=True, tokens=TOKENS).problems == ()
        (far,), near = await cuttable.records(exchange.request_id)
    assert (far["ended"], near) == (Ended.CANCELLED, [])
    (attempt,) = await cuttable.attempts(exchange.request_id)
    assert attempt["attempt_id"] == far["attempt_id"]
