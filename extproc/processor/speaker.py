"""The speaking half of one session: what the client's stream gets, in which words, and what the access log learns."""

from extproc.contract.errors import FORMS, ClientError, ErrorCode
from extproc.decision import effects
from extproc.journal.records import EventKind
from extproc.processor import wording
from extproc.processor.attempt import AnswerKind, Attempt
from extproc.processor.client_stream import ClientStream, Head, Metadata, Written, make_head
from extproc.processor.record import RequestRecord
from extproc.sse.dialects import Dialect
from extproc.sse.terminal import error_body, terminal_event


class StreamAborted(Exception):  # noqa: N818  (an instruction to the service)
    """The answer can't be ended in words (encoded bytes, CASES SSE-13): the client's stream must be cut instead."""


class Speaker:
    """Writes one request's answer, in the dialect in which it was asked."""

    def __init__(self, *, client: ClientStream, record: RequestRecord, dialect: Dialect) -> None:
        self.attempts = 0
        self.whole_tokens = 0
        """Output tokens of an answer that was held whole."""
        self._client = client
        self._record = record
        self._dialect = dialect
        self._delivering: Attempt | None = None
        self._ended: effects.RecordOutcome | None = None
        self._last = b""
        """What goes out together with the end."""

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

    async def begin_early(self) -> None:
        """Write a head of our own before there is one from a replica (keep-alive, CASES CAN-03)."""
        headers = [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("cache-control", "no-cache"),
            *wording.identity_headers(self._record.request_id, self.attempts),
        ]
        await self._client.begin(make_head(200, headers, self._metadata("prefill")))

    def prepare(self, attempt: Attempt) -> None:
        """The head of ``attempt`` is here, and its first delta is not: what has to be said then can be made now."""
        if self._client.written is Written.NOTHING and attempt.kind in (AnswerKind.EVENTS, AnswerKind.OPAQUE):
            attempt.answer_head = self._head(attempt)

    async def keep_answer(self, effect: effects.RecordOutcome) -> None:
        """Let a whole answer be stored for repeats, before anybody can learn that it is complete."""
        if effect.outcome is effects.Outcome.COMPLETED:
            await self._client.keep(self._last)

    def record_outcome(self, effect: effects.RecordOutcome) -> None:
        """Write the outcome to the journal. Before the last message: Envoy may reset the stream right after it."""
        self._ended = effect
        self._record.note(
            EventKind.ENDED,
            outcome=effect.outcome,
            reason=effect.reason,
            error_code=effect.error_code,
            delivered_output_tokens=self.delivered_tokens,
            delivered_output_tokens_source=self.token_source,
        )

    async def deliver_held(self, attempt: Attempt) -> None:
        """Write the head, and everything of ``attempt`` that was held.

        An answer that is whole waits for its end mark: a client that has all its bytes closes at once, and the access log would
        call a complete answer a disconnect.
        """
        self._delivering = attempt
        is_whole = attempt.kind in (AnswerKind.WHOLE, AnswerKind.SEALED)
        prepared, attempt.answer_head = attempt.answer_head, None
        if self._client.written is Written.NOTHING:
            await self._client.begin(prepared or self._head(attempt, attempt.held_bytes if is_whole else None))
        held = attempt.release_held()
        if is_whole:
            self._last = held
        elif held:
            await self._client.write(held)

    async def finish(self) -> None:
        """End a whole answer."""
        await self._client.end(self._last, self._metadata())

    async def pass_answer(self, attempt: Attempt) -> None:
        """Hand a replica's own request error on, unchanged."""
        assert attempt.head is not None, "an answer without a head"
        body = attempt.release_held()
        if self._client.written is Written.NOTHING:
            await self._client.begin(self._head(attempt, len(body)))
            await self._client.end(body, self._metadata())
            return
        # The head went out early (keep-alive), so the status can only be told inside the stream.
        await self.answer_error(
            effects.AnswerError(
                code=ErrorCode.INVALID_REQUEST_BODY,
                reason=f"request_error_{attempt.head.status}",
                detail=f"the replica answered {attempt.head.status}: {body[:512].decode('utf-8', 'replace')}",
            )
        )

    async def answer_error(self, effect: effects.AnswerError) -> None:
        """Nothing was delivered: an honest status, or the terminal event where the head went out early."""
        error = wording.refused_error(effect, request_id=self._record.request_id, attempts=self.attempts)
        if self._client.written is Written.HEAD:
            await self._client.end(self._terminal(error), self._metadata())
            return
        await self._client.answer(
            effect.status or FORMS[effect.code].status,
            wording.error_headers(error, effect.retry_after_s),
            error_body(self._dialect, error),
            details=f"deltafence_{effect.code}",
            metadata=self._metadata(),
        )

    async def interrupt(self, effect: effects.InterruptStream) -> None:
        """Something was delivered: the terminal event. Raises StreamAborted where nothing may be put into the body."""
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
        return terminal_event(self._dialect, error, 0 if reader is None else reader.next_sequence_number)

    def _head(self, attempt: Attempt, body_bytes: int | None = None) -> Head:
        """The head of an answer that is ``attempt``'s; ``body_bytes`` where its length is known."""
        assert attempt.head is not None, "an answer without a head"
        headers = wording.answer_headers(attempt.head.headers, self._record.request_id, self.attempts)
        if body_bytes is not None:
            headers.append(("content-length", str(body_bytes)))
        return make_head(attempt.head.status, headers, self._metadata("decode"))

    def _metadata(self, phase: str = "ended") -> Metadata:
        """For the access log. While a stream runs there is no outcome: should it stay so, Envoy's flags say who left."""
        metadata: dict[str, str | float] = {
            "request_id": self._record.request_id,
            "attempt_id": self._record.attempt_id,
            "phase": phase,
            "attempts": self.attempts,
        }
        if phase == "ended":
            ended = self._ended
            assert ended is not None, "an end before its outcome was recorded"
            metadata |= {
                "outcome": str(ended.outcome),
                "reason": ended.reason,
                "delivered_output_tokens": self.delivered_tokens,
            }
        return metadata
