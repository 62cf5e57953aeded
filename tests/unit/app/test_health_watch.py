"""What counts as output of a replica between two looks at it, and what that means for new attempts."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from extproc.app.health_watch import NO_OUTPUT, HealthWatch
from extproc.decision.verdicts import HealthSettings
from extproc.processor.session import Session
from extproc.replicas.roster import Replica, Roster, Standing
from tests.unit.scripted_replica import ScriptedReplica, metrics

SETTINGS = HealthSettings(interval_ms=20, hung_after_ms=60_000, stale_after_ms=100)
LOOKS = 20
"""At least 19 intervals, and so far longer than a reading stays fresh."""


def test_tokens_of_a_new_attempt_and_of_a_running_one_are_output() -> None:
    first = NO_OUTPUT.after({"att_1": 0}, 1_000)
    assert first.grew_at_ms is None
    second = first.after({"att_1": 3}, 2_000)
    assert second.grew_at_ms == 2_000
    assert second.after({"att_1": 3, "att_2": 1}, 3_000).grew_at_ms == 3_000


def test_an_attempt_that_leaves_with_its_tokens_is_no_output() -> None:
    heard = NO_OUTPUT.after({"att_1": 500, "att_2": 7}, 1_000)
    silent = heard.after({"att_2": 7}, 6_000)
    assert silent.grew_at_ms == 1_000
    assert silent.after({}, 11_000).grew_at_ms == 1_000


def test_one_that_grows_is_output_though_another_left_with_more() -> None:
    heard = NO_OUTPUT.after({"att_1": 500, "att_2": 7}, 1_000)
    assert heard.after({"att_2": 8}, 6_000).grew_at_ms == 6_000


@dataclass
class Streaming:
    """A session as health sees it: at each look one token more has been delivered, as long as it streams."""

    replica: Replica
    attempt_id: str = "att_1"
    tokens: int = 0
    streams: bool = True

    @property
    def attempt(self) -> "Streaming":
        return self

    @property
    def delivered_tokens(self) -> int:
        self.tokens += self.streams
        return self.tokens


@dataclass
class Listened(Roster):
    """A roster that keeps what health says."""

    replica: Replica
    said: list[Standing] = field(default_factory=list)
    spoke: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__init__([self.replica])

    def set_standing(self, destination: str, standing: Standing) -> None:
        super().set_standing(destination, standing)
        self.said.append(standing)
        self.spoke.set()

    async def until(self, is_right: Callable[[list[Standing]], Any]) -> None:
        while not is_right(self.said):
            self.spoke.clear()
            await self.spoke.wait()


async def test_a_replica_whose_pages_fail_stays_a_last_resort_while_its_attempts_deliver() -> None:
    """Slow is not dead (R5)."""
    async with ScriptedReplica().serving() as scripted:
        replica = Replica(destination=f"127.0.0.1:{scripted.port}", url=scripted.url)
        roster, session = Listened(replica), Streaming(replica)
        scripted.serve(metrics(running=1))
        watch = HealthWatch(SETTINGS, roster, lambda: [cast("Session", session)])
        async with watch.watching():
            await roster.until(lambda said: Standing.PLACEABLE in said)
            for path in ("/metrics", "/health"):
                scripted.serve(b"", path, status=500)
            await roster.until(lambda said: said.count(Standing.LAST_RESORT) >= LOOKS)
            assert Standing.WITHHELD not in roster.said
            session.streams = False
            await roster.until(lambda said: said[-1] is Standing.WITHHELD)
