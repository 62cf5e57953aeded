"""Leases and fences of a session: each proof from real evidence, and never one from silence alone (R5, R6, R7)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extproc.contract import headers
from extproc.decision.causes import Cause, Failure, Fencing
from extproc.decision.lease import FenceProof
from extproc.decision.policy import LeasePolicy
from extproc.replicas.fencing import GuardedFence, LeaseNotGrantedError
from extproc.replicas.guard_client import GuardClient
from extproc.replicas.heartbeat import GuardStanding
from extproc.replicas.roster import Replica, Roster
from tests.unit.replicas.scripted_guard import TOKEN, Clock, ScriptedGuard

LONG = LeasePolicy(ttl_ms=60_000, cancel_timeout_ms=30_000)
SHORT = LeasePolicy(ttl_ms=50, cancel_timeout_ms=50)
IMPATIENT = LeasePolicy(ttl_ms=60_000, cancel_timeout_ms=1)
GONE = Failure(cause=Cause.REPLICA_GONE, evidence="connection closed")
SILENT = Failure(cause=Cause.UNCERTAIN, evidence="silence")
ENDED = Failure(cause=Cause.ENGINE_ERROR, evidence="in-band error")
NEVER = Failure(cause=Cause.NEVER_STARTED, evidence="UF")


@pytest.fixture
async def fence(client: GuardClient) -> AsyncIterator[GuardedFence]:
    fence = GuardedFence(client=client, processor_id="gateway-1")
    yield fence
    await fence.close()


@pytest.fixture
def replica(guard: ScriptedGuard) -> Replica:
    return Replica(destination=guard.url.removeprefix("http://"), url=guard.url)


@pytest.fixture
def lost() -> asyncio.Queue[Failure]:
    return asyncio.Queue()


class TestGrant:
    async def test_headers_carry_the_lease(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure]
    ) -> None:
        lease = dict(await fence.grant("att_1", replica, lost.put_nowait, LONG))
        assert lease == {
            headers.BOOT_ID: "boot_a",
            headers.VALID_UNTIL_MS: str(guard.now_ms + 60_000),
            headers.TOKEN: TOKEN,
        }
        assert fence.may_publish("att_1")

    async def test_replica_without_a_guard_gets_none(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure]
    ) -> None:
        guard.status = 404
        assert await fence.grant("att_1", replica, lost.put_nowait, LONG) == ()
        assert fence.may_publish("att_1")
        assert await fence.fence("att_1", replica, Fencing.CONFIRM, GONE) == FenceProof.CONNECTION_CLOSED
        assert not fence.may_publish("att_1")

    async def test_without_a_guard_silence_is_never_a_fence(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure]
    ) -> None:
        guard.status = 404
        await fence.grant("att_1", replica, lost.put_nowait, LONG)
        assert await fence.fence("att_1", replica, Fencing.REVOKE_AND_WAIT, SILENT) is None

    async def test_guard_that_is_known_and_not_heard_starts_nothing(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure], clock: Clock
    ) -> None:
        await fence.find_guard(replica)
        clock.now_ms += 30_001  # the stamp is older than half a lease
        guard.is_answering.clear()
        with pytest.raises(LeaseNotGrantedError, match=replica.url):
            await fence.grant("att_1", replica, lost.put_nowait, IMPATIENT)
        assert not fence.may_publish("att_1")

    @pytest.mark.parametrize(
        ("status", "expected"), [(200, GuardStanding.PRESENT), (404, GuardStanding.ABSENT), (403, GuardStanding.TOKEN_REFUSED)]
    )
    async def test_report_at_start(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, status: int, expected: GuardStanding
    ) -> None:
        guard.status = status
        assert await fence.find_guard(replica) is expected


class TestProofs:
    @pytest.fixture(autouse=True)
    async def granted(self, fence: GuardedFence, replica: Replica, lost: asyncio.Queue[Failure]) -> None:
        await fence.grant("att_1", replica, lost.put_nowait, LONG)

    @pytest.mark.parametrize("fencing", [Fencing.CONFIRM, Fencing.REVOKE_AND_WAIT])
    @pytest.mark.parametrize(
        ("state", "proof"),
        [
            ("stopped", FenceProof.CANCEL_ACKNOWLEDGED),
            ("never_started", FenceProof.NOT_STARTED),
            ("finished", FenceProof.ENDED_BY_ITSELF),
        ],
    )
    async def test_acknowledged_cancel(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, fencing: Fencing, state: str, proof: FenceProof
    ) -> None:
        guard.cancel_state = state
        assert await fence.fence("att_1", replica, fencing, GONE) == proof
        assert not fence.may_publish("att_1")

    async def test_cancel_that_was_sent_is_not_one_that_was_proved(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard
    ) -> None:
        guard.is_answering.clear()
        fencing = asyncio.create_task(fence.fence("att_1", replica, Fencing.CONFIRM, GONE))
        await guard.heard(cancels=1)
        assert not fencing.done()
        guard.is_answering.set()
        assert await fencing == FenceProof.CANCEL_ACKNOWLEDGED

    async def test_failed_cancel_is_sent_again(self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard) -> None:
        guard.status = 503
        fencing = asyncio.create_task(fence.fence("att_1", replica, Fencing.REVOKE_AND_WAIT, SILENT))
        await guard.heard(cancels=2)
        assert not fencing.done()
        guard.status = 200
        assert await fencing == FenceProof.CANCEL_ACKNOWLEDGED

    async def test_another_boot_id_answers_the_cancel(self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard) -> None:
        guard.boot_id, guard.cancel_state = "boot_b", "never_started"
        assert await fence.fence("att_1", replica, Fencing.CONFIRM, GONE) == FenceProof.BOOT_CHANGED

    async def test_closed_connection_and_then_a_refused_one(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard
    ) -> None:
        await guard.stop()
        assert await fence.fence("att_1", replica, Fencing.CONFIRM, GONE) == FenceProof.CONNECTION_REFUSED

    async def test_refused_connection_alone_proves_nothing(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard
    ) -> None:
        """A server that shuts down closes its listener first and lets its streams run on."""
        await guard.stop()
        fencing = asyncio.create_task(fence.fence("att_1", replica, Fencing.REVOKE_AND_WAIT, SILENT))
        await guard.start()
        guard.is_answering.clear()
        await guard.heard(cancels=1)
        assert not fencing.done()
        guard.is_answering.set()
        assert await fencing == FenceProof.CANCEL_ACKNOWLEDGED

    async def test_deleted_pod(self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard) -> None:
        guard.is_answering.clear()
        fencing = asyncio.create_task(fence.fence("att_1", replica, Fencing.REVOKE_AND_WAIT, SILENT))
        await guard.heard(cancels=1)
        fence.pod_deleted(replica)
        assert await fencing == FenceProof.POD_DELETED

    async def test_stamp_at_the_leases_end_while_the_cancel_hangs(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard
    ) -> None:
        guard.is_answering.clear()
        fencing = asyncio.create_task(fence.fence("att_1", replica, Fencing.REVOKE_AND_WAIT, SILENT))
        await guard.heard(cancels=1)
        assert not fencing.done()
        guard.now_ms += 60_000
        hanging, guard.is_answering = guard.is_answering, asyncio.Event()
        guard.is_answering.set()  # for what comes from now on
        await fence.find_guard(replica)
        assert await fencing == FenceProof.LEASE_EXPIRED
        hanging.set()

    async def test_ended_attempt_needs_none(self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard) -> None:
        assert await fence.fence("att_1", replica, Fencing.NOT_NEEDED, ENDED) == FenceProof.ENDED_BY_ITSELF
        assert not guard.cancels
        assert not fence.may_publish("att_1")

    async def test_attempt_that_never_started_needs_none(self, fence: GuardedFence, replica: Replica) -> None:
        assert await fence.fence("att_1", replica, Fencing.NOT_NEEDED, NEVER) == FenceProof.NOT_STARTED

    async def test_nothing_is_forwarded_while_it_is_looked_for(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard
    ) -> None:
        guard.is_answering.clear()
        fencing = asyncio.create_task(fence.fence("att_1", replica, Fencing.REVOKE_AND_WAIT, SILENT))
        await guard.heard(cancels=1)
        assert not fence.may_publish("att_1")
        guard.is_answering.set()
        await fencing

    async def test_goes_on_when_the_session_has_left(self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard) -> None:
        """The client hung up while the fence was waited for; the replica must be stopped all the same."""
        guard.status = 503
        fencing = asyncio.create_task(fence.fence("att_1", replica, Fencing.REVOKE_AND_WAIT, SILENT))
        await guard.heard(cancels=1)
        fencing.cancel()
        await guard.heard(cancels=2)


class TestCancel:
    async def test_is_sent_and_nobody_waits(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure]
    ) -> None:
        await fence.grant("att_1", replica, lost.put_nowait, LONG)
        fence.cancel("att_1", replica)
        assert not fence.may_publish("att_1")
        await guard.heard(cancels=1)

    async def test_of_an_unknown_attempt_does_nothing(self, fence: GuardedFence, replica: Replica) -> None:
        fence.cancel("att_unknown", replica)
        fence.release("att_unknown")

    async def test_released_attempt_is_renewed_no_more(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure]
    ) -> None:
        await fence.grant("att_1", replica, lost.put_nowait, LONG)
        fence.release("att_1")
        await fence.find_guard(replica)
        assert guard.beats[-1]["leases"] == []
        assert not fence.may_publish("att_1")


class TestLoss:
    """What a session hears without having asked."""

    async def test_silence_makes_an_attempt_uncertain_at_its_leases_end_and_the_fence_is_there(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure], clock: Clock
    ) -> None:
        await fence.find_guard(replica)
        guard.is_answering.clear()
        await fence.grant("att_1", replica, lost.put_nowait, SHORT)
        assert fence.may_publish("att_1")
        clock.now_ms += 1_000
        failure = await lost.get()
        assert failure.cause is Cause.UNCERTAIN
        assert "no heartbeat" in failure.evidence
        assert not fence.may_publish("att_1")
        assert await fence.fence("att_1", replica, Fencing.REVOKE_AND_WAIT, failure) == FenceProof.LEASE_EXPIRED

    async def test_restart_is_told_with_its_proof(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure]
    ) -> None:
        await fence.grant("att_1", replica, lost.put_nowait, LONG)
        guard.boot_id = "boot_b"
        await fence.find_guard(replica)
        await fence.find_guard(replica)
        failure = lost.get_nowait()
        assert (failure.cause, failure.evidence) == (Cause.REPLICA_GONE, "the replica restarted: boot id boot_b")
        assert lost.empty()  # once
        assert await fence.fence("att_1", replica, Fencing.CONFIRM, failure) == FenceProof.BOOT_CHANGED

    async def test_workers_own_clock_past_the_lease_is_told(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure]
    ) -> None:
        await fence.grant("att_1", replica, lost.put_nowait, LONG)
        guard.now_ms += 60_000
        fence.watch(replica).heartbeat.revoke("att_1")
        await fence.find_guard(replica)
        assert lost.get_nowait().cause is Cause.UNCERTAIN

    async def test_deleted_pod_is_told(self, fence: GuardedFence, replica: Replica, lost: asyncio.Queue[Failure]) -> None:
        await fence.grant("att_1", replica, lost.put_nowait, LONG)
        fence.pod_deleted(replica)
        failure = lost.get_nowait()
        assert failure.cause is Cause.REPLICA_GONE
        assert await fence.fence("att_1", replica, Fencing.CONFIRM, failure) == FenceProof.POD_DELETED

    async def test_closed_processor_leaves_no_fence_waiting(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard, lost: asyncio.Queue[Failure]
    ) -> None:
        await fence.grant("att_1", replica, lost.put_nowait, LONG)
        guard.is_answering.clear()
        fencing = asyncio.create_task(fence.fence("att_1", replica, Fencing.REVOKE_AND_WAIT, SILENT))
        await guard.heard(cancels=1)
        await fence.close()
        with pytest.raises(asyncio.CancelledError):
            await fencing


class TestRoster:
    async def test_a_replica_is_heard_from_before_it_gets_attempts(
        self, fence: GuardedFence, replica: Replica, guard: ScriptedGuard
    ) -> None:
        Roster([replica]).subscribe(fence)
        await guard.heard(beats=1)
        assert fence.watch(replica).heartbeat.url == replica.url

    async def test_one_that_left_is_heard_from_until_its_last_attempt_is_over(
        self, fence: GuardedFence, replica: Replica, lost: asyncio.Queue[Failure]
    ) -> None:
        roster = Roster([replica])
        roster.subscribe(fence)
        await fence.grant("att_1", replica, lost.put_nowait, LONG)
        watch = fence.watch(replica)
        roster.become([])
        assert fence.watch(replica) is watch
        fence.release("att_1")
        with pytest.raises(asyncio.CancelledError):
            await watch.running

    async def test_each_process_that_answers_is_told_to_whoever_learns_what_is_served(
        self, client: GuardClient, replica: Replica, guard: ScriptedGuard, clock: Clock
    ) -> None:
        heard: list[tuple[str, str]] = []
        fence = GuardedFence(client=client, processor_id="gateway-1", process_heard=lambda *process: heard.append(process))
        for _ in range(2):
            await fence.find_guard(replica)
            clock.now_ms += 1
        assert heard == [(replica.destination, "boot_a")]
        guard.boot_id = "boot_b"
        clock.now_ms += 1
        await fence.find_guard(replica)
        await fence.close()
        assert heard[1:] == [(replica.destination, "boot_b")]
