"""Leases and fences of one processor's attempts: granted, renewed, taken back and proved to be over (R6, R7, DESIGN section 5).

``GuardedFence`` is what a session asks (processor.ports.Fence). Every attempt on a guarded replica is a ``Source`` with one
future: its proof. Whoever learns something puts it there: a cancel call's answer, a heartbeat's stamp, the orchestrator, or
the clock. A fence is the wait for that future, so that the first proof wins, and with a lease there always is one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from extproc.contract import headers
from extproc.decision.causes import Cause, Failure, Fencing
from extproc.decision.lease import FenceProof, LeaseTerms, proof_by_cancel
from extproc.decision.policy import LeasePolicy
from extproc.replicas.guard_client import GuardClient, GuardUnheardError, NotListeningError
from extproc.replicas.heartbeat import INTERVAL_MS, GuardStanding
from extproc.replicas.roster import Replica
from extproc.replicas.unguarded import UnguardedFence
from extproc.replicas.watch import ProcessHeard, Source, Watch, nobody_asks

log = logging.getLogger("deltafence.lease")

CANCEL_RETRY_S: Final = 0.1
"""Between a cancel call that failed and the next one; doubled each time."""
CANCEL_RETRY_S_MAX: Final = 1.6
"""So that many attempts on one dead replica don't become a flood of connections."""


class LeaseNotGrantedError(ConnectionError):
    """The replica's guard could not be heard in time, so no attempt may start there. The message is the evidence."""


@dataclass(slots=True, kw_only=True)
class GuardedFence:
    """All of one processor's leases. A RosterListener, so that replicas are heard from before they get attempts.

    ``close`` it when the process ends.
    """

    client: GuardClient
    processor_id: str
    drift_ppm: int = LeaseTerms().drift_ppm
    interval_ms: int = INTERVAL_MS
    process_heard: ProcessHeard = nobody_asks
    _unguarded: UnguardedFence = field(default_factory=UnguardedFence, init=False)
    _unguarded_attempts: set[str] = field(default_factory=set, init=False)
    _watches: dict[str, Watch] = field(default_factory=dict, init=False)
    _sources: dict[str, Source] = field(default_factory=dict, init=False)
    _pursuits: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _known: set[str] | None = field(default=None, init=False)
    """Destinations in the roster; None until it has spoken."""

    def watch(self, replica: Replica) -> Watch:
        """Begin to beat, where that has not begun."""
        watch = self._watches.get(replica.destination)
        if watch is None:
            watch = Watch(
                replica,
                client=self.client,
                processor_id=self.processor_id,
                interval_ms=self.interval_ms,
                process_heard=self.process_heard,
            )
            self._watches[replica.destination] = watch
        return watch

    def replicas_changed(self, replicas: tuple[Replica, ...]) -> None:
        """See RosterListener. One that left is heard from until its last attempt is over: leaving a list ends no process."""
        self._known = {replica.destination for replica in replicas}
        for replica in replicas:
            self.watch(replica)
        for watch in list(self._watches.values()):
            self._end_if_unused(watch)

    def attempt_placed(self, replica: Replica) -> None:
        """See RosterListener."""

    async def find_guard(self, replica: Replica) -> GuardStanding:
        """Ask once whether the replica has a guard; for the report at start."""
        heartbeat = self.watch(replica).heartbeat
        await heartbeat.beat()
        return heartbeat.standing

    def pod_deleted(self, replica: Replica) -> None:
        """The orchestrator says that the replica's processes have ended: a proof for all its attempts, and no more beats."""
        watch = self._watches.pop(replica.destination, None)
        if watch is not None:
            watch.running.cancel()
            watch.end_all(FenceProof.POD_DELETED, Failure(cause=Cause.REPLICA_GONE, evidence=f"pod of {replica.url} deleted"))

    async def close(self) -> None:
        """End every task. Attempts that still run are their sessions' to cancel first."""
        tasks = [*(watch.running for watch in self._watches.values()), *self._pursuits]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def grant(
        self,
        attempt_id: str,
        replica: Replica,
        on_lost: Callable[[Failure], None],
        policy: LeasePolicy,
    ) -> Sequence[tuple[str, str]]:
        """The lease's headers, none for a replica without a guard. Raises LeaseNotGrantedError."""
        watch = self.watch(replica)
        if not self._has_fresh_stamp(watch, policy):
            await self._hear_now(watch, policy)
        if watch.heartbeat.standing is not GuardStanding.PRESENT:
            self._unguarded_attempts.add(attempt_id)
            return ()
        if not self._has_fresh_stamp(watch, policy):
            raise LeaseNotGrantedError(f"no heartbeat of {replica.url} answered within {policy.cancel_timeout_ms} ms")
        proof: asyncio.Future[FenceProof] = asyncio.get_running_loop().create_future()
        source = Source(attempt_id=attempt_id, watch=watch, policy=policy, on_lost=on_lost, proof=proof)
        self._sources[attempt_id] = watch.sources[attempt_id] = source
        lease = watch.heartbeat.hold(attempt_id, LeaseTerms(ttl_ms=policy.ttl_ms, drift_ppm=self.drift_ppm))
        return (
            (headers.BOOT_ID, lease.boot_id),
            (headers.VALID_UNTIL_MS, str(lease.valid_until_ms)),
            (headers.TOKEN, self.client.token),
        )

    def may_publish(self, attempt_id: str) -> bool:
        """Whether a chunk may be forwarded now: before the bound, and before the lease was taken back."""
        source = self._sources.get(attempt_id)
        if source is None:
            return attempt_id in self._unguarded_attempts
        return source.pursuit is None and source.lease.may_forward(now_ms=self.client.clock_ms())

    async def fence(self, attempt_id: str, replica: Replica, fencing: Fencing, failure: Failure) -> str | None:
        """The proof that the attempt can't publish; None only where there is no guard and no proof can be had."""
        source = self._sources.get(attempt_id)
        if source is None:
            self._unguarded_attempts.discard(attempt_id)
            return await self._unguarded.fence(attempt_id, replica, fencing, failure)
        if fencing is Fencing.NOT_NEEDED:
            self.release(attempt_id)
            return FenceProof.NOT_STARTED if failure.cause is Cause.NEVER_STARTED else FenceProof.ENDED_BY_ITSELF
        source.is_connection_closed = fencing is Fencing.CONFIRM
        self._pursue(source)
        return await asyncio.shield(source.proof)

    def cancel(self, attempt_id: str, replica: Replica) -> None:
        """Ask the replica to stop until it has, or until the lease is over; nobody waits."""
        self._unguarded_attempts.discard(attempt_id)
        source = self._sources.get(attempt_id)
        if source is not None:
            self._pursue(source)

    def release(self, attempt_id: str) -> None:
        """The attempt is over and its lease needs no renewal. What is being pursued goes on to its end by itself."""
        self._unguarded_attempts.discard(attempt_id)
        source = self._sources.get(attempt_id)
        if source is not None and source.pursuit is None:
            self._forget(source)

    def _pursue(self, source: Source) -> None:
        """Take the lease back and look for a proof that it is over. Goes on when whoever asked has left (R7)."""
        if source.pursuit is None:
            source.watch.heartbeat.revoke(source.attempt_id)
            source.pursuit = asyncio.create_task(self._find_proof(source), name=f"fence {source.attempt_id}")
            self._pursuits.add(source.pursuit)
            source.pursuit.add_done_callback(self._pursuits.discard)

    async def _find_proof(self, source: Source) -> None:
        calling = asyncio.create_task(self._call_until_stopped(source), name=f"cancel {source.attempt_id}")
        try:
            await self._await_proof(source)
            log.info("attempt %s fenced: %s", source.attempt_id, source.proof.result())
        finally:
            calling.cancel()
            source.proof.cancel()  # nobody will find one any more; without effect where there is one
            self._forget(source)

    async def _await_proof(self, source: Source) -> None:
        while not source.proof.done():
            now_ms = self.client.clock_ms()
            if proof := source.lease.proof_by_clock(now_ms=now_ms):
                source.prove(proof)
            else:
                await asyncio.wait({source.proof}, timeout=(source.lease.publish_bound_ms - now_ms) / 1000)

    async def _call_until_stopped(self, source: Source) -> None:
        pause_s = CANCEL_RETRY_S
        while not source.proof.done():
            if proof := await self._call_cancel(source):
                source.prove(proof)
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, CANCEL_RETRY_S_MAX)

    async def _call_cancel(self, source: Source) -> FenceProof | None:
        url, timeout_ms = source.watch.replica.url, source.policy.cancel_timeout_ms
        try:
            heard = await self.client.cancel(url, source.attempt_id, timeout_ms=timeout_ms)
        except NotListeningError:
            # A refusal alone is no proof: a server that shuts down refuses new connections while its streams run on.
            return FenceProof.CONNECTION_REFUSED if source.is_connection_closed else None
        except GuardUnheardError as error:
            log.debug("cancel of %s not acknowledged: %s", source.attempt_id, error)
            return None
        return proof_by_cancel(source.lease, heard.stamp, heard.state)

    def _has_fresh_stamp(self, watch: Watch, policy: LeasePolicy) -> bool:
        """A lease that counts from a stamp older than half of it would be too short to be renewed in time."""
        stamp = watch.heartbeat.stamp
        return stamp is not None and self.client.clock_ms() - stamp.received_at_ms <= policy.ttl_ms // 2

    async def _hear_now(self, watch: Watch, policy: LeasePolicy) -> None:
        """One beat more than the regular ones, given up after a cancel's timeout."""
        if watch.heartbeat.standing is GuardStanding.ABSENT:
            return
        try:
            async with asyncio.timeout(policy.cancel_timeout_ms / 1000):
                await watch.heartbeat.beat()
        except TimeoutError:
            log.info("no heartbeat of %s answered in time for a new attempt", watch.replica.url)

    def _forget(self, source: Source) -> None:
        source.watch.heartbeat.drop(source.attempt_id)
        source.watch.sources.pop(source.attempt_id, None)
        self._sources.pop(source.attempt_id, None)
        self._end_if_unused(source.watch)

    def _end_if_unused(self, watch: Watch) -> None:
        destination = watch.replica.destination
        if self._known is not None and destination not in self._known and not watch.sources:
            watch.running.cancel()
            self._watches.pop(destination, None)
