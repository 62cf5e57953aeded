"""A replica may turn out to be another process while an attempt is on its way to it: then what it serves is not known (R8)."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from extproc.decision.causes import Failure
from extproc.decision.policy import LeasePolicy
from extproc.replicas.identities import unproven
from extproc.replicas.roster import Replica, Roster
from extproc.replicas.unguarded import UnguardedFence
from tests.unit.processor.stage import A, B, FakeStream, Stage


class RestartHeardFence(UnguardedFence):
    """The grant of one attempt hears that another process answers at its replica."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.granted = 0
        self.roster: Roster | None = None

    async def grant(
        self, attempt_id: str, replica: Replica, on_lost: Callable[[Failure], None], policy: LeasePolicy
    ) -> Sequence[tuple[str, str]]:
        self.granted += 1
        await asyncio.sleep(0)
        if self.granted == self.number:
            assert self.roster is not None
            self.roster.set_identity(replica.destination, unproven(replica.destination))
        return ()


async def first_attempt_breaks(restart_heard_at: int) -> tuple[Stage, FakeStream]:
    """A request on a pool of equals whose first attempt is lost; the grant of that number hears of another process."""
    fence = RestartHeardFence(restart_heard_at)
    stage = Stage(fence=fence, replicas=tuple(replace(replica, identity="m") for replica in (A, B)))
    fence.roster = stage.roster
    stream, task = stage.ask()
    (await stage.attempts.opened.get()).end("connection reset")
    await task
    assert stage.attempts.count == 1
    return stage, stream


async def test_a_repeat_whose_replica_turns_out_to_be_another_process_is_not_sent() -> None:
    stage, stream = await first_attempt_breaks(restart_heard_at=2)
    assert (stream.status, json.loads(stream.body)["error"]["code"]) == (502, "attempts_exhausted")
    first, second = (await stage.facts("req_1")).attempts
    assert (second.cause, second.fence_proof) == ("never_started", "not_started")
    assert "was restarted" in second.evidence
    assert stage.roster.running(first.replica) == stage.roster.running(second.replica) == 0


async def test_a_first_attempt_on_another_process_than_was_known_is_repeated_by_nobody_else() -> None:
    _, stream = await first_attempt_breaks(restart_heard_at=1)
    assert (stream.status, json.loads(stream.body)["error"]["code"]) == (503, "no_healthy_replica")
