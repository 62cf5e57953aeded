"""One attempt as its session sees it: the answer's kind, what is held, and what has been received but not yet read."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.processor.client_stream import Head
from extproc.processor.gathering import Gather
from extproc.replicas.attempt_client import AttemptConnection, ResponseHead
from extproc.replicas.roster import Replica
from extproc.sse.reading import Dialect, StreamReader

UNREAD_BYTES_MAX: Final = 1 << 20
"""Received and not yet read by the session; above it the connection is paused, so a flooding replica waits."""


class AnswerKind(StrEnum):
    """What a response's body is to us, decided by its head."""

    EVENTS = "events"
    """An event stream: framed, read, delivered event by event."""
    WHOLE = "whole"
    """Held until it is complete, so repeatable until then; nothing may be added to it."""
    OPAQUE = "opaque"
    """Encoded events: forwarded unread, and nothing may be put between them (CASES SSE-13)."""
    SEALED = "sealed"
    """An encoded answer that is no stream: held until HTTP says that it is complete, then handed on unread."""
    REFUSAL = "refusal"
    """The replica's own request error: held whole, then handed on unchanged."""


def kind_of_answer(head: ResponseHead, *, stream: bool) -> AnswerKind:
    """What the body of a good response is. Content types lie (CASES SSE-14): a streamed request's answer that is not JSON
    is read as events; a JSON one never gets events appended."""
    content_type = (head.get("content-type") or "").partition(";")[0].strip().lower()
    events_expected = content_type == "text/event-stream" or (stream and content_type in ("", "text/plain"))
    encoded = (head.get("content-encoding") or "identity").strip().lower() != "identity"
    if events_expected:
        return AnswerKind.OPAQUE if encoded else AnswerKind.EVENTS
    return AnswerKind.SEALED if encoded else AnswerKind.WHOLE


@dataclass(frozen=True, slots=True)
class HeadReceived:
    """Signal: the response's head is here."""

    attempt: "Attempt"


@dataclass(frozen=True, slots=True)
class BodyReceived:
    """Signal: ``attempt.take()`` has bytes."""

    attempt: "Attempt"


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """Signal: the exchange ended, whole as HTTP sees it (``broken`` is None) or broken, with the evidence."""

    attempt: "Attempt"
    broken: str | None


AttemptSignal = HeadReceived | BodyReceived | AttemptOver


class Attempt:
    """One try on one replica; the listener of its connection.

    Invariant: whatever is unread is announced once, to the gathering or by one BodyReceived signal, however many pieces arrive
    meanwhile; that is the whole of coalescing, and why the inbox stays short under load.
    """

    def __init__(
        self,
        *,
        number: int,
        attempt_id: str,
        replica: Replica,
        started_ms: int,
        put: Callable[[AttemptSignal], None],
        gather: Gather,
    ) -> None:
        self.number = number
        self.attempt_id = attempt_id
        self.replica = replica
        self.started_ms = started_ms
        self.head: ResponseHead | None = None
        self.answer_head: Head | None = None
        """What the client's answer begins with if it is this attempt's, where it was made before its time."""
        self.kind = AnswerKind.WHOLE
        self.reader: StreamReader | None = None
        self.held: list[bytes] = []
        self.held_bytes = 0
        self.last_received_ms = started_ms
        self.relay: Callable[[bytes], bool] | None = None
        """Hands bytes on without a signal, and says whether it did. Set once the boundary is crossed."""
        self._put = put
        self._gather = gather
        self._gathered = False
        self._connection: AttemptConnection | None = None
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._closed = False

    def attach(self, connection: AttemptConnection) -> None:
        """The connection that carries this attempt."""
        if self._closed:
            connection.close()
        else:
            self._connection = connection

    def close(self) -> None:
        """Break the exchange off; no signal of this attempt is put any more.

        Lets go of whatever holds the attempt, so that its memory is free now and not when the garbage collector, which stops
        every stream, finds the circle.
        """
        self._closed = True
        self._gathered = False
        self.relay = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def read_as(self, kind: AnswerKind, dialect: Dialect, choices: int) -> None:
        """Fix what the body is to us."""
        self.kind = kind
        if kind is AnswerKind.EVENTS:
            self.reader = StreamReader(dialect, choices)

    @property
    def has_finished(self) -> bool:
        """Whether what was delivered of this attempt is a whole answer; asked after the boundary."""
        if self.reader is not None:
            return self.reader.finished
        return self.kind in (AnswerKind.WHOLE, AnswerKind.SEALED)

    @property
    def has_unread(self) -> bool:
        """Whether something came that nobody has read yet."""
        return bool(self._unread)

    def take(self) -> bytes:
        """Everything received since the last call."""
        data = self._peek()
        self._forget_unread()
        return data

    def hold(self, data: bytes) -> None:
        """Keep bytes that may be delivered later or die with this attempt."""
        self.held.append(data)
        self.held_bytes += len(data)

    def release_held(self) -> bytes:
        """Hand out what was held; it is held no more."""
        data = b"".join(self.held)
        self.held.clear()
        self.held_bytes = 0
        return data

    # AttemptListener

    def response_started(self, head: ResponseHead) -> None:
        self.head = head
        self._put(HeadReceived(self))

    def body_received(self, data: bytes) -> None:
        is_first = not self._unread
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > UNREAD_BYTES_MAX and not self._paused and self._connection is not None:
            self._paused = True
            self._connection.pause_reading()
        if not is_first:
            return
        if self.relay is None:
            self._put(BodyReceived(self))
        else:
            self._gathered = True
            self._gather(self._hand_on)

    def attempt_ended(self, broken: str | None) -> None:
        if not self._closed:
            self._hand_on()
            self._put(AttemptOver(self, broken))

    def _hand_on(self) -> None:
        """What was gathered goes on, unless the attempt's end came first and took it along."""
        if not self._gathered:
            return
        self._gathered = False
        if self.relay is not None and self.relay(self._peek()):
            self._forget_unread()
        else:
            self._put(BodyReceived(self))

    def _peek(self) -> bytes:
        return self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)

    def _forget_unread(self) -> None:
        self._unread.clear()
        self._unread_bytes = 0
        if self._paused and self._connection is not None:
            self._paused = False
            self._connection.resume_reading()
