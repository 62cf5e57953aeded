"""What a running stream holds: the prompt only while it may still be sent again."""

import asyncio
import gc
from types import FrameType

from tests.unit.processor.stage import DONE, FINISH, ROLE, Stage, text, until


def holders(prompt: bytes) -> list[object]:
    """What refers to these bytes beside the test: objects, and coroutines that wait."""
    test = asyncio.current_task()
    assert test is not None
    # Frames that run are the test's own; everybody else's coroutine waits, and is found as such.
    return [each for each in gc.get_referrers(prompt) if not isinstance(each, FrameType) and each is not test.get_coro()]


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
