"""Carries a request's effects out: starts and fences attempts, writes the journal, writes to the client.

Decides nothing. ``carry_out`` may return the event that the effect itself produced, which the session feeds back at once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from extproc.contract import headers as names
from extproc.contract.errors import FORMS, ClientError, ErrorCode
from extproc.decision import effects, events
from extproc.decision.causes import Cause, Failure, Fencing
from extproc.decision.gates import GateFacts
from extproc.decision.policy import Policy
from extproc.journal.interface import JournalUnavailable
from extproc.journal.records import EventKind
from extproc.processor import wording
from extproc.processor.attempt import AnswerKind, Attempt, AttemptSignal
from extproc.processor.client_stream import ClientStream, Metadata, Written
from extproc.processor.inbox import Inbox
from extproc.processor.intake import GenerationRequest
from extproc.processor.ports import World
from extproc.processor.record import RequestRecord
from extproc.replicas.attempt_client import encode_request
from extproc.replicas.roster import Replica
from extproc.sse.terminal import error_body, terminal_event


class StreamAborted(Exception):  # noqa: N818  (an instruction to the service)
    """The answer can't be ended in words (encoded bytes, CASES SSE-13): the client's stream must be cut instead."""


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


class Due(Enum):
    """Signal: a session's own timer."""

    KEEP_ALIVE = auto()
    """The route wants a sign of life towards the client."""
    LINGER = auto()
    """Every choice has finished and the stream's own last event did not come in time (CASES SSE-11)."""
    IDLE = auto()
    """Time to look how long the attempt has been silent."""


Signal = AttemptSignal | AttemptLost | FenceDone | Due | events.Event


class Carrier:
    """The acting half of one session."""

    def __init__(
        self,
        *,
        world: World,
        request: GenerationRequest,
        policy: Policy,
        client: ClientStream,
        record: RequestRecord,
        inbox: Inbox[Signal],
    ) -> None:
        self.attempt: Attempt | None = None
        self.attempts = 0
        self.whole_tokens = 0
        """Output tokens of an answer that was held whole."""
        self._world = world
        self._request = request
        self._policy = policy
        self._client = client
        self._record = record
        self._inbox = inbox
        self._pool = world.pools.of(request.model)
        self._failed_on: set[str] = set()
        self._candidate: Replica | None = None
        self._identity: str | None = None
        self._fencing: asyncio.Task[None] | None = None
        self._delivering: Attempt | None = None
        self._ended: effects.RecordOutcome | None = None
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
            case effects.FenceAttempt():
                self._begin_fence(effect)
            case effects.CancelAttempt():
                self.cancel(effect.why)
            case effects.RecordBoundary():
                return await self._record_boundary()
            case effects.RecordOutcome():
                self._record_outcome(effect)
            case effects.DeliverHeld():
                await self._deliver_held()
            case effects.FinishStream():
                await self._client.end(b"", self._metadata())
            case effects.PassAnswer():
                await self._pass_answer()
            case effects.AnswerError():
                await self._answer_error(effect)
            case effects.InterruptStream():
                await self._interrupt(effect)
        return None

    def leave(self, gone: tuple[effects.Effect, ...]) -> None:
        """Do the effects of a client that left: they only stop and record, and nothing of them waits."""
        for effect in gone:
            match effect:
                case effects.CancelAttempt():
                    self.cancel(effect.why)
                case effects.RecordOutcome():
                    self._record_outcome(effect)
                case _:
                    raise AssertionError(f"{effect} for a client that left")

    @property
    def delivered_tokens(self) -> int:
        """Output tokens handed downstream; may count what did not arrive, never the reverse."""
        delivering = self._delivering
        if delivering is None:
            return 0
        return self.whole_tokens if delivering.reader is None else delivering.reader.delivered_tokens

    @property
    def token_source(self) -> str:
        """Where that number is from: the stream's own ``usage``, or ``counted``."""
        delivering = self._delivering
        return "counted" if delivering is None or delivering.reader is None else str(delivering.reader.token_source)

    def close(self) -> None:
        """Let go of everything; the session is over, however it ended."""
        if self._fencing is not None:
            self._fencing.cancel()
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

    async def begin_early(self) -> None:
        """Write a head of our own before there is one from a replica (keep-alive, CASES CAN-03)."""
        headers = [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("cache-control", "no-cache"),
            *wording.identity_headers(self._record.request_id, self.attempts),
        ]
        await self._client.begin(200, headers)

    # --- attempts ---

    async def _start(self, number: int) -> None:
        replica, self._candidate = self._candidate, None
        assert replica is not None, "an attempt without a candidate"
        now = self._world.now_ms()
        terms = self._policy.retry_budget
        if number == 1:
            self._pool.note_request(terms, now)
        else:
            self._pool.take_repeat(terms, now)
        self.attempts = number
        self._identity = replica.identity
        attempt = Attempt(
            number=number, attempt_id=f"att_{self._world.new_id()}", replica=replica, started_ms=now, put=self._inbox.put
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
        lease = await self._world.fence.grant(attempt.attempt_id, replica, self._on_lost(attempt))
        own = ((names.REQUEST_ID, self._record.request_id), (names.ATTEMPT_ID, attempt.attempt_id))
        head = encode_request(
            method=self._request.method,
            path=self._request.path,
            headers=(
                ("host", self._request.authority or replica.destination),
                *self._request.headers,
                ("accept-encoding", "identity"),
                (names.DESTINATION, replica.destination),
                *own,
                *lease,
            ),
            body_length=len(self._request.body),
        )
        try:
            attempt.attach(await self._world.attempts.open(head, self._request.body, attempt))
        except OSError as error:
            failure = Failure(cause=Cause.NEVER_STARTED, evidence=f"the egress listener can't be reached: {error}")
            self._inbox.put(AttemptLost(attempt, failure))

    def _on_lost(self, attempt: Attempt) -> Callable[[Failure], None]:
        return lambda failure: self._inbox.put(AttemptLost(attempt, failure))

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
        self._fencing = asyncio.create_task(self._fence(attempt, effect.fencing, failure), name=f"fence {attempt.attempt_id}")

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

    # --- the client ---

    async def _record_boundary(self) -> events.Event:
        attempt = self.attempt
        assert attempt is not None, "a boundary without an attempt"
        try:
            await self._record.commit(
                EventKind.FIRST_DELTA_SENT, attempt_id=attempt.attempt_id, replica=attempt.replica.destination
            )
        except JournalUnavailable as error:
            return events.BoundaryNotRecorded(detail=str(error))
        self._pool.note_prefill(
            self._pool.cost_of(self._request.prompt_bytes).prompt_tokens, self._world.now_ms() - attempt.started_ms
        )
        return events.BoundaryRecorded()

    def _record_outcome(self, effect: effects.RecordOutcome) -> None:
        self._ended = effect
        self._record.note(
            EventKind.ENDED,
            outcome=effect.outcome,
            reason=effect.reason,
            error_code=effect.error_code,
            delivered_output_tokens=self.delivered_tokens,
            delivered_output_tokens_source=self.token_source,
        )

    async def _deliver_held(self) -> None:
        attempt = self.attempt
        assert attempt is not None, "a delivery without an attempt"
        assert attempt.head is not None, "a delivery without a head"
        self._delivering = attempt
        if self._client.written is Written.NOTHING:
            headers = wording.answer_headers(attempt.head.headers, self._record.request_id, self.attempts)
            if attempt.kind is AnswerKind.WHOLE:
                headers.append(("content-length", str(attempt.held_bytes)))
            await self._client.begin(attempt.head.status, headers)
        held = attempt.release_held()
        if held:
            await self._client.write(held)

    async def _pass_answer(self) -> None:
        attempt = self.attempt
        assert attempt is not None, "an answer without an attempt"
        assert attempt.head is not None, "an answer without a head"
        body = attempt.release_held()
        if self._client.written is Written.NOTHING:
            headers = wording.answer_headers(attempt.head.headers, self._record.request_id, self.attempts)
            await self._client.begin(attempt.head.status, [*headers, ("content-length", str(len(body)))])
            await self._client.end(body, self._metadata())
            return
        # The head went out early (keep-alive), so the status can only be told inside the stream.
        refusal = effects.AnswerError(
            code=ErrorCode.INVALID_REQUEST_BODY,
            reason=f"request_error_{attempt.head.status}",
            detail=f"the replica answered {attempt.head.status}: {body[:512].decode('utf-8', 'replace')}",
        )
        await self._answer_error(refusal)

    async def _answer_error(self, effect: effects.AnswerError) -> None:
        error = wording.refused_error(effect, request_id=self._record.request_id, attempts=self.attempts)
        if self._client.written is Written.HEAD:
            await self._client.end(self._terminal(error), self._metadata())
            return
        status = effect.status or FORMS[effect.code].status
        headers = wording.error_headers(error, effect.retry_after_s)
        body = error_body(self._request.dialect, error)
        await self._client.answer(status, headers, body, details=f"deltafence_{effect.code}", metadata=self._metadata())

    async def _interrupt(self, effect: effects.InterruptStream) -> None:
        delivering = self._delivering
        if delivering is None or delivering.kind is not AnswerKind.EVENTS:
            raise StreamAborted(effect.detail)
        error = wording.interrupted_error(
            effect,
            request_id=self._record.request_id,
            attempts=self.attempts,
            tokens=self.delivered_tokens,
            token_source=self.token_source,
        )
        await self._client.end(self._terminal(error), self._metadata())

    def _terminal(self, error: ClientError) -> bytes:
        reader = None if self._delivering is None else self._delivering.reader
        return terminal_event(self._request.dialect, error, 0 if reader is None else reader.next_sequence_number)

    def _metadata(self) -> Metadata:
        ended = self._ended
        assert ended is not None, "an end before its outcome was recorded"
        return {
            "request_id": self._record.request_id,
            "phase": "ended",
            "outcome": str(ended.outcome),
            "reason": ended.reason,
            "attempts": self.attempts,
            "delivered_output_tokens": self.delivered_tokens,
        }
