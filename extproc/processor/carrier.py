"""The acting half of one session: carries a request's effects out, starts and fences its attempts.

Decides nothing. ``carry_out`` may return the event that the effect itself produced, which the session feeds back at once.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from extproc.contract import headers as names
from extproc.decision import effects, events
from extproc.decision.causes import Cause, Failure, Fencing
from extproc.decision.gates import GateFacts
from extproc.decision.policy import Policy
from extproc.journal.interface import JournalUnavailable
from extproc.journal.records import EventKind
from extproc.processor.attempt import AnswerKind, Attempt, AttemptSignal
from extproc.processor.inbox import Inbox
from extproc.processor.intake import GenerationRequest
from extproc.processor.ports import World
from extproc.processor.record import RequestRecord
from extproc.processor.speaker import Speaker
from extproc.processor.timers import Due
from extproc.replicas.attempt_client import AttemptRequest
from extproc.replicas.roster import Replica

LOGGER: Final = logging.getLogger("deltafence.processor")


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceDone:
    """Signal: the wait for a fence is over."""

    fenced: bool
    tool_call_recorded: bool


@dataclass(frozen=True, slots=True)
class AttemptLost:
    """Signal: what is known outside the attempt's connection says that it failed (lease, verdict, pod)."""

    attempt: Attempt
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fencing:
    """The wait for a fence. Holds no Attempt, so that what a failed one has read is let go of."""

    attempt_id: str
    replica: Replica
    task: asyncio.Task[None]


class ReplicaChangedError(ConnectionError):
    """A repeat's replica turned out to be another process, so the repeat was not sent. The message is the evidence."""


Signal = AttemptSignal | AttemptLost | FenceDone | Due | events.Event


class Carrier:
    """The acting half of one session."""

    def __init__(
        self,
        *,
        world: World,
        request: GenerationRequest,
        policy: Policy,
        speaker: Speaker,
        record: RequestRecord,
        inbox: Inbox[Signal],
    ) -> None:
        self.attempt: Attempt | None = None
        self._world = world
        self._request = request
        self._policy = policy
        self._speaker = speaker
        self._record = record
        self._inbox = inbox
        self._pool = world.pools.of(request.model)
        self._failed_on: set[str] = set()
        self._candidate: Replica | None = None
        self._identity: str | None = None
        self._fencing: _Fencing | None = None
        self._first_delta_due_ms = world.now_ms() + policy.deadlines.first_delta_ms

    def find_candidate(self) -> bool:
        """Choose the replica of the next attempt; whether there is one."""
        self._candidate = self._world.roster.choose(self._failed_on, self._identity)
        return self._candidate is not None

    async def carry_out(self, effect: effects.Effect) -> events.Event | None:
        """Do one effect."""
        match effect:
            case effects.StartAttempt():
                await self._start(effect.number)
            case effects.DoubtReplica():
                self._world.roster.doubt(self._running().replica.destination)
            case effects.FenceAttempt():
                self._begin_fence(effect)
            case effects.CancelAttempt():
                self.cancel(effect.why)
            case effects.RecordBoundary():
                return await self._record_boundary()
            case effects.RecordRefusal():
                self._record.refuse_repeat(effect)
            case effects.RecordOutcome():
                try:
                    await self._speaker.keep_answer(effect)
                finally:  # a client that leaves meanwhile doesn't change the outcome
                    self._speaker.record_outcome(effect)
            case effects.DeliverHeld():
                await self._speaker.deliver_held(self._running())
            case effects.FinishStream():
                await self._speaker.finish()
            case effects.PassAnswer():
                await self._speaker.pass_answer(self._running())
            case effects.AnswerError():
                await self._speaker.answer_error(effect)
            case effects.InterruptStream():
                await self._speaker.interrupt(effect)
        return None

    def leave(self, gone: tuple[effects.Effect, ...]) -> None:
        """Do the effects of a client that left: they only stop and record, and nothing of them waits."""
        for effect in gone:
            match effect:
                case effects.CancelAttempt():
                    self.cancel(effect.why)
                case effects.RecordOutcome():
                    self._speaker.record_outcome(effect)
                case effects.FinishStream():
                    pass  # there is nobody to tell
                case _:
                    raise AssertionError(f"{effect} for a client that left")

    def close(self) -> None:
        """Let go of everything; the session is over, however it ended."""
        if self._fencing is not None and not self._fencing.task.done():
            self._fencing.task.cancel()
            # The fence may not have begun, and nobody else would ask that replica to stop.
            self._world.fence.cancel(self._fencing.attempt_id, self._fencing.replica)
        attempt = self._drop_attempt()
        if attempt is not None:
            self._world.fence.release(attempt.attempt_id)

    def cancel(self, why: str) -> None:
        """Stop the running attempt, if there is one, and ask its replica to stop."""
        attempt = self._drop_attempt()
        if attempt is None:
            return
        self._world.fence.cancel(attempt.attempt_id, attempt.replica)
        self._record.note(EventKind.CANCEL_SENT, attempt_id=attempt.attempt_id, replica=attempt.replica.destination, why=why)

    async def _start(self, number: int) -> None:
        replica, self._candidate = self._candidate, None
        assert replica is not None, "an attempt without a candidate"
        now = self._world.now_ms()
        terms = self._policy.retry_budget
        if number == 1:
            self._pool.note_request(terms, now)
        else:
            self._pool.take_repeat(terms, now)
        self._speaker.attempts = number
        self._identity = replica.identity
        attempt = Attempt(
            number=number,
            attempt_id=f"att_{self._world.new_id()}",
            replica=replica,
            started_ms=now,
            put=self._inbox.put,
            gather=self._world.gather,
        )
        self.attempt = attempt
        self._world.roster.acquire(replica)
        self._record.note(
            EventKind.ATTEMPT_STARTED,
            attempt_id=attempt.attempt_id,
            replica=replica.destination,
            number=number,
            retry_budget=self._pool.repeats_left(terms, now),
            model_revision=replica.identity or None,
        )
        try:
            lease = await self._world.fence.grant(attempt.attempt_id, replica, self._on_lost(attempt), self._policy.lease)
            self._check_identity(attempt)
            attempt.attach(await self._world.attempts.open(self._attempt_request(attempt, lease), attempt))
        except OSError as error:
            failure = Failure(cause=Cause.NEVER_STARTED, evidence=f"the attempt could not be sent: {error}")
            self._inbox.put(AttemptLost(attempt, failure))

    def _check_identity(self, attempt: Attempt) -> None:
        """The lease's grant may have heard that another process answers there than the one that was chosen (R8). A first attempt
        may go to any process, but what equals only the one before doesn't repeat it. Raises ReplicaChangedError for a repeat."""
        identity = self._world.roster.identity(attempt.replica.destination)
        if identity in (None, self._identity):
            return
        if attempt.number > 1:
            raise ReplicaChangedError(f"{attempt.replica.destination} was restarted, and what it serves now is not known yet")
        self._identity = identity

    def _attempt_request(self, attempt: Attempt, lease: Sequence[tuple[str, str]]) -> AttemptRequest:
        own = ((names.REQUEST_ID, self._record.request_id), (names.ATTEMPT_ID, attempt.attempt_id))
        trace = self._world.observer.attempt_headers(attempt.attempt_id)
        replaced = {name for name, _ in trace}
        return AttemptRequest(
            method=self._request.method,
            path=self._request.path,
            authority=self._request.authority or attempt.replica.destination,
            headers=(
                *(header for header in self._request.headers if header[0] not in replaced),
                ("accept-encoding", "identity"),
                (names.DESTINATION, attempt.replica.destination),
                *trace,
                *own,
                *lease,
            ),
            body=self._request.body.data,
        )

    def _on_lost(self, attempt: Attempt) -> Callable[[Failure], None]:
        return lambda failure: self._inbox.put(AttemptLost(attempt, failure))

    def _running(self) -> Attempt:
        assert self.attempt is not None, "an effect that needs a running attempt"
        return self.attempt

    def _drop_attempt(self) -> Attempt | None:
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.close()
            self._world.roster.release(attempt.replica)
        return attempt

    def _begin_fence(self, effect: effects.FenceAttempt) -> None:
        attempt = self._drop_attempt()
        assert attempt is not None, "a fence without an attempt"
        failure = effect.failure
        self._record.note(
            EventKind.ATTEMPT_FAILED,
            attempt_id=attempt.attempt_id,
            replica=attempt.replica.destination,
            cause=failure.cause,
            evidence=failure.evidence,
            fencing=effect.fencing,
        )
        self._failed_on.add(attempt.replica.destination)
        task = asyncio.create_task(self._fence(attempt, effect.fencing, failure), name=f"fence {attempt.attempt_id}")
        self._fencing = _Fencing(attempt_id=attempt.attempt_id, replica=attempt.replica, task=task)

    async def _fence(self, attempt: Attempt, fencing: Fencing, failure: Failure) -> None:
        proof = await self._world.fence.fence(attempt.attempt_id, attempt.replica, fencing, failure)
        kind = EventKind.FENCED if proof is not None else EventKind.FENCE_GIVEN_UP
        self._record.note(kind, attempt_id=attempt.attempt_id, replica=attempt.replica.destination, proof=proof)
        tool_call = await self._world.tool_call_recorded(self._record.request_id)
        self._inbox.put(FenceDone(fenced=proof is not None, tool_call_recorded=tool_call))

    def gate_facts(self, done: "FenceDone") -> GateFacts:
        """What the gates ask for, at this moment. The decision and its first effects follow without a wait in between, so
        that no other session can take the repeat or the replica that these facts promise."""
        now = self._world.now_ms()
        return GateFacts(
            fenced=done.fenced,
            budget_available=self._pool.allows_repeat(self._policy.retry_budget, now),
            replay_cost=self._pool.cost_of(self._request.prompt_bytes),
            client_deadline_left_ms=self._first_delta_due_ms - now,
            tool_call_recorded=done.tool_call_recorded,
            candidate=self.find_candidate(),
            draining=self._world.is_draining(),
        )

    async def _record_boundary(self) -> events.Event:
        attempt = self._running()
        try:
            await self._record.commit(
                EventKind.FIRST_DELTA_SENT, attempt_id=attempt.attempt_id, replica=attempt.replica.destination
            )
        except JournalUnavailable as error:
            # What the database says may name its host or file, which is no client's business.
            LOGGER.warning("the boundary of %s is not recorded, so not crossed: %s", self._record.request_id, error)
            return events.BoundaryNotRecorded(detail="the first delta could not be recorded, so it was not delivered")
        if attempt.kind is AnswerKind.EVENTS:  # any other answer's first byte waits for its last token
            self._pool.note_prefill(
                self._pool.cost_of(self._request.prompt_bytes).prompt_tokens, self._world.now_ms() - attempt.started_ms
            )
        self._request.body.release()
        return events.BoundaryRecorded()
