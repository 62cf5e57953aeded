"""The lease protocol under a random network, on few seeds; ``make test-simulation`` has 100,000.

Each mutant leaves one step of the protocol out. One that no seed catches would mean that the step is not needed, or that the
simulation can't see what it is for.
"""

from collections import Counter

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.world import ATTEMPTS_MAX, Rules, ViolationError, run

SEEDS = 500
MUTANT_SEEDS_MAX = 5_000


def test_no_two_attempts_publish_at_once_and_no_wait_is_longer_than_the_lease() -> None:
    worlds = [run(seed) for seed in range(SEEDS)]
    # Not vacuous: most worlds repeat, some deliver, and some are still running when time is up.
    assert set(Counter(world.number for world in worlds)) == set(range(1, ATTEMPTS_MAX + 1))
    assert any(world.forwarded_from is not None for world in worlds)
    assert {"ended", "running"} <= {world.phase for world in worlds}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_protocol_without_one_of_its_steps_is_caught(mutant: type[Rules]) -> None:
    with pytest.raises(ViolationError):
        run_until_caught(mutant)


def run_until_caught(mutant: type[Rules]) -> None:
    for seed in range(MUTANT_SEEDS_MAX):
        run(seed, mutant())


def test_same_seed_gives_the_same_world() -> None:
    first, second = run(7), run(7)
    assert (first.now, first.pushed, first.phase) == (second.now, second.pushed, second.phase)
