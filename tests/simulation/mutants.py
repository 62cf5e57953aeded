"""The lease protocol with one step left out or done wrong; each must be caught by the simulation."""

from dataclasses import replace

from extproc.decision.lease import FenceProof, Lease, LeaseTerms, Stamp, grant
from tests.simulation.world import Rules


class OtherArithmetic(Rules):
    """A mutant's grant, in renewals too."""

    def renewed(self, lease: Lease, stamp: Stamp, terms: LeaseTerms, now_ms: int) -> Lease:
        offered = self.grant(stamp, terms, now_ms)
        is_longer = stamp.boot_id == lease.boot_id and offered.valid_until_ms > lease.valid_until_ms
        return offered if is_longer else lease


class ClockComparedAcrossMachines(OtherArithmetic):
    """The worker's ``valid_until`` read on the processor's clock."""

    def grant(self, stamp: Stamp, terms: LeaseTerms, now_ms: int) -> Lease:
        lease = grant(stamp, terms)
        return replace(lease, publish_bound_ms=lease.valid_until_ms)


class GrantFromTheProcessorsClock(OtherArithmetic):
    """``valid_until`` written from the processor's clock."""

    def grant(self, stamp: Stamp, terms: LeaseTerms, now_ms: int) -> Lease:
        return replace(grant(stamp, terms), valid_until_ms=now_ms + terms.ttl_ms)


class RenewalCountedFromItsAcknowledgement(Rules):
    def counted(self, sent: Lease, acknowledged: Lease) -> Lease:
        return acknowledged


class RenewalCountedFromNow(OtherArithmetic):
    """Every heartbeat sent prolongs the lease, also where none is answered."""

    def grant(self, stamp: Stamp, terms: LeaseTerms, now_ms: int) -> Lease:
        lease = grant(stamp, terms)
        age_ms = now_ms - stamp.received_at_ms
        return replace(lease, valid_until_ms=lease.valid_until_ms + age_ms)


class BoundCountedFromTheQuestion(OtherArithmetic):
    """From when the stamp was asked for, not from when it arrived."""

    def grant(self, stamp: Stamp, terms: LeaseTerms, now_ms: int) -> Lease:
        return replace(grant(stamp, terms), publish_bound_ms=stamp.asked_at_ms + terms.longest_wait_ms)


class DriftForgotten(OtherArithmetic):
    def grant(self, stamp: Stamp, terms: LeaseTerms, now_ms: int) -> Lease:
        return grant(stamp, replace(terms, drift_ppm=0))


class TickForgotten(OtherArithmetic):
    """Without the millisecond for readings that are rounded down."""

    def grant(self, stamp: Stamp, terms: LeaseTerms, now_ms: int) -> Lease:
        lease = grant(stamp, terms)
        return replace(lease, publish_bound_ms=lease.publish_bound_ms - 1)


class AnyOtherBootIdProves(Rules):
    """Also a late answer of the process before this one."""

    def proof_by_stamp(self, lease: Lease, stamp: Stamp) -> FenceProof | None:
        return FenceProof.BOOT_CHANGED if stamp.boot_id != lease.boot_id else None


class RenewsWhileFencing(Rules):
    def renews_while_fencing(self) -> bool:
        return True


class NoTombstones(Rules):
    def keeps_tombstones(self) -> bool:
        return False


class CancelAcknowledgedOnReceipt(Rules):
    def acknowledges_on_receipt(self) -> bool:
        return True


class ExpiryBeforeDuplicate(Rules):
    """A second copy of the attempt, late, is told that its lease has ended while the first copy runs on a renewed one."""

    def knows_duplicates_first(self) -> bool:
        return False


MUTANTS: dict[str, type[Rules]] = {
    mutant.__name__: mutant
    for mutant in (
        ClockComparedAcrossMachines,
        GrantFromTheProcessorsClock,
        RenewalCountedFromItsAcknowledgement,
        RenewalCountedFromNow,
        BoundCountedFromTheQuestion,
        DriftForgotten,
        TickForgotten,
        AnyOtherBootIdProves,
        RenewsWhileFencing,
        NoTombstones,
        CancelAcknowledgedOnReceipt,
        ExpiryBeforeDuplicate,
    )
}
