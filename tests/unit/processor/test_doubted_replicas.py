"""What one request has lost, the next one avoids, until health has looked."""

import pytest

from extproc.replicas.roster import Standing
from tests.unit.processor.stage import ERROR, ROLE, A, B, Stage, text


@pytest.mark.parametrize("before", [b"", ROLE + text("a")], ids=["before the first delta", "after it"])
async def test_the_next_request_goes_elsewhere_until_health_has_looked(before: bytes) -> None:
    stage = Stage(replicas=(A, B))
    stage.roster.acquire(B)
    stage.roster.acquire(B)  # so that A would be chosen, time and again
    stream, task = stage.ask()
    lost = await stage.attempts.opened.get()
    assert lost.destination == A.destination
    if before:
        lost.head()
        lost.send(before)
        await stream.changed.wait()
    lost.end("connection reset")
    _, other = stage.ask()
    repeated = [] if before else [await stage.attempts.opened.get()]
    assert [attempt.destination for attempt in repeated] == [B.destination] * len(repeated)
    assert (await stage.attempts.opened.get()).destination == B.destination
    stage.roster.set_standing(A.destination, Standing.PLACEABLE)
    _, third = stage.ask()
    assert (await stage.attempts.opened.get()).destination == A.destination
    for each in (task, other, third):
        each.cancel()


async def test_an_error_of_one_request_says_nothing_of_its_replica() -> None:
    stage = Stage(replicas=(A, B))
    stage.roster.acquire(B)
    _, task = stage.ask()
    failed = await stage.attempts.opened.get()
    failed.head()
    failed.send(ERROR)
    await stage.attempts.opened.get()
    assert not stage.roster.is_doubted(A.destination)
    task.cancel()
