"""Mode ``observe``: one request that Envoy serves by itself, watched from beside the data path (DESIGN section 7).

Envoy sends copies and reads no answer, so whatever happens here, the traffic does not change. The same framer, dialects, table
and journal are used as by a session; where a session would act, an observation only writes down what would have been done.

What Envoy does not tell is who ended a stream that has no end: a client that left and a replica that broke look alike from here.
A replica's address that refuses connections proves the latter; without that proof the stream is called ``cut``.
"""

from dataclasses import asdict
from enum import StrEnum
from typing import Final

from extproc.decision import effects, events
from extproc.decision.causes import Cause, Failure
from extproc.decision.effects import Outcome
from extproc.decision.gates import GateFacts
from extproc.decision.policy import Policy
from extproc.decision.request import Phase, RequestState, step
from extproc.journal.records import EventKind
from extproc.processor.attempt import AnswerKind, kind_of_answer
from extproc.processor.endings import BAD_ENDINGS, EVENT_TOO_LARGE
from extproc.processor.intake import GenerationRequest
from extproc.processor.ports import World
from extproc.processor.record import RequestRecord
from extproc.replicas.attempt_client import ResponseHead
from extproc.replicas.evidence import HeadVerdict, read_head
from extproc.replicas.listening import refuses_connections
from extproc.sse.facts import Ending, UpstreamError
from extproc.sse.reading import Batch, StreamReader
from extproc.sse.whole import read_whole

CUT: Final = "cut"
"""Reason of an end that nobody explained."""


class Would(StrEnum):
    """What ``enforce`` would have done at the end of a request."""

    SAME = "same"
    """Nothing else: the same answer, the same refusal of the replica's, the same cancel."""
    REPEAT = "repeat"
    """Every gate was open: the whole request would have been sent again."""
    ERROR = "error"
    """A gate would have refused: an honest error, named beside this."""
    TERMINAL_EVENT = "terminal_event"
    """Partly delivered: one error event that the client understands, and the end."""


class Observation:
    """Watches one request. Its calls come in the order of the exchange; after ``end`` they do nothing."""

    def __init__(self, *, world: World, request: GenerationRequest, policy: Policy, record: RequestRecord) -> None:
        self._world = world
        self._request = request
        self._policy = policy
        self._record = record
        self._state = RequestState()
        self._pool = world.pools.of(request.model)
        self._attempt_id = f"att_{world.new_id()}"
        self._replica = ""
        self._started_ms = world.now_ms()
        self._kind = AnswerKind.WHOLE
        self._reader: StreamReader | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._whole_tokens = 0
        self._would = Would.SAME
        self._would_code: str | None = None
        self._pool.note_request(policy.retry_budget, self._started_ms)
        self._apply(events.Placed(candidate=True))

    @property
    def over(self) -> bool:
        """Whether the outcome is on record."""
        return self._record.ended

    def response_started(self, head: ResponseHead, replica: str) -> None:
        """The response's head, with Envoy's flags in it where Envoy made the answer itself; ``replica`` is who gave it."""
        self._begin_attempt(replica)
        self._record.note(
            EventKind.RESPONSE_STARTED, attempt_id=self._attempt_id, replica=replica, status=head.status, served_by=replica
        )
        reading = read_head(head)
        if reading.failure is not None:
            self._apply(events.AttemptFailed(failure=reading.failure))
        elif reading.verdict is HeadVerdict.REQUEST_ERROR:
            self._apply(events.RequestRefused(status=head.status))
        else:
            self._kind = kind_of_answer(head, stream=self._request.stream)
            if self._kind is AnswerKind.EVENTS:
                self._reader = StreamReader(self._request.dialect, self._request.choices)

    def body_received(self, data: bytes) -> None:
        """A piece of the response's body."""
        if self.over:
            return
        if self._reader is not None:
            self._read_events(self._reader, self._reader.feed(data))
        elif self._kind is AnswerKind.OPAQUE:
            self._cross_boundary()
        elif self._held_bytes <= self._world.held_bytes_max:
            self._held.append(data)
            self._held_bytes += len(data)

    def ended(self) -> None:
        """The response is whole as HTTP sees it."""
        if self.over:
            return
        if self._reader is not None:
            self._read_events(self._reader, self._reader.end())
            self._end_of_events(self._reader)
            return
        if self._kind is AnswerKind.WHOLE:
            self._read_whole()
        if not self.over:
            self._cross_boundary()
            self._apply(events.AnswerFinished())

    async def cut(self) -> None:
        """Envoy let go of the exchange before its end."""
        if self.over:
            return
        if self._reader is not None and self._reader.finished:
            self._apply(events.AnswerFinished())
            return
        if self._replica and await refuses_connections(self._replica):
            self._fail(Cause.REPLICA_GONE, f"the stream was cut, and nothing listens at {self._replica} any more")
            return
        self._begin_attempt(self._replica)
        self._state, _ = step(self._state, events.ClientLeft(), self._policy)
        self._end(Outcome.CANCELLED, CUT)

    def _begin_attempt(self, replica: str) -> None:
        if not self._record.attempt_id:
            self._replica = replica
            self._record.note(EventKind.ATTEMPT_STARTED, attempt_id=self._attempt_id, replica=replica, number=1)

    def _read_events(self, reader: StreamReader, batch: Batch) -> None:
        if batch.error is not None and batch.error.type == EVENT_TOO_LARGE:
            self._fail(Cause.RESPONSE_TOO_LARGE, batch.error.message)
        elif batch.ending is not None and batch.ending is not Ending.FINISHED:
            self._fail(Cause.ENGINE_ERROR, BAD_ENDINGS[batch.ending], batch.error)
        elif batch.content or reader.finished:
            self._cross_boundary()
        if batch.last and reader.finished:
            self._apply(events.AnswerFinished())

    def _end_of_events(self, reader: StreamReader) -> None:
        if self.over:
            return
        if reader.finished:
            self._apply(events.AnswerFinished())
        else:
            self._fail(Cause.ENGINE_ERROR, "the stream ended without a finish")

    def _read_whole(self) -> None:
        reading = read_whole(self._request.dialect, b"".join(self._held))
        self._held.clear()
        self._whole_tokens = reading.tokens if reading.usage_tokens is None else reading.usage_tokens
        if not reading.complete and self._held_bytes <= self._world.held_bytes_max:
            ending = "the answer is not whole" if reading.ending is None else f"the answer ended {reading.ending}"
            self._fail(Cause.ENGINE_ERROR, ending, reading.error)

    def _cross_boundary(self) -> None:
        if self._state.phase is Phase.PREFILL:
            self._apply(events.FirstDeltaArrived())

    def _fail(self, cause: Cause, evidence: str, error: UpstreamError | None = None) -> None:
        said = None if error is None else asdict(error)
        self._apply(events.AttemptFailed(failure=Failure(cause=cause, evidence=evidence, upstream_error=said)))

    # --- the table, and what would have been done ---

    def _apply(self, event: events.Event | None) -> None:
        while event is not None and not self.over:
            self._state, due = step(self._state, event, self._policy)
            event = None
            for effect in due:
                event = self._note(effect) or event

    def _note(self, effect: effects.Effect) -> events.Event | None:
        match effect:
            case effects.StartAttempt(number=number) if number > 1:
                self._would = Would.REPEAT
                self._pool.take_repeat(self._policy.retry_budget, self._world.now_ms())
                assert self._state.failure is not None, "a repeat without a failure"
                self._end(Outcome.FAILED, str(self._state.failure.cause))
            case effects.FenceAttempt():
                return self._settle_fence(effect)
            case effects.RecordBoundary():
                self._record.note(EventKind.FIRST_DELTA_SENT, attempt_id=self._attempt_id, replica=self._replica)
                if self._kind is AnswerKind.EVENTS:  # any other answer's first byte waits for its last token
                    prompt = self._pool.cost_of(self._request.prompt_bytes).prompt_tokens
                    self._pool.note_prefill(prompt, self._world.now_ms() - self._started_ms)
                return events.BoundaryRecorded()
            case effects.RecordRefusal():
                self._record.refuse_repeat(effect)
            case effects.RecordOutcome(error_code=code) if code is not None:
                self._would = Would.TERMINAL_EVENT if effect.outcome is Outcome.INTERRUPTED else Would.ERROR
                self._would_code = str(code)
                self._end(effect.outcome, effect.reason)
            case effects.RecordOutcome():
                self._end(effect.outcome, effect.reason)
        return None

    def _settle_fence(self, effect: effects.FenceAttempt) -> events.Event:
        """Under ``enforce`` there would be a lease, and with a lease there always is a proof in the end (R7)."""
        now_ms = self._world.now_ms()
        self._record.note(
            EventKind.ATTEMPT_FAILED,
            attempt_id=self._attempt_id,
            replica=self._replica,
            cause=effect.failure.cause,
            evidence=effect.failure.evidence,
            fencing=effect.fencing,
        )
        facts = GateFacts(
            fenced=True,
            budget_available=self._pool.allows_repeat(self._policy.retry_budget, now_ms),
            replay_cost=self._pool.cost_of(self._request.prompt_bytes),
            client_deadline_left_ms=self._started_ms + self._policy.deadlines.first_delta_ms - now_ms,
            tool_call_recorded=False,
            candidate=self._world.roster.choose({self._replica}) is not None,
            draining=False,
        )
        return events.FenceSettled(facts=facts)

    def _end(self, outcome: Outcome, reason: str) -> None:
        reader = self._reader
        self._record.note(
            EventKind.ENDED,
            outcome=outcome,
            reason=reason,
            delivered_output_tokens=self._whole_tokens if reader is None else reader.delivered_tokens,
            delivered_output_tokens_source="counted" if reader is None else str(reader.token_source),
            enforce_would=self._would,
            enforce_code=self._would_code,
        )
