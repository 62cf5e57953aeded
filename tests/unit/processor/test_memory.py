"""What a running stream holds: the prompt only while it may still be sent again."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator
from types import FrameType

import pytest

from extproc.processor.timers import Due
from tests.unit.processor.stage import DONE, FINISH, ROLE, BrokenJournal, Stage, text, until


def holders(held: object) -> list[object]:
    """What refers to it beside the test: objects, and coroutines that wait."""
    test = asyncio.current_task()
    assert test is not None
    # Frames that run are the test's own; everybody else's coroutine waits, and is found as such.
    return [each for each in gc.get_referrers(held) if not isinstance(each, FrameType) and each is not test.get_coro()]


async def test_a_prompt_is_let_go_of_at_the_boundary() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(ROLE)
    (session,) = stage.service.sessions
    prompt, attempt.body = attempt.body, b""
    assert len(holders(prompt)) == 1, "a repeat needs it until then"
    attempt.send(text("Hi"))
    await until(lambda: stream.body and session._inbox.is_idle)
    assert holders(prompt) == []
    attempt.send(FINISH + DONE)
    await task


async def test_a_head_that_is_made_in_vain_is_let_go_of_at_the_boundary() -> None:
    stage = Stage()
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    (session,) = stage.service.sessions
    attempt.head()
    await until(lambda: session.attempt.answer_head)
    session._inbox.put(Due.KEEP_ALIVE)
    await until(lambda: stream.body)
    attempt.send(text("Hi"))
    await until(lambda: b"Hi" in stream.body)
    assert session.attempt.answer_head is None
    attempt.send(FINISH + DONE)
    await task


async def test_envoys_first_message_is_let_go_of_once_it_is_read() -> None:
    """It holds every header and route metadata, and a stream lives for minutes."""
    stage = Stage()
    stream, task = stage.ask()
    first = stream.messages[0]
    assert holders(first) == [stream.messages]
    await stage.attempts.opened.get()
    assert holders(first) == []
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is gone without it was in no circle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("ending", [FINISH + DONE, b""], ids=["finished", "interrupted"])
async def test_a_request_that_is_over_leaves_nothing_for_the_garbage_collector(ending: bytes) -> None:
    """A full collection stops every stream for as long as it takes to look at all that there is."""
    stage = Stage()
    _, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    attempt.head()
    attempt.send(ROLE)
    attempt.send(text("Hi"))
    seen = [weakref.ref(each) for session in stage.service.sessions for each in (session, session.attempt, session._inbox)]
    await until(lambda: seen[2]().is_idle)
    attempt.send(text("Ho"))
    attempt.send(ending)
    # After the stream's own last event, so that nobody reads it any more.
    attempt.end(None if ending else "connection closed by the peer")
    await task
    del attempt, task
    assert [each() for each in seen] == [None, None, None]


@pytest.mark.usefixtures("without_collector")
async def test_neither_does_one_whose_boundary_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "deltafence.processor")  # what is logged is kept, with its error and the error's frames
    stage = Stage(journal=BrokenJournal())
    stream, task = stage.ask()
    attempt = await stage.attempts.opened.get()
    seen = [weakref.ref(each) for session in stage.service.sessions for each in (session, session.attempt, session._inbox)]
    attempt.head()
    attempt.send(text("Hi"))
    await task
    assert stream.status == 503
    del attempt, task
    assert [each() for each in seen] == [None, None, None]
