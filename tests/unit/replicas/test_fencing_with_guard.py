"""The processor's side against the guard itself on a real uvicorn: two ends that were written apart understand each other."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from extproc.contract import headers
from extproc.decision.causes import Cause, Failure, Fencing
from extproc.decision.lease import FenceProof
from extproc.decision.policy import LeasePolicy
from extproc.replicas.fencing import GuardedFence
from extproc.replicas.guard_client import GuardClient
from extproc.replicas.heartbeat import GuardStanding
from extproc.replicas.roster import Replica
from tests.unit.replicas.scripted_guard import Clock
from tests.unit.worker.conftest import http, replica, settings  # noqa: F401  (fixtures)
from tests.unit.worker.guarded_replica import TOKEN, GuardedReplica

POLICY = LeasePolicy(ttl_ms=10_000, cancel_timeout_ms=5_000)
SILENT = Failure(cause=Cause.UNCERTAIN, evidence="silence")


class Gateway:
    """A fence and the one replica it deals with."""

    def __init__(self, fence: GuardedFence, guarded: GuardedReplica) -> None:
        self.fence = fence
        self.guarded = guarded
        self.place = Replica(destination=guarded.url.removeprefix("http://"), url=guarded.url)
        self.lost: asyncio.Queue[Failure] = asyncio.Queue()

    async def granted(self) -> dict[str, str]:
        lease = await self.fence.grant("att_1", self.place, self.lost.put_nowait, POLICY)
        return {headers.ATTEMPT_ID: "att_1"} | dict(lease)

    async def fenced(self) -> str | None:
        return await self.fence.fence("att_1", self.place, Fencing.REVOKE_AND_WAIT, SILENT)


@pytest.fixture
async def gateway(replica: GuardedReplica, clock: Clock) -> AsyncIterator[Gateway]:  # noqa: F811
    async with aiohttp.ClientSession() as session:
        client = GuardClient(session=session, token=TOKEN, clock_ms=clock)
        fence = GuardedFence(client=client, processor_id="gateway-1")
        yield Gateway(fence, replica)
        await fence.close()


async def test_guard_is_found(gateway: Gateway) -> None:
    assert await gateway.fence.find_guard(gateway.place) is GuardStanding.PRESENT


async def test_guard_with_another_secret_is_told_apart(gateway: Gateway, clock: Clock) -> None:
    stranger = GuardClient(session=gateway.fence.client.session, token="guessed", clock_ms=clock)
    fence = GuardedFence(client=stranger, processor_id="gateway-1")
    assert await fence.find_guard(gateway.place) is GuardStanding.TOKEN_REFUSED
    await fence.close()


async def test_granted_attempt_is_served_and_fenced(gateway: Gateway) -> None:
    response = await gateway.guarded.begin(fields=await gateway.granted())
    assert await gateway.fenced() == FenceProof.CANCEL_ACKNOWLEDGED
    assert gateway.guarded.app.ended.is_set()
    with pytest.raises(aiohttp.ClientPayloadError):
        await response.read()


async def test_attempt_that_arrives_after_its_fence_is_refused(gateway: Gateway) -> None:
    lease = await gateway.granted()
    assert await gateway.fenced() == FenceProof.NOT_STARTED
    response = await gateway.guarded.post("/v1/chat/completions", lease)
    assert (response.status, response.headers[headers.REFUSAL]) == (409, "tombstoned")


async def test_heartbeat_keeps_a_slow_attempt_alive(gateway: Gateway, clock: Clock) -> None:
    """Three leases long nothing comes, and the attempt is left alone (R5: slow is not dead)."""
    request = gateway.guarded.start(await gateway.granted())
    await gateway.guarded.app.arrived.wait()
    for _ in range(6):
        clock.now_ms += 5_000
        gateway.guarded.now_ms += 5_000
        await gateway.fence.find_guard(gateway.place)  # the stamp
        await gateway.fence.find_guard(gateway.place)  # the renewal that counts from it
    assert gateway.fence.may_publish("att_1")
    gateway.guarded.app.chunks.put_nowait(b"data: at last\n\n")
    assert await (await request).content.readany() == b"data: at last\n\n"


async def test_guard_stops_by_itself_what_is_not_renewed(gateway: Gateway) -> None:
    request = gateway.guarded.start(await gateway.granted())
    await gateway.guarded.app.arrived.wait()
    gateway.guarded.now_ms += 10_000
    response = await request
    assert (response.status, response.headers[headers.REFUSAL]) == (409, "lease_expired")
    assert gateway.guarded.app.cancelled.is_set()
