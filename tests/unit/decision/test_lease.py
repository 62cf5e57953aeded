"""The lease's bounds, one claim of extproc/decision/lease.py at a time; tests/simulation puts them together."""

from dataclasses import replace
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.contract.guard import GuardRefusal, StopState
from extproc.decision.lease import (
    ACCEPTED_WITHOUT_GUARD,
    FenceProof,
    Lease,
    LeaseTerms,
    Stamp,
    grant,
    is_newer,
    may_publish,
    proof_by_cancel,
    proof_by_refusal,
    valid_until_after_renewal,
)

TERMS = LeaseTerms(ttl_ms=10_000, drift_ppm=1_000)
STAMP = Stamp(boot_id="boot_a", now_ms=500, asked_at_ms=70_000, received_at_ms=70_040)
LEASE = grant(STAMP, TERMS)


def later(stamp: Stamp, *, by_ms: int, delay_ms: int = 0) -> Stamp:
    return replace(
        stamp,
        now_ms=stamp.now_ms + by_ms,
        asked_at_ms=stamp.asked_at_ms + by_ms,
        received_at_ms=stamp.received_at_ms + by_ms + delay_ms,
    )


def test_grant_counts_on_the_workers_clock_from_the_stamp() -> None:
    assert LEASE.valid_until_ms == 10_500


def test_bound_counts_on_the_processors_clock_from_receipt_with_drift_and_one_tick() -> None:
    assert LEASE.publish_bound_ms == 70_040 + 10_000 + 10 + 1


def test_drift_is_rounded_up() -> None:
    assert LeaseTerms(ttl_ms=10, drift_ppm=1).longest_wait_ms == 12


@pytest.mark.parametrize(("ttl_ms", "drift_ppm"), [(0, 0), (-1, 0), (1, -1)])
def test_impossible_terms_are_refused(ttl_ms: int, drift_ppm: int) -> None:
    with pytest.raises(AssertionError):
        LeaseTerms(ttl_ms=ttl_ms, drift_ppm=drift_ppm)


def test_a_stamp_is_not_received_before_it_was_asked_for() -> None:
    with pytest.raises(AssertionError):
        Stamp(boot_id="boot_a", now_ms=0, asked_at_ms=2, received_at_ms=1)


def test_chunk_is_forwarded_before_the_bound_and_never_at_it() -> None:
    assert LEASE.may_forward(now_ms=LEASE.publish_bound_ms - 1)
    assert not LEASE.may_forward(now_ms=LEASE.publish_bound_ms)


def test_expired_lease_is_fenced() -> None:
    assert LEASE.proof_by_clock(now_ms=LEASE.publish_bound_ms - 1) is None
    assert LEASE.proof_by_clock(now_ms=LEASE.publish_bound_ms) is FenceProof.LEASE_EXPIRED


def test_renewal_moves_both_ends() -> None:
    renewed = LEASE.renewed(later(STAMP, by_ms=2_000), TERMS)
    assert (renewed.valid_until_ms, renewed.publish_bound_ms) == (12_500, LEASE.publish_bound_ms + 2_000)


def test_older_stamp_that_arrives_late_shortens_and_lengthens_nothing() -> None:
    renewed = LEASE.renewed(later(STAMP, by_ms=2_000), TERMS)
    delayed = replace(STAMP, received_at_ms=STAMP.received_at_ms + 9_000)
    assert renewed.renewed(delayed, TERMS) == renewed


def test_same_stamp_received_twice_keeps_the_tighter_bound() -> None:
    assert LEASE.renewed(replace(STAMP, received_at_ms=STAMP.received_at_ms + 500), TERMS) == LEASE


def test_another_process_renews_nothing() -> None:
    assert LEASE.renewed(replace(later(STAMP, by_ms=5_000), boot_id="boot_b"), TERMS) == LEASE


def test_workers_own_later_stamp_proves_the_end() -> None:
    assert LEASE.proof_by_stamp(replace(STAMP, now_ms=LEASE.valid_until_ms - 1)) is None
    assert LEASE.proof_by_stamp(replace(STAMP, now_ms=LEASE.valid_until_ms)) is FenceProof.LEASE_EXPIRED


def test_another_boot_id_asked_for_after_the_lease_is_a_fence() -> None:
    stamp = Stamp(boot_id="boot_b", now_ms=0, asked_at_ms=STAMP.received_at_ms, received_at_ms=STAMP.received_at_ms)
    assert LEASE.proof_by_stamp(stamp) is FenceProof.BOOT_CHANGED


def test_answer_of_the_process_before_this_one_is_no_fence() -> None:
    stamp = Stamp(boot_id="boot_z", now_ms=0, asked_at_ms=STAMP.received_at_ms - 1, received_at_ms=STAMP.received_at_ms + 60_000)
    assert LEASE.proof_by_stamp(stamp) is None


@pytest.mark.parametrize(("now_ms", "expected"), [(99, True), (100, False), (101, False)])
def test_worker_publishes_before_the_end_only(now_ms: int, expected: bool) -> None:
    assert may_publish(valid_until_ms=100, now_ms=now_ms) is expected


@pytest.mark.parametrize(
    ("held_ms", "offered_ms", "now_ms", "expected"),
    [(100, 150, 99, 150), (100, 80, 99, 100), (100, 150, 100, 100)],
    ids=["longer", "never shorter", "an ended lease is not revived"],
)
def test_renewal_on_the_worker(held_ms: int, offered_ms: int, now_ms: int, expected: int) -> None:
    assert valid_until_after_renewal(held_ms=held_ms, offered_ms=offered_ms, now_ms=now_ms) == expected


def test_stamp_that_was_asked_for_later_replaces_the_one_in_use() -> None:
    assert is_newer(later(STAMP, by_ms=1), STAMP)
    assert not is_newer(replace(STAMP, received_at_ms=STAMP.received_at_ms + 9_000), STAMP)


@pytest.mark.parametrize(
    ("state", "proof"),
    [
        (StopState.STOPPED, FenceProof.CANCEL_ACKNOWLEDGED),
        (StopState.NEVER_STARTED, FenceProof.NOT_STARTED),
        (StopState.FINISHED, FenceProof.ENDED_BY_ITSELF),
    ],
)
def test_cancels_acknowledgement_is_a_fence(state: StopState, proof: FenceProof) -> None:
    assert proof_by_cancel(LEASE, later(STAMP, by_ms=1), state) is proof


def test_another_process_acknowledges_nothing_but_shows_that_it_is_another() -> None:
    answer = replace(later(STAMP, by_ms=100), boot_id="boot_b")
    assert proof_by_cancel(LEASE, answer, StopState.NEVER_STARTED) is FenceProof.BOOT_CHANGED
    late = replace(answer, asked_at_ms=STAMP.received_at_ms - 1)
    assert proof_by_cancel(LEASE, late, StopState.NEVER_STARTED) is None


@pytest.mark.parametrize("refusal", GuardRefusal)
def test_refusal_is_a_fence_unless_it_is_of_a_second_copy(refusal: GuardRefusal) -> None:
    expected = None if refusal is GuardRefusal.DUPLICATE_ATTEMPT else FenceProof.NOT_STARTED
    assert proof_by_refusal(refusal) is expected


def test_without_a_guard_neither_time_nor_silence_is_a_fence() -> None:
    assert {FenceProof.LEASE_EXPIRED, FenceProof.CANCEL_ACKNOWLEDGED, FenceProof.BOOT_CHANGED}.isdisjoint(ACCEPTED_WITHOUT_GUARD)


clock_offsets = st.fractions(min_value=0, max_value=10**7, max_denominator=1000)
delays = st.fractions(min_value=0, max_value=10**6, max_denominator=1000)
drifts = st.integers(min_value=0, max_value=50_000)


@given(clock_offsets, clock_offsets, delays, st.integers(min_value=1, max_value=10**6), drifts, st.data())
def test_worker_has_stopped_at_the_bound_whatever_clocks_and_delay(
    worker_offset: Fraction,
    processor_offset: Fraction,
    delay: Fraction,
    ttl_ms: int,
    drift_ppm: int,
    data: st.DataObject,
) -> None:
    """Exact clocks: true time in fractions of a millisecond, readings rounded down, rates apart by at most the drift."""
    ratio = 1 + Fraction(data.draw(st.integers(min_value=0, max_value=drift_ppm)), 1_000_000)
    stamp = Stamp(
        boot_id="boot_a",
        now_ms=floor(worker_offset),
        asked_at_ms=0,
        received_at_ms=floor(processor_offset + delay * ratio),
    )
    lease: Lease = grant(stamp, LeaseTerms(ttl_ms=ttl_ms, drift_ppm=drift_ppm))
    # The first true moment at which the processor's clock reads the bound, and what the worker's clock reads then.
    moment = max(delay, (lease.publish_bound_ms - processor_offset) / ratio)
    assert not may_publish(valid_until_ms=lease.valid_until_ms, now_ms=floor(worker_offset + moment))
