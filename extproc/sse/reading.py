"""One attempt's event stream, read as it arrives: what may go to the client, and what it proves (R2, R9).

1. Only whole events are forwarded, byte for byte, in order; an unfinished tail dies with its attempt.
2. An event that ends the attempt badly is not forwarded; the gateway's own terminal event takes its place (CASES ERR-01, ERR-08).
3. Once the answer is finished, nothing spoils it: an error that still comes is left out, and the end of the bytes is the end of
   the answer, with or without an end mark (CASES SSE-11, SSE-12, FC-05).
4. The answer's last event closes the stream: whatever follows it is not read.
5. How the bytes were cut into chunks changes nothing in all this.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from extproc.sse.choices import ChoicesAnswer
from extproc.sse.dialects import Dialect, dialect_of_path
from extproc.sse.facts import NOTHING, Answer, Ending, Reading, UpstreamError, find_error, upstream_error
from extproc.sse.framing import EVENT_BYTES_MAX, Event, EventTooLarge, Framer
from extproc.sse.messages import MessageAnswer
from extproc.sse.payloads import NotJson, decode_payload
from extproc.sse.plain_delta import OPENINGS, PlainDeltas
from extproc.sse.responses import ResponseAnswer

__all__ = ["Batch", "Dialect", "Ending", "StreamReader", "UpstreamError", "dialect_of_path"]

_ANSWERS: Final[dict[Dialect, Callable[[int], Answer]]] = {
    Dialect.CHAT: ChoicesAnswer,
    Dialect.COMPLETIONS: ChoicesAnswer,
    Dialect.RESPONSES: lambda choices: ResponseAnswer(),
    Dialect.MESSAGES: lambda choices: MessageAnswer(),
}


class Batch(NamedTuple):
    """What one chunk amounted to. A named tuple: one is made for every delta, at a third of a dataclass's cost.

    ``forward``: whole events, unchanged, up to and without the event that ends the attempt badly.
    ``content``: at least one event in ``forward`` is content. ``tokens``: the output tokens counted in ``forward``.
    ``usage_tokens``: the latest output tokens that the stream itself has told, for the whole answer.
    ``ending``, ``error``, ``last``: how it ended, what the replica said, and whether its own last event was seen; once set, every
    later batch repeats them. With ``ending`` None in the batch of ``end()`` the stream was cut.
    """

    forward: bytes
    content: bool = False
    tokens: int = 0
    usage_tokens: int | None = None
    ending: Ending | None = None
    error: UpstreamError | None = None
    last: bool = False


class StreamReader:
    """Reads one attempt's stream. ``choices``: how many the request asked for (``n``, times the prompts of a completion)."""

    def __init__(self, dialect: Dialect, choices: int = 1, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._framer = Framer(event_bytes_max)
        self._answer = _ANSWERS[dialect](choices)
        self._plain = PlainDeltas(OPENINGS[dialect]) if dialect in OPENINGS and choices == 1 else None
        self._event_bytes_max = event_bytes_max
        # Invariant: content came, choice 0 alone is open, no event is half here: a chunk may be taken for a plain delta.
        # Plain deltas change none of it, so it is told where the ordinary way ends (``_batch``).
        self._is_between_deltas = False
        self._content = False
        self._tokens = 0
        self._usage_tokens: int | None = None
        # Invariant: the tokens counted when ``usage_tokens`` was told; what was counted since is not in it.
        self._tokens_at_usage = 0
        self._ending: Ending | None = None
        self._error: UpstreamError | None = None
        self._last = False
        # Invariant: the latest event was left out and ended in a CR, so that a LF which comes next is left out with it.
        self._line_feed_is_left_out = False
        # Invariant: nothing came after the answer's last event, which ended in a CR: a LF which comes next still belongs to it.
        self._line_feed_is_due = False

    @property
    def finished(self) -> bool:
        """Every choice has finished; from here on neither an error nor a cut is a failure."""
        return self._answer.finished

    @property
    def delivered_tokens(self) -> int:
        """Output tokens in everything that was handed on: as told by the stream, plus what was counted since (R4, R9)."""
        if self._usage_tokens is None:
            return self._tokens
        return self._usage_tokens + self._tokens - self._tokens_at_usage

    @property
    def token_source(self) -> str:
        """``usage`` where the stream itself told ``delivered_tokens``, ``counted`` where any part of it was counted here."""
        told = self._usage_tokens is not None and self._tokens == self._tokens_at_usage
        return "usage" if told else "counted"

    @property
    def next_sequence_number(self) -> int:
        """The number for a terminal event of the responses dialect; 0 in the others, which number nothing."""
        return self._answer.next_sequence_number

    def feed(self, chunk: bytes) -> Batch:
        """Read the next bytes. An event over the size limit ends the attempt with an ERROR of type ``event_too_large``."""
        if plain := self.plain_deltas(chunk):
            self.pass_plain(plain)
            return Batch(chunk, True, plain, self._usage_tokens)
        if self._ending is not None:
            return self._batch(self._line_feed_after_the_last(chunk))
        try:
            return self._read(self._framer.feed(chunk))
        except EventTooLarge as refusal:
            batch = self._read(refusal.events)
            if self._ending is not None:
                return batch
            self._fail(Reading(ending=Ending.ERROR, error=UpstreamError(str(refusal), type="event_too_large")))
            return self._batch(batch.forward, content=batch.content, tokens=batch.tokens)

    def plain_deltas(self, chunk: bytes) -> int:
        """How many plain deltas the next bytes are, 0 where they are anything else (plain_delta.py). Asking reads nothing."""
        if self._plain is None or not self._is_between_deltas or len(chunk) > self._event_bytes_max:
            return 0
        return self._plain.count(chunk)

    def pass_plain(self, deltas: int) -> None:
        """So many plain deltas were handed on, which is all that ``feed`` would have found out about them."""
        self._tokens += deltas

    def end(self) -> Batch:
        """The replica's stream ended, or fell silent after its finish. Without a finish ``ending`` stays None: it was cut."""
        if self._ending is None and self._answer.finished:
            self._ending = Ending.FINISHED
        return self._batch(b"")

    def _read(self, events: list[Event]) -> Batch:
        forward: list[bytes] = []
        content = False
        tokens = 0
        for event in events:
            reading = self._reading_of(event)
            ending = reading.ending
            if ending is not None and ending is not Ending.FINISHED:
                if not self._answer.finished:
                    self._fail(reading)
                    break
                self._line_feed_is_left_out = event.raw.endswith(b"\r")
                continue
            if self._line_feed_is_left_out:
                self._line_feed_is_left_out = False
                if event.raw == b"\n":
                    continue
            forward.append(event.raw)
            if reading is NOTHING:
                continue
            if reading.content:
                content = self._content = True
                tokens += reading.tokens
                self._tokens += reading.tokens
            if reading.usage_tokens is not None:
                self._usage_tokens = reading.usage_tokens
                self._tokens_at_usage = self._tokens
            if reading.last:
                self._ending = ending
                self._last = True
                self._line_feed_is_due = event.raw.endswith(b"\r") and event is events[-1] and not self._framer.pending
                break
        return self._batch(forward[0] if len(forward) == 1 else b"".join(forward), content=content, tokens=tokens)

    def _reading_of(self, event: Event) -> Reading:
        data = event.data
        if event.name == b"error":
            return _error_event(data)
        if not data:
            return NOTHING
        # What the OpenAI SDKs take for the end mark.
        if data.startswith(b"[DONE]"):
            ending = Ending.FINISHED if self._answer.finished else Ending.DONE_WITHOUT_FINISH
            return Reading(ending=ending, last=True)
        try:
            payload = decode_payload(data)
        except NotJson:
            return NOTHING if self._content or self._answer.finished else Reading(ending=Ending.MALFORMED)
        if not isinstance(payload, dict):
            return NOTHING
        error = find_error(payload)
        if error is not None:
            return Reading(ending=Ending.ERROR, error=error)
        return self._answer.read(payload)

    def _fail(self, reading: Reading) -> None:
        if self._answer.finished:
            self._ending = Ending.FINISHED
            return
        self._ending = reading.ending
        self._error = reading.error
        self._last = reading.last

    def _line_feed_after_the_last(self, chunk: bytes) -> bytes:
        if not self._line_feed_is_due or not chunk:
            return b""
        self._line_feed_is_due = False
        return chunk[:1] if chunk.startswith(b"\n") else b""

    def _batch(self, forward: bytes, *, content: bool = False, tokens: int = 0) -> Batch:
        self._is_between_deltas = (
            self._content and self._ending is None and self._answer.only_first_open and self._framer.is_between_events
        )
        return Batch(forward, content, tokens, self._usage_tokens, self._ending, self._error, self._last)


def _error_event(data: bytes | None) -> Reading:
    """An event named ``error`` is one whatever its data: the SDKs of Anthropic go by the name alone."""
    if not data:
        return Reading(ending=Ending.ERROR, error=UpstreamError("an error event without data"))
    try:
        payload = decode_payload(data)
    except NotJson:
        payload = data.decode("utf-8", "replace")
    return Reading(ending=Ending.ERROR, error=upstream_error(payload))
