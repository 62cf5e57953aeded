"""One generation request from its last body byte to its end.

The session is a thin shell: signals come in through one inbox, ``decision.request.step`` decides, and the carrier carries
the effects out in order. What the session adds is reading: which signal of an attempt is which event.
"""

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Final

from extproc.contract import headers as names
from extproc.decision import events
from extproc.decision.causes import Cause, Failure
from extproc.decision.effects import Effect
from extproc.decision.policy import Policy
from extproc.decision.request import Phase, RequestState, step
from extproc.journal.records import EventKind
from extproc.processor.attempt import AnswerKind, Attempt, AttemptOver, BodyReceived, HeadReceived, kind_of_answer
from extproc.processor.carrier import AttemptLost, Carrier, FenceDone, Signal
from extproc.processor.client_stream import ClientStream, Written
from extproc.processor.endings import BAD_ENDINGS, EVENT_TOO_LARGE
from extproc.processor.inbox import Inbox
from extproc.processor.intake import GenerationRequest
from extproc.processor.ports import World
from extproc.processor.record import RequestRecord
from extproc.processor.speaker import Speaker
from extproc.processor.timers import Due, Timers
from extproc.replicas.attempt_client import ResponseHead
from extproc.replicas.evidence import HeadVerdict, read_head
from extproc.sse.facts import Ending, UpstreamError
from extproc.sse.reading import Batch, StreamReader
from extproc.sse.terminal import KEEP_ALIVE_COMMENT
from extproc.sse.whole import read_whole

_DECODE: Final = Phase.DECODE
"""Looked up once: Python 3.11 takes 90 ns for an enum's member, and this is asked for with every delta."""


class Session:
    """One request's reader. ``run`` returns when the client's stream has ended; cancelling it means that the client left."""

    def __init__(
        self, *, world: World, request: GenerationRequest, policy: Policy, client: ClientStream, record: RequestRecord
    ) -> None:
        self._world = world
        self._request = request
        self._policy = policy
        self._client = client
        self._record = record
        self._inbox: Inbox[Signal] = Inbox()
        self._state = RequestState()
        self._timers = Timers(policy, self._inbox.put)
        # Invariant: once it is set the client has every choice's finish, and only the stream's own last event is waited for.
        self._lingering = False
        self._speaker = Speaker(client=client, record=record, dialect=request.dialect)
        self._carrier = Carrier(
            world=world, request=request, policy=policy, speaker=self._speaker, record=record, inbox=self._inbox
        )

    @property
    def state(self) -> RequestState:
        """Where the request is; for the status page and tests."""
        return self._state

    def put(self, event: events.Event) -> None:
        """Tell the session something from outside, such as a drain limit."""
        self._inbox.put(event)

    @property
    def attempt(self) -> Attempt | None:
        """The running attempt; None before, between and after attempts."""
        return self._carrier.attempt

    @property
    def delivered_tokens(self) -> int:
        """Output tokens handed downstream so far."""
        return self._speaker.delivered_tokens

    def lose(self, attempt: Attempt, failure: Failure) -> None:
        """Something outside the attempt's connection says that it failed; without effect when it is no longer the running one."""
        self._inbox.put(AttemptLost(attempt, failure))

    async def run(self) -> None:
        """Serve the request. Raises StreamAborted where the client's stream must be cut, and re-raises its cancellation."""
        self._timers.start(stream=self._request.stream)
        try:
            await self._apply(events.Placed(candidate=self._carrier.find_candidate(), draining=self._world.is_draining()))
            while self._state.phase is not Phase.ENDED:
                await self._take(await self._inbox.get())
        except asyncio.CancelledError:
            self._leave()
            raise
        finally:
            self._timers.cancel()
            self._carrier.close()
            self._inbox.clear()

    def _leave(self) -> None:
        """The client is gone: none of these effects waits, so they are done before the cancellation goes on.

        One that left with the finish in its hands has a whole answer, whatever end mark was still to come (CASES CAN-02).
        """
        attempt = self._carrier.attempt
        has_all = self._state.phase is Phase.DECODE and attempt is not None and attempt.has_finished
        self._carrier.leave(self._decide(events.AnswerFinished() if has_all else events.ClientLeft()))

    def _decide(self, event: events.Event) -> tuple[Effect, ...]:
        self._state, effects = step(self._state, event, self._policy)
        self._world.decisions.decided(self._record.request_id, self._policy, event, effects)
        return effects

    async def _apply(self, event: events.Event | None) -> None:
        while event is not None:
            if self._lingering and events.spoils_a_finish(event):
                event = events.AnswerFinished()
            effects = self._decide(event)
            event = None
            for effect in effects:
                assert event is None, "an effect after one that has produced an event"
                event = await self._carrier.carry_out(effect)

    async def _fail(self, cause: Cause, evidence: str, error: UpstreamError | None = None) -> None:
        said = None if error is None else asdict(error)
        await self._apply(events.AttemptFailed(failure=Failure(cause=cause, evidence=evidence, upstream_error=said)))

    # --- signals ---

    async def _take(self, signal: Signal) -> None:
        match signal:
            case BodyReceived(attempt):
                if attempt is self._carrier.attempt:
                    await self._read_body(attempt, attempt.take())
            case HeadReceived(attempt):
                if attempt is self._carrier.attempt and attempt.head is not None:
                    await self._read_head(attempt, attempt.head)
            case AttemptOver(attempt, broken):
                if attempt is self._carrier.attempt:
                    await self._read_end(attempt, broken)
            case AttemptLost(attempt, failure):
                if attempt is self._carrier.attempt:
                    await self._apply(events.AttemptFailed(failure=failure))
            case FenceDone():
                if self._state.phase is Phase.FENCING:
                    await self._apply(events.FenceSettled(facts=self._carrier.gate_facts(signal)))
            case Due.KEEP_ALIVE:
                await self._keep_alive()
            case Due.LINGER:
                if self._state.phase is Phase.DECODE:
                    await self._apply(events.AnswerFinished())
            case Due.IDLE:
                await self._check_idle()
            case _:
                await self._apply(signal)

    async def _read_head(self, attempt: Attempt, head: ResponseHead) -> None:
        reading = read_head(head)
        if reading.failure is not None:
            await self._apply(events.AttemptFailed(failure=reading.failure))
            return
        served_by = head.get(names.SERVED_BY)
        self._record.note(
            EventKind.RESPONSE_STARTED,
            attempt_id=attempt.attempt_id,
            replica=attempt.replica.destination,
            status=head.status,
            served_by=served_by,
        )
        if served_by not in (None, attempt.replica.destination):
            # override_host falls back silently: another replica, perhaps of another identity, has the request (R8).
            await self._fail(Cause.UNCERTAIN, f"Envoy sent the attempt to {served_by}, not to {attempt.replica.destination}")
            return
        refused = reading.verdict is HeadVerdict.REQUEST_ERROR
        kind = AnswerKind.REFUSAL if refused else kind_of_answer(head, stream=self._request.stream)
        if self._client.written is Written.HEAD and kind not in (AnswerKind.EVENTS, AnswerKind.REFUSAL):
            # The head that went out early promised plain events (keep-alive); nothing else may follow it.
            await self._fail(Cause.ENGINE_ERROR, f"the answer is no event stream but {kind}")
            return
        attempt.read_as(kind, self._request.dialect, self._request.choices)
        self._speaker.prepare(attempt)

    def _relay(self, attempt: Attempt, reader: StreamReader, data: bytes) -> bool:
        """Hand plain deltas on: what ``_read_body`` does with them, where nothing is before them and nothing has to
        wait, but without waking the session, which costs as much as all the rest. False: nothing was done."""
        if self._state.phase is not _DECODE or not self._inbox.is_idle or attempt is not self._carrier.attempt:
            return False
        deltas = reader.plain_deltas(data)
        if not deltas or not self._world.fence.may_publish(attempt.attempt_id) or not self._client.write_now(data):
            return False
        reader.pass_plain(deltas)
        if self._policy.deadlines.idle_ms:
            attempt.last_received_ms = self._world.now_ms()
        return True

    async def _read_body(self, attempt: Attempt, data: bytes) -> None:
        if self._policy.deadlines.idle_ms:
            attempt.last_received_ms = self._world.now_ms()
        if attempt.reader is not None:
            await self._read_events(attempt, attempt.reader, attempt.reader.feed(data))
        elif attempt.kind is AnswerKind.OPAQUE:
            await self._pass_on(attempt, data)
        else:
            await self._hold(attempt, data)

    async def _pass_on(self, attempt: Attempt, data: bytes) -> None:
        if not await self._may_publish(attempt):
            return
        if self._state.phase is Phase.DECODE:
            await self._client.write(data)
            return
        await self._hold(attempt, data)
        if self._state.phase is Phase.PREFILL:
            await self._apply(events.FirstDeltaArrived())

    async def _may_publish(self, attempt: Attempt) -> bool:
        """Whether the attempt's lease still holds (R6); where it does not, the attempt has failed when this returns."""
        if self._world.fence.may_publish(attempt.attempt_id):
            return True
        await self._fail(Cause.UNCERTAIN, "the attempt's lease ran out before what it sent could be forwarded")
        return False

    async def _hold(self, attempt: Attempt, data: bytes) -> None:
        attempt.hold(data)
        if attempt.held_bytes > self._world.held_bytes_max:
            evidence = f"more than {self._world.held_bytes_max} bytes came before anything could be delivered"
            await self._fail(Cause.RESPONSE_TOO_LARGE, evidence)

    async def _read_events(self, attempt: Attempt, reader: StreamReader, batch: Batch) -> None:
        if not await self._may_publish(attempt):
            return
        if self._state.phase is Phase.DECODE:
            if batch.forward:
                await self._client.write(batch.forward)
        elif batch.forward:
            await self._hold(attempt, batch.forward)
        if self._state.phase not in (Phase.PREFILL, Phase.DECODE):
            return
        if batch.error is not None and batch.error.type == EVENT_TOO_LARGE:
            await self._fail(Cause.RESPONSE_TOO_LARGE, batch.error.message)
            return
        if batch.ending is not None and batch.ending is not Ending.FINISHED:
            await self._fail(Cause.ENGINE_ERROR, BAD_ENDINGS[batch.ending], batch.error)
            return
        if self._state.phase is Phase.PREFILL and (batch.content or reader.finished):
            await self._apply(events.FirstDeltaArrived())
            if self._client.may_write_now and attempt is self._carrier.attempt:
                attempt.relay = partial(self._relay, attempt, reader)
        if self._state.phase is Phase.DECODE and reader.finished:
            await self._finish_or_linger(batch)

    async def _finish_or_linger(self, batch: Batch) -> None:
        if batch.last:
            await self._apply(events.AnswerFinished())
        elif not self._lingering:
            self._lingering = True
            self._timers.wait_for_last_event()

    async def _read_end(self, attempt: Attempt, broken: str | None) -> None:
        if attempt.head is None:
            await self._fail(Cause.REPLICA_GONE, broken or "the connection closed before the response headers")
        elif attempt.reader is not None:
            await self._read_end_of_events(attempt, attempt.reader, broken)
        elif broken is not None:
            await self._fail(Cause.REPLICA_GONE, broken)
        elif attempt.kind is AnswerKind.REFUSAL:
            await self._apply(events.RequestRefused(status=attempt.head.status))
        elif attempt.kind in (AnswerKind.OPAQUE, AnswerKind.SEALED):
            await self._deliver_whole(attempt)
        else:
            await self._read_whole(attempt)

    async def _read_end_of_events(self, attempt: Attempt, reader: StreamReader, broken: str | None) -> None:
        await self._read_events(attempt, reader, reader.end())
        if attempt is not self._carrier.attempt:
            return
        if reader.finished:
            await self._apply(events.AnswerFinished())
        elif broken is not None:
            await self._fail(Cause.REPLICA_GONE, broken)
        else:
            await self._fail(Cause.ENGINE_ERROR, "the stream ended without a finish")

    async def _read_whole(self, attempt: Attempt) -> None:
        reading = read_whole(self._request.dialect, b"".join(attempt.held))
        if not reading.complete:
            ending = "the answer is not whole" if reading.ending is None else f"the answer ended {reading.ending}"
            await self._fail(Cause.ENGINE_ERROR, ending, reading.error)
            return
        self._speaker.whole_tokens = reading.tokens if reading.usage_tokens is None else reading.usage_tokens
        await self._deliver_whole(attempt)

    async def _deliver_whole(self, attempt: Attempt) -> None:
        if not await self._may_publish(attempt):
            return
        if self._state.phase is Phase.PREFILL:
            await self._apply(events.FirstDeltaArrived())
        if self._state.phase is Phase.DECODE:
            await self._apply(events.AnswerFinished())

    # --- time ---

    async def _keep_alive(self) -> None:
        if self._state.phase not in (Phase.PREFILL, Phase.FENCING):
            return
        if self._client.written is Written.NOTHING:
            await self._speaker.begin_early()
        await self._client.write(KEEP_ALIVE_COMMENT)
        self._timers.keep_alive_again()

    async def _check_idle(self) -> None:
        attempt, idle_ms = self._carrier.attempt, self._policy.deadlines.idle_ms
        if attempt is None or self._state.phase is not Phase.DECODE or attempt.has_unread:
            # A prefill's silence has a deadline of its own, and may last for minutes; what is unread came while we were busy.
            self._timers.look_for_silence(idle_ms)
            return
        left_ms = idle_ms - (self._world.now_ms() - attempt.last_received_ms)
        if left_ms > 0:
            self._timers.look_for_silence(left_ms)
        else:
            await self._apply(events.DeadlinePassed(deadline=events.Deadline.IDLE))
