"""What is stopped while it streams has cleaned up when the guard says so: an engine is told to stop, not found by the garbage
collector (R6, R7, R13)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from starlette.responses import StreamingResponse

from extproc.worker.asgi import Message, Receive, Scope, Send
from extproc.worker.guarded_attempt import STOP_AHEAD_MS, GuardedAttempt
from extproc.worker.lease_headers import LeaseHeaders

VALID_UNTIL_MS = 10_000
SCOPES = [{"type": "http", "asgi": {"spec_version": version}} for version in ("2.3", "2.4")]
"""Starlette streams from a task of its own below 2.4, and from the app's task above."""


class Engine:
    """Computes tokens as vLLM's ``generate`` does: whoever leaves its generator is noticed there, in an ``except``."""

    def __init__(self) -> None:
        self.tokens: asyncio.Queue[bytes] = asyncio.Queue()
        self.is_told = False

    async def generate(self) -> AsyncIterator[bytes]:
        try:
            while True:
                yield await self.tokens.get()
        except (asyncio.CancelledError, GeneratorExit):
            self.is_told = True
            raise


class Scene:
    """One streaming attempt; the test moves the clock, and the server's reader."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.now_ms = 0
        self.sent: list[Message] = []
        self.blocked = asyncio.Event()
        self.reads = True
        # Kept, so that no garbage collection closes the generator.
        self.response = StreamingResponse(self.engine.generate())
        self.attempt = GuardedAttempt(
            lease=LeaseHeaders(attempt_id="att_1", boot_id="boot_1", valid_until_ms=VALID_UNTIL_MS),
            send=self.send,
            now_ms=lambda: self.now_ms,
        )

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.response(scope, receive, send)  # type: ignore[arg-type]

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if not self.reads:
            self.blocked.set()
            await asyncio.get_running_loop().create_future()

    async def receive(self) -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def until_sent(self, count: int) -> None:
        while len(self.sent) < count:
            await asyncio.sleep(0)

    def end_lease(self) -> None:
        self.now_ms = VALID_UNTIL_MS - STOP_AHEAD_MS


async def found_by_a_send(scene: Scene) -> None:
    scene.end_lease()
    scene.engine.tokens.put_nowait(b"late")


async def found_by_a_send_with_more_tokens_at_hand(scene: Scene) -> None:
    scene.end_lease()
    for _ in range(3):
        scene.engine.tokens.put_nowait(b"late")


async def found_by_the_patrol(scene: Scene) -> None:
    scene.end_lease()
    scene.attempt.stop_if_over()


async def found_by_the_patrol_while_nobody_reads(scene: Scene) -> None:
    scene.reads = False
    scene.engine.tokens.put_nowait(b"in the server's hands")
    await scene.blocked.wait()
    scene.end_lease()
    scene.attempt.stop_if_over()


@pytest.mark.parametrize("scope", SCOPES, ids=["own-task", "app-task"])
@pytest.mark.parametrize(
    "ends",
    [
        found_by_a_send,
        found_by_a_send_with_more_tokens_at_hand,
        found_by_the_patrol,
        found_by_the_patrol_while_nobody_reads,
    ],
)
async def test_the_engine_is_told_before_the_attempt_counts_as_stopped(
    scope: Scope, ends: Callable[[Scene], Awaitable[None]]
) -> None:
    scene = Scene()
    running = asyncio.create_task(scene.attempt.run(scene.app, scope, scene.receive))
    scene.engine.tokens.put_nowait(b"first")
    await scene.until_sent(2)
    await ends(scene)
    await running
    assert scene.engine.is_told
    assert not any(message.get("body") == b"late" for message in scene.sent)
    assert scene.attempt.stopped_by is not None


async def test_an_app_that_streams_on_for_good_is_told_by_its_sends() -> None:
    scene = Scene()
    told: list[OSError] = []

    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        while not told:
            scene.now_ms += 100
            try:
                await send({"type": "http.response.body", "body": b"on", "more_body": True})
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue
            except OSError as error:
                told.append(error)

    await scene.attempt.run(deaf, SCOPES[1], scene.receive)
    assert told
    assert len(scene.sent) * 100 <= VALID_UNTIL_MS - STOP_AHEAD_MS
