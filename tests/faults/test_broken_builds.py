"""A checker that can't fail is worthless: each promise, broken in a running gateway, is caught (R18)."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from extproc.app.faults_command import own_commands
from extproc.faults.invariants import Invariant
from tests.faults.broken import BUILDS
from tests.faults.conftest import Bench

NOT_OF_A_GATEWAY = frozenset({Invariant.FAULT_STRUCK})
"""The suite's own; tests/unit/faults proves it."""


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("point", sorted({point for point, _ in BUILDS.values()}))
async def test_the_real_build_keeps_every_promise_at_these_points(bench: Bench, point: str) -> None:
    _, violations = await bench.bring_about(point)
    assert violations == ()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__.replace("_", "-"))
async def test_broken_build_is_caught(bench: Bench, build: Callable[[], None]) -> None:
    point, broken = BUILDS[build]
    gateway = bench.stage.gateway
    processor = (sys.executable, str(Path(__file__).with_name("broken.py")), build.__name__)
    gateway.commands = own_commands(processor=processor)
    await gateway.kill("processor")
    await gateway.start_processor()
    await bench.stage.until_placeable()

    _, violations = await bench.bring_about(point)

    assert {violation.invariant for violation in violations} >= broken, violations


def test_every_promise_has_a_build_that_breaks_it() -> None:
    caught = {invariant for _, invariants in BUILDS.values() for invariant in invariants}
    assert caught | NOT_OF_A_GATEWAY == set(Invariant)
