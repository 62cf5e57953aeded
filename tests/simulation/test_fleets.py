"""Fleets under correlated failures keep every promise (issue 7), and a product that breaks one is caught.

``make test-simulation`` runs the fixed seeds, ``make test-simulation FIRST_SEED=3000000`` as many others. A failure names its
seed, and ``python -m tests.simulation.fleet SEED`` runs it again.
"""

import os
from collections import Counter

import pytest

from extproc.decision.lease import FenceProof
from tests.simulation.fleet import Fleet, FleetRules, FleetViolationError, run
from tests.simulation.fleet_disasters import DISASTERS
from tests.simulation.fleet_mutants import MUTANTS

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = 40
BLOCK = 8
MUTANT_SEEDS_MAX = 30


@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_fleet_keeps_every_promise_whatever_strikes_many_at_once(block: int) -> None:
    first = FIRST_SEED + block * BLOCK
    check_not_vacuous([run(seed) for seed in range(first, first + BLOCK)])


def check_not_vacuous(fleets: list[Fleet]) -> None:
    """Every ending, every kind of proof that there can be, and requests that needed all their attempts."""
    endings = sum((fleet.endings() for fleet in fleets), Counter())
    assert set(endings) >= {"complete", "interrupted", "refused", "left"}
    proofs = {attempt.proof for fleet in fleets for attempt in fleet.attempts.values()}
    assert proofs >= {
        FenceProof.NOT_STARTED,
        FenceProof.CANCEL_ACKNOWLEDGED,
        FenceProof.LEASE_EXPIRED,
        FenceProof.CONNECTION_REFUSED,
        FenceProof.ENDED_BY_ITSELF,
    }
    assert any(len(request.attempts) == fleet.policy.attempts_allowed for fleet in fleets for request in fleet.requests)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_broken_product_is_caught_under_the_name_of_the_promise(mutant: type[FleetRules]) -> None:
    found: Counter[str | None] = Counter()
    while MUTANTS[mutant] not in found and found.total() < MUTANT_SEEDS_MAX:
        found[broken_promise(found.total(), mutant)] += 1
    assert MUTANTS[mutant] in found, found


def broken_promise(seed: int, mutant: type[FleetRules]) -> str | None:
    try:
        run(seed, mutant())
    except FleetViolationError as violation:
        return violation.invariant
    return None


@pytest.mark.parametrize("disaster", DISASTERS, ids=lambda disaster: disaster.__name__)
def test_each_disaster_alone_changes_what_happens(disaster) -> None:
    """One that changes nothing would prove nothing."""
    quiet, struck = Fleet(1, FleetRules()), Fleet(1, FleetRules())
    for fleet, disasters in ((quiet, ()), (struck, (disaster,))):
        fleet.disasters = disasters
        fleet.run()
    assert struck.endings() != quiet.endings()


def test_same_seed_gives_the_same_fleet() -> None:
    first, second = run(7), run(7)
    assert (first.agenda.done, first.endings()) == (second.agenda.done, second.endings())
