"""Lease arithmetic: until when an attempt may publish, and from when on it surely can't (R6, R7, DESIGN section 5).

Two machines, two clocks that are never compared. The **worker** is the guard in the replica's pod, the **processor** is the
gateway.

1. The worker stamps its clock reading ``s`` and its boot id on an answer; the processor reads ``r`` on its own clock when
   the stamp arrives.
2. The processor grants ``valid_until = s + ttl``: a number on the worker's clock, which the worker itself once wrote plus a
   duration. It sends it with the attempt or, as a renewal, with a heartbeat, and counts it **from the moment before
   sending**.
3. The worker publishes a chunk only while its clock reads less than the largest ``valid_until`` that reached it. A lease
   that has ended is not revived by a late renewal.
4. The processor forwards a chunk of the attempt only while its own clock reads less than ``publish_bound``, and lets
   another attempt start on the ground of time only from ``publish_bound`` on, where::

       publish_bound = r + ceil(ttl * (1 + drift)) + 1

Why no two attempts publish at once. Let the stamp be taken at the true moment ``ts`` and received at ``tr``; a message
can't arrive before it was written, so ``ts <= tr``. The worker's clock reaches ``s + ttl`` at a true moment ``te``. Between
``ts`` and ``te`` the worker's clock advances by at most ``ttl`` (it reads whole milliseconds, rounded down, and so does the
stamp), hence the processor's, which runs at most ``1 + drift`` times as fast, by at most ``ttl * (1 + drift)``. Between
``tr`` and ``te`` it advances by no more than that, so at ``te`` it reads at most ``r + ttl * (1 + drift)``, plus less than
one for the fraction that reading ``r`` cut off: below or at ``publish_bound``. However long any message was delayed, and in
whatever order messages arrived, the worker stops first.

Why the **longest grant sent** counts, whether or not its receipt is known. The worker's lease is the largest grant that
*arrived*; those are some of the grants that were *sent*. The bound that belongs to the largest ``valid_until`` sent holds
for every smaller one. A bound moved only when a renewal is acknowledged would be too early: the renewal may have arrived
and its answer been lost.

Why forwarding needs no stricter bound than that. Forwarding (before the bound) and a repeat (from the bound on) exclude
each other on one clock, the processor's. A chunk that arrives before the bound was published under a lease that this
processor granted.

Why a request never waits longer than one lease. A grant can only be computed from a stamp that was received, so a worker
that can't be heard isn't renewed, however many heartbeats are sent; and revoking ends the renewals. At any moment the bound
lies at most ``ceil(ttl * (1 + drift)) + 1`` ahead.

The worker's clock must go on while its machine is suspended (CLOCK_BOOTTIME); the processor's need not.
``tests/simulation`` shows the claims under random delay, loss, duplication and reordering, and that each of the steps above
is needed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.contract.guard import GuardRefusal, StopState

PARTS_PER_MILLION: Final = 1_000_000


class FenceProof(StrEnum):
    """Why an attempt can't publish any more. Each is evidence that was seen, never a guess (R7)."""

    NOT_STARTED = "not_started"
    """Refused by the guard, or unknown to it and barred from arriving later (a tombstone)."""
    CONNECTION_CLOSED = "connection_closed"
    """The attempt's own connection is closed. Counts only where there is no guard: with one, something better can be had."""
    CANCEL_ACKNOWLEDGED = "cancel_acknowledged"
    """The guard answered a cancel call after the attempt had stopped."""
    BOOT_CHANGED = "boot_changed"
    """The replica's address answered, after the lease was granted, with another boot id: the process of the lease is gone."""
    CONNECTION_REFUSED = "connection_refused"
    """The attempt's connection broke and the replica's address then refused a new one: no process listens there."""
    LEASE_EXPIRED = "lease_expired"
    """The longest grant ever sent has ended, by the processor's bound or by a later stamp of the worker itself."""
    POD_DELETED = "pod_deleted"
    """The orchestrator says that the pod's processes have ended."""
    ENDED_BY_ITSELF = "ended_by_itself"
    """The attempt's own last words (an in-band error, an abort), or the guard's record that it had ended before the cancel."""


ACCEPTED_WITHOUT_GUARD: Final = frozenset(
    {
        FenceProof.NOT_STARTED,
        FenceProof.CONNECTION_CLOSED,
        FenceProof.CONNECTION_REFUSED,
        FenceProof.POD_DELETED,
        FenceProof.ENDED_BY_ITSELF,
    }
)
"""What counts for a replica without the guard; silence never becomes one of these, so it ends in a controlled error."""


STOPPED_PROOF: Final = {
    StopState.STOPPED: FenceProof.CANCEL_ACKNOWLEDGED,
    StopState.NEVER_STARTED: FenceProof.NOT_STARTED,
    StopState.FINISHED: FenceProof.ENDED_BY_ITSELF,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a worker wrote on one answer, and the processor's clock readings around it. Milliseconds."""

    boot_id: str
    now_ms: int
    """The worker's clock when it wrote the stamp."""
    asked_at_ms: int
    """The processor's clock before the request was sent that this stamp answers: the stamp is not older."""
    received_at_ms: int
    """The processor's clock after the stamp arrived."""

    def __post_init__(self) -> None:
        assert self.asked_at_ms <= self.received_at_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """How long a lease runs, and how much faster than a worker's clock the processor's may run.

    The default drift of 2,000 ppm is twice what two clocks can reach that NTP slews at its limit of 500 ppm in opposite
    directions; it costs 20 ms of waiting on a lease of 10 s.
    """

    ttl_ms: int = 10_000
    drift_ppm: int = 2_000

    def __post_init__(self) -> None:
        assert self.ttl_ms > 0
        assert self.drift_ppm >= 0

    @property
    def longest_wait_ms(self) -> int:
        """From receiving a stamp until the lease granted on it is surely over, on the processor's clock."""
        drift_ms = -(-self.ttl_ms * self.drift_ppm // PARTS_PER_MILLION)
        return self.ttl_ms + drift_ms + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The longest grant sent for one attempt, seen from the processor."""

    boot_id: str
    """The worker process that alone may serve it."""
    valid_until_ms: int
    """On the worker's clock: from here on the worker publishes nothing."""
    publish_bound_ms: int
    """On the processor's clock: before it chunks may be forwarded, from it on another attempt may publish."""
    stamp_received_at_ms: int
    """On the processor's clock: when the stamp arrived that the grant counts from."""

    def may_forward(self, *, now_ms: int) -> bool:
        """Whether a chunk of this attempt may go to the client at ``now_ms`` on the processor's clock."""
        return now_ms < self.publish_bound_ms

    def renewed(self, stamp: Stamp, terms: LeaseTerms) -> "Lease":
        """The lease after a renewal on ``stamp`` is sent: the longer of the two, and unchanged by another process's stamp."""
        if stamp.boot_id != self.boot_id:
            return self
        offered = grant(stamp, terms)
        return offered if offered.valid_until_ms > self.valid_until_ms else self

    def proof_by_clock(self, *, now_ms: int) -> FenceProof | None:
        """``LEASE_EXPIRED`` once the processor's clock has reached the bound."""
        return None if self.may_forward(now_ms=now_ms) else FenceProof.LEASE_EXPIRED

    def proof_by_stamp(self, stamp: Stamp) -> FenceProof | None:
        """What a stamp from the replica's address proves about this lease.

        Another boot id counts only on an answer that was asked for after the lease's own stamp had arrived: an answer of the
        process *before* this one may still be under way, and proves nothing.
        """
        if stamp.boot_id != self.boot_id:
            return FenceProof.BOOT_CHANGED if stamp.asked_at_ms >= self.stamp_received_at_ms else None
        return None if may_publish(valid_until_ms=self.valid_until_ms, now_ms=stamp.now_ms) else FenceProof.LEASE_EXPIRED


def grant(stamp: Stamp, terms: LeaseTerms) -> Lease:
    """A lease that counts from ``stamp``. Its bound is in force from before it is sent."""
    return Lease(
        boot_id=stamp.boot_id,
        valid_until_ms=stamp.now_ms + terms.ttl_ms,
        publish_bound_ms=stamp.received_at_ms + terms.longest_wait_ms,
        stamp_received_at_ms=stamp.received_at_ms,
    )


def is_newer(offered: Stamp, held: Stamp) -> bool:
    """Whether a stamp replaces the one that grants were counted from: only if it was asked for later.

    So an answer of an earlier process of the replica, or a second copy of an answer, that arrives late changes nothing.
    """
    return offered.asked_at_ms > held.asked_at_ms


def proof_by_cancel(lease: Lease, stamp: Stamp, state: StopState) -> FenceProof | None:
    """What a cancel call's acknowledgement proves: only the lease's own process can speak for the attempt."""
    return STOPPED_PROOF[state] if stamp.boot_id == lease.boot_id else lease.proof_by_stamp(stamp)


def proof_by_refusal(refusal: GuardRefusal) -> FenceProof | None:
    """What a guard's refusal of an attempt proves. None of a second copy: the first may be running."""
    return None if refusal is GuardRefusal.DUPLICATE_ATTEMPT else FenceProof.NOT_STARTED


def may_publish(*, valid_until_ms: int, now_ms: int) -> bool:
    """The worker's check before each chunk, both on its own clock."""
    return now_ms < valid_until_ms


def valid_until_after_renewal(*, held_ms: int, offered_ms: int, now_ms: int) -> int:
    """The worker's lease after a renewal arrived: never shorter, and never revived once it has ended."""
    return max(held_ms, offered_ms) if may_publish(valid_until_ms=held_ms, now_ms=now_ms) else held_ms
