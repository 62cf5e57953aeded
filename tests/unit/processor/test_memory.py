"""What a running stream holds: the prompt only while it may still be sent again."""

import asyncio
import gc
from types import FrameType

from tests.unit.processor.stage import DONE, FINISH, ROLE, Stage, text, until


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
