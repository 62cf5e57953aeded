"""Attempts on guarded replicas, and what their replica's heartbeat tells about them."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from extproc.decision.causes import Cause, Failure
from extproc.decision.lease import FenceProof, Lease, Stamp
from extproc.decision.policy import LeasePolicy
from extproc.replicas.guard_client import GuardClient
from extproc.replicas.heartbeat import Heartbeat
from extproc.replicas.roster import Replica

log = logging.getLogger("deltafence.lease")


@dataclass(slots=True, kw_only=True)
class Source:
    """An attempt on a guarded replica, from its grant until it is over."""

    attempt_id: str
    watch: "Watch"
    policy: LeasePolicy
    on_lost: Callable[[Failure], None]
    proof: asyncio.Future[FenceProof]
    is_connection_closed: bool = False
    """Whether the attempt's own connection is known to be closed; only then does a refused connection prove anything."""
    pursuit: asyncio.Task[None] | None = None
    is_lost: bool = False

    @property
    def lease(self) -> Lease:
        """The longest grant sent."""
        lease = self.watch.heartbeat.lease(self.attempt_id)
        assert lease is not None, "a lease is dropped together with its source"
        return lease

    def end(self, proof: FenceProof, failure: Failure) -> None:
        """Something outside the attempt proves its end; whoever does not wait for that yet is told."""
        self.prove(proof)
        self.lose(failure)

    def lose(self, failure: Failure) -> None:
        """Tell the session, once, unless it has given the attempt up by itself."""
        if self.pursuit is None and not self.is_lost:
            self.is_lost = True
            self.on_lost(failure)

    def prove(self, proof: FenceProof) -> None:
        """The first proof stays."""
        if not self.proof.done():
            self.proof.set_result(proof)


ProcessHeard = Callable[[str, str], None]
"""Told a destination and the boot id that answers there: the first, and every other one after it. Must neither wait nor raise."""


def nobody_asks(destination: str, boot_id: str) -> None:
    """Where it concerns nobody else which process answers."""


class Watch:
    """One replica's heartbeat together with the attempts that live on it."""

    def __init__(
        self,
        replica: Replica,
        *,
        client: GuardClient,
        processor_id: str,
        interval_ms: int,
        process_heard: ProcessHeard = nobody_asks,
    ) -> None:
        self.replica = replica
        self._process_heard = process_heard
        self.sources: dict[str, Source] = {}
        self.heartbeat = Heartbeat(
            url=replica.url, processor_id=processor_id, client=client, listener=self, interval_ms=interval_ms
        )
        self.running = asyncio.create_task(self.heartbeat.run(), name=f"heartbeats {replica.url}")

    def end_all(self, proof: FenceProof, failure: Failure) -> None:
        """Something proves the end of every attempt here at once."""
        for source in list(self.sources.values()):
            source.end(proof, failure)

    def on_stamp(self, stamp: Stamp) -> None:
        """A stamp may prove that a lease is over, of an attempt that is being fenced or one that is not yet missed."""
        for source in list(self.sources.values()):
            if proof := source.lease.proof_by_stamp(stamp):
                source.end(proof, _failure_of(proof, stamp))

    def on_boot(self, before: str | None, after: str) -> None:
        """Its attempts hear of it from ``on_stamp``, which knows what it proves for each."""
        if before is not None:
            log.warning("replica %s restarted: boot id %s, was %s", self.replica.url, after, before)
        self._process_heard(self.replica.destination, after)

    def on_silence(self, attempt_id: str, silent_ms: int) -> None:
        """The lease is over on our own clock: the attempt is uncertain, and fenced at the same moment."""
        evidence = f"no heartbeat of {self.replica.url} answered for {silent_ms} ms; the lease has ended"
        self.sources[attempt_id].lose(Failure(cause=Cause.UNCERTAIN, evidence=evidence))


def _failure_of(proof: FenceProof, stamp: Stamp) -> Failure:
    if proof is FenceProof.BOOT_CHANGED:
        return Failure(cause=Cause.REPLICA_GONE, evidence=f"the replica restarted: boot id {stamp.boot_id}")
    return Failure(cause=Cause.UNCERTAIN, evidence=f"the lease has ended on the worker's own clock ({stamp.now_ms} ms)")
