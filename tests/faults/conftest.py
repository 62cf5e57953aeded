"""One stage for a module's tests, and single points brought about on it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest_asyncio

from extproc.app.faults_command import own_commands
from extproc.faults.checker import check
from extproc.faults.evidence import Evidence
from extproc.faults.invariants import Violation
from extproc.faults.observation import Observer, Trial
from extproc.faults.points import Point, Scope, Setting, point_of
from extproc.faults.rounds import Rounds
from extproc.faults.stage import Stage, running_stage


@dataclass
class Bench:
    """A stage on which points are brought about one at a time."""

    stage: Stage
    rounds: Rounds
    tries: dict[Point, int] = field(default_factory=dict)

    async def bring_about(self, key: str) -> tuple[Evidence, tuple[Violation, ...]]:
        """One point's evidence and its judgement."""
        point = point_of(key)
        self.tries[point] = self.tries.get(point, 0) + 1
        trial = Trial(point=point, number=self.tries[point])
        match point.row.scope:
            case Scope.REPLICA:
                result = await self.rounds.run_on_replicas(point.kind, [trial])
            case Scope.GATEWAY:
                result = await self.rounds.run_on_gateway(point.kind, [trial])
            case _:
                result = await self.rounds.run_requests([trial])
        evidence = result.judged[trial]
        return evidence, check(evidence, point)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench() -> AsyncIterator[Bench]:
    """Watchful, so that also a hung replica is found soon."""
    async with running_stage(Setting.WATCHFUL, own_commands()) as stage:
        yield Bench(stage, Rounds(stage=stage, observer=Observer(stage=stage)))
