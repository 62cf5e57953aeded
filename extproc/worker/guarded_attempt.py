"""One attempt in the process that serves it: its messages are checked, and its app task can be stopped."""

import asyncio
import logging
from typing import Final

from extproc.contract.guard import AttemptState, GuardRefusal, Stamp
from extproc.decision.lease import may_publish
from extproc.worker.asgi import App, Message, Receive, Scope, Send
from extproc.worker.clock import ClockMs
from extproc.worker.lease_headers import LeaseHeaders, stamp_headers

log = logging.getLogger("deltafence.guard")

STOP_AHEAD_MS: Final = 100
"""A lease counts as over this long before it is. Stopping early is always safe, and whoever may repeat from the lease's end on
finds not only that nothing is published any more but that the slot is free: a patrol's interval and the app's clean-up fit in."""
LEAVE_MS: Final = 1_000
"""How long an app that was cancelled may send into the void before its sends fail."""


class LeaseEndedError(ConnectionError):
    """Raised by ``send``: to the app it is as if its peer had gone, which is what an OSError means there (ASGI HTTP 2.4)."""


class GuardedAttempt:
    """Runs the app for one attempt and lets its messages through while the lease holds.

    The check comes before a message is handed to the server. Bytes that the server already holds are out of its reach,
    which is one reason why the processor checks its own bound as well.

    An app is stopped where it computes, not where it sends. A framework that streams an async generator leaves it suspended when
    ``send`` raises, and then the engine computes on for a reader that is gone, until a garbage collection finds the generator:
    minutes, seen on vLLM. So while the cancellation is on its way, ``send`` publishes nothing and returns, and the app meets the
    cancellation at its next wait, inside the generator that cleans up after itself.
    """

    def __init__(self, *, lease: LeaseHeaders, send: Send, now_ms: ClockMs) -> None:
        self.attempt_id = lease.attempt_id
        # Invariant: only the patrol writes these two, from the shared table; the lease grows and a revocation stays.
        self.valid_until_ms = lease.valid_until_ms
        self.revoked = False

        self.stopped_by: GuardRefusal | None = None
        """Why the app was stopped; None while it runs and after it ended by itself."""
        self.has_answered = False
        self.published_chunks = 0
        """Handed to the server, or about to be."""
        self._boot_id = lease.boot_id
        self._is_complete = False
        self._send = send
        self._now_ms = now_ms
        self._task: asyncio.Task[None] | None = None
        self._stopped_at_ms = 0

    @property
    def end_state(self) -> AttemptState:
        """What to record once ``run`` has ended."""
        return AttemptState.FINISHED if self._is_complete else AttemptState.STOPPED

    async def run(self, app: App, scope: Scope, receive: Receive) -> None:
        """Returns once the app's task has ended. Raises what the app raised, unless the app was stopped from here."""
        self._task = asyncio.create_task(_called(app, scope, receive, self.send))
        try:
            await asyncio.wait({self._task})
        finally:
            # Reached with a running task only when the server cancels this one.
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait({self._task})
        error = None if self._task.cancelled() else self._task.exception()
        if self.stopped_by is None:
            self._task.result()
        elif error is not None and not isinstance(error, LeaseEndedError):
            log.info("attempt %s ended with %r after it was stopped", self.attempt_id, error)

    async def send(self, message: Message) -> None:
        """Publishes nothing without a lease. Raises LeaseEndedError where the app does not end in spite of its cancellation."""
        self.stop_if_over()
        if self.stopped_by is not None:
            if self._now_ms() - self._stopped_at_ms > LEAVE_MS:
                raise LeaseEndedError(f"attempt {self.attempt_id}: {self.stopped_by}")
            return
        try:
            await self._hand_on(message)
        except asyncio.CancelledError:
            if self.stopped_by is None:
                raise
            self._put_cancellation_off()

    async def _hand_on(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.published_chunks += 1
            await self._send(message)
            # Only now: the server may have held the last chunk back until its peer read on.
            self._is_complete = not message.get("more_body", False)
        else:
            await self._send(self._stamped(message) if message["type"] == "http.response.start" else message)

    def _put_cancellation_off(self) -> None:
        """To the app's next wait. Where it sends from a task of its own, its task group cancels that again by itself."""
        if asyncio.current_task() is self._task:
            assert self._task is not None
            self._task.uncancel()
            self._task.cancel()

    def stop_if_over(self) -> None:
        """Cancel the app's task once, where the lease has ended or was revoked before the answer was complete."""
        if self.stopped_by is not None or self._is_complete:
            return
        if self.revoked:
            self._stop(GuardRefusal.REVOKED)
        elif not may_publish(valid_until_ms=self.valid_until_ms - STOP_AHEAD_MS, now_ms=self._now_ms()):
            self._stop(GuardRefusal.LEASE_EXPIRED)

    def _stop(self, reason: GuardRefusal) -> None:
        assert self._task is not None
        self.stopped_by = reason
        self._stopped_at_ms = self._now_ms()
        self._task.cancel()
        log.info("attempt %s stopped: %s after %d chunks", self.attempt_id, reason, self.published_chunks)

    def _stamped(self, start: Message) -> Message:
        self.has_answered = True
        stamp = Stamp(boot_id=self._boot_id, now_ms=self._now_ms())
        return {**start, "headers": [*start.get("headers", ()), *stamp_headers(stamp)]}


async def _called(app: App, scope: Scope, receive: Receive, send: Send) -> None:
    """An app may return any awaitable; a task takes coroutines only."""
    await app(scope, receive, send)
