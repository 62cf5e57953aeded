"""Plain deltas that need no waiting pass without waking their session, and only where the session would have done the same."""

import asyncio
import json
from typing import Any

import pytest

from extproc.decision import events
from extproc.decision.policy import DeadlinesPolicy, Policy
from extproc.replicas.unguarded import UnguardedFence
from tests.unit.processor.stage import DONE, FINISH, ROLE, FakeAttempt, FakeStream, Stage, text, until


async def in_decode(stage: Stage) -> tuple[FakeStream, "asyncio.Task[None]", FakeAttempt]:
    """A stream whose first delta was delivered, and whose session waits."""
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(ROLE + text("Hi"))
    (session,) = stage.service.sessions
    await until(lambda: stream.body and session._inbox.is_idle)
    return stream, task, attempt


async def test_a_delta_is_written_before_the_loop_turns() -> None:
    stream, task, attempt = await in_decode(Stage())
    attempt.send(text(" you"))
    attempt.send(text(" all") + text("!"))
    assert stream.body == ROLE + text("Hi") + text(" you") + text(" all") + text("!")
    attempt.send(FINISH + DONE)
    await task
    assert stream.ended


async def test_relayed_tokens_are_delivered_tokens() -> None:
    stage = Stage()
    stream, task, attempt = await in_decode(stage)
    for word in ("a", "b", "c"):
        attempt.send(text(word))
    attempt.end("connection lost in the response body")
    await task
    error = json.loads(stream.body.rpartition(b"data: ")[2])["error"]
    assert (error["code"], error["delivered_output_tokens"]) == ("upstream_decode_interrupted", 4)
    assert (await stage.facts("req_1")).delivered_output_tokens == 4


async def test_nothing_passes_before_the_boundary() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(text("Hi"))
    assert stream.sent == []
    task.cancel()
    await asyncio.wait([task])


async def test_a_delta_does_not_overtake_what_came_before_it() -> None:
    stream, task, attempt = await in_decode(Stage())
    attempt.send(b": not a delta\n\n")
    attempt.send(text(" you"))
    assert stream.body == ROLE + text("Hi")
    attempt.send(FINISH + DONE)
    await task
    assert stream.body == ROLE + text("Hi") + b": not a delta\n\n" + text(" you") + FINISH + DONE


async def test_a_delta_does_not_overtake_a_signal() -> None:
    stage = Stage()
    stream, task, attempt = await in_decode(stage)
    (session,) = stage.service.sessions
    session.put(events.DrainLimitReached())
    attempt.send(text(" late"))
    await task
    assert text(" late") not in stream.body
    assert b"upstream_decode_interrupted" in stream.body


async def test_nothing_passes_to_a_client_that_is_leaving() -> None:
    stream, task, attempt = await in_decode(Stage())
    task.cancel()
    attempt.send(text(" late"))
    await asyncio.wait([task])
    assert stream.body == ROLE + text("Hi")


async def test_nothing_passes_once_the_lease_is_over() -> None:
    class Fence(UnguardedFence):
        holds = True

        def may_publish(self, attempt_id: str) -> bool:
            return self.holds

    stage = Stage(fence=Fence())
    stream, task, attempt = await in_decode(stage)
    Fence.holds = False
    attempt.send(text(" late"))
    await task
    assert text(" late") not in stream.body
    assert b"upstream_decode_interrupted" in stream.body


async def test_what_can_not_be_written_at_once_is_written_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, task, attempt = await in_decode(Stage())
    monkeypatch.setattr(stream, "at_once", False)
    attempt.send(text(" you"))
    assert stream.body == ROLE + text("Hi")
    monkeypatch.setattr(stream, "at_once", True)
    attempt.send(text(" all"))
    assert stream.body == ROLE + text("Hi"), "the one before it has not gone yet"
    attempt.send(FINISH + DONE)
    await task
    assert stream.body == ROLE + text("Hi") + text(" you") + text(" all") + FINISH + DONE


async def test_a_relayed_delta_counts_against_silence() -> None:
    stage = Stage(policy=Policy(deadlines=DeadlinesPolicy(idle_ms=60_000)))
    now: list[Any] = [1_000]
    object.__setattr__(stage.service._world, "now_ms", lambda: now[0])
    _, task, attempt = await in_decode(stage)
    now[0] = 30_000
    attempt.send(text(" you"))
    (session,) = stage.service.sessions
    assert session.attempt is not None
    assert session.attempt.last_received_ms == 30_000
    task.cancel()
    await asyncio.wait([task])


async def test_nothing_of_an_attempt_passes_after_its_end() -> None:
    stage = Stage()
    stream, task, attempt = await in_decode(stage)
    attempt.send(FINISH + DONE)
    await task
    attempt.send(text(" late"))
    assert stream.body == ROLE + text("Hi") + FINISH + DONE
