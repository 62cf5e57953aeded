"""What a scripted replica does with an attempt, and the streams that tests of the wire share."""

import json
from collections.abc import Awaitable, Callable

from extproc.app.demonstration.apis import PATHS, request_body
from extproc.sse.dialects import Dialect
from tests.real_envoy.raw_client import Answer
from tests.real_envoy.scripted_replica import Attempt
from tests.real_envoy.stage import STREAMED_CHAT, Stage
from tests.unit.sse.streams import D, F, R, T

GOOD = R + T("Good") + F("stop") + D
HI = R + T("Hi")
WHOLE_ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}], "spaced": 1}
).encode()
LARGE = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 8_000_000}]}).encode()

Act = Callable[[Attempt], Awaitable[object]]


def streamed(dialect: Dialect) -> tuple[bytes, str]:
    return request_body(dialect, model="m", stream=True), PATHS[dialect]


async def answer_to(stage: Stage, act: Act, body: bytes = STREAMED_CHAT, path: str = PATHS[Dialect.CHAT]) -> Answer:
    """The client's answer where the only attempt does ``act``."""
    client = await stage.ask(body, path=path)
    await act(await stage.attempt())
    return await client.answer()


async def refuse(attempt: Attempt) -> None:
    attempt.reset()


async def hang_up(attempt: Attempt) -> None:
    attempt.close()


def sends(*pieces: bytes) -> Act:
    return lambda attempt: attempt.stream(*pieces)


def breaks_off(*pieces: bytes) -> Act:
    async def act(attempt: Attempt) -> None:
        await attempt.begin()
        await attempt.send(*pieces)
        attempt.close()

    return act


def writes(data: bytes) -> Act:
    async def act(attempt: Attempt) -> None:
        await attempt.write(data)
        attempt.close()

    return act


def answers(status: str, body: bytes = b"", *more: tuple[str, str], content_type: str = "application/json") -> Act:
    return lambda attempt: attempt.answer(body, *more, status=status, content_type=content_type)


def goes_on(*pieces: bytes) -> Act:
    return lambda attempt: attempt.end(*pieces)


def tears(data: bytes) -> Act:
    async def act(attempt: Attempt) -> None:
        await attempt.send(data)
        attempt.close()

    return act
