"""100,000 worlds: no two attempts of one request can publish at once, and no request waits longer than its lease (issue 3).

``make test-simulation`` runs the fixed seeds, ``make test-simulation FIRST_SEED=3000000`` as many others. A failure names its
seed, and ``python -m tests.simulation.world SEED`` shows what happened in it.
"""

import os

import pytest

from tests.simulation.world import run

FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
SEEDS = 100_000
BLOCK = 2_500


@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_attempts_of_one_request_never_publish_at_once(block: int) -> None:
    first = FIRST_SEED + block * BLOCK
    for seed in range(first, first + BLOCK):
        run(seed)
