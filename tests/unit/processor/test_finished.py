"""A client that has its answer's finish has a whole answer, whatever happens while the stream's last event is waited for."""

import asyncio
import gzip

import pytest

from extproc.decision.causes import Cause, Failure
from extproc.decision.events import AttemptFailed, Deadline, DeadlinePassed, DrainLimitReached, Event
from extproc.replicas.unguarded import UnguardedFence
from tests.unit.processor.stage import DONE, FINISH, ROLE, SSE, AbortedError, Stage, text, until

FINISHED = ROLE + text("Hi") + FINISH
ENDS: list[Event] = [
    AttemptFailed(failure=Failure(cause=Cause.UNCERTAIN, evidence="heartbeats unanswered")),
    AttemptFailed(failure=Failure(cause=Cause.HUNG, evidence="1 running, 0 steps in 30 s")),
    DeadlinePassed(deadline=Deadline.TOTAL),
    DeadlinePassed(deadline=Deadline.IDLE),
    DrainLimitReached(),
]


class EndingFence(UnguardedFence):
    """Leases that all end at once."""

    ended = False

    def may_publish(self, attempt_id: str) -> bool:
        return not self.ended


@pytest.mark.parametrize("end", ENDS, ids=repr)
async def test_nothing_makes_a_finished_answer_partial(end: Event) -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(FINISHED)
    await until(lambda: stream.body == FINISHED)
    (session,) = stage.service.sessions
    session.put(end)
    await task
    assert (stream.body, stream.ended) == (FINISHED, True)
    assert (await stage.facts("req_1")).outcome == "completed"


async def test_the_first_deltas_deadline_does_not_end_the_wait_for_the_last_event() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(FINISHED)
    await until(lambda: stream.body == FINISHED)
    (session,) = stage.service.sessions
    session.put(DeadlinePassed(deadline=Deadline.FIRST_DELTA))
    attempt.send(DONE)
    await task
    assert stream.body == FINISHED + DONE


async def test_a_lease_that_ends_after_the_finish_ends_a_whole_answer() -> None:
    fence = EndingFence()
    stage = Stage(fence=fence)
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(FINISHED)
    await until(lambda: stream.body == FINISHED)
    fence.ended = True
    attempt.end("connection reset")
    await task
    assert (stream.body, (await stage.facts("req_1")).outcome) == (FINISHED, "completed")


@pytest.mark.parametrize(("sent", "outcome"), [(FINISHED, "completed"), (ROLE + text("Hi"), "cancelled")])
async def test_can_02_a_client_that_leaves_has_what_it_got(sent: bytes, outcome: str) -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(sent)
    await until(lambda: stream.body == sent)
    task.cancel()
    await asyncio.wait({task})
    assert attempt.closed
    assert (await stage.facts("req_1")).outcome == outcome


async def test_encoded_bytes_are_not_forwarded_once_their_lease_has_ended() -> None:
    fence = EndingFence()
    stage = Stage(fence=fence)
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    encoded = gzip.compress(FINISHED + DONE)
    attempt.head(200, (*SSE, ("content-encoding", "gzip")))
    attempt.send(encoded[:20])
    await until(lambda: stream.body == encoded[:20])
    fence.ended = True
    attempt.send(encoded[20:])
    with pytest.raises(AbortedError):
        await task
    assert stream.body == encoded[:20]
    assert (await stage.facts("req_1")).outcome == "interrupted"
