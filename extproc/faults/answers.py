"""What a client's bytes say. A reader of its own on purpose: the gateway's framer would find itself right.

The look-alike's answers count: ``name:0 name:1 ...``. So their text says by itself which replica it is from, and whether anything
is missing, doubled or joined.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from extproc.contract import headers as names
from extproc.faults.apis import delta_text, whole_text
from extproc.faults.evidence import ClientEvidence
from extproc.faults.expectations import Ending
from extproc.sse.dialects import Dialect

LAST_MARKS: Final = {
    Dialect.CHAT: "[DONE]",
    Dialect.COMPLETIONS: "[DONE]",
    Dialect.RESPONSES: "response.completed",
    Dialect.MESSAGES: "message_stop",
}


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """One whole event; ``data`` is JSON, the string ``[DONE]``, or None where it can't be read."""

    at: float
    data: Any


@dataclass(slots=True)
class _Body:
    """A body in the making: its bytes, and when each stretch of them had come."""

    data: bytearray = field(default_factory=bytearray)
    marks: list[tuple[int, float]] = field(default_factory=list)
    is_whole: bool = False

    def add(self, data: bytes, at: float) -> None:
        self.data += data
        self.marks.append((len(self.data), at))

    def time_of(self, length: int) -> float:
        """When the first ``length`` bytes had come."""
        return next(at for reached, at in self.marks if reached >= length)


@dataclass(frozen=True, eq=False)
class Answer:
    """One exchange, read."""

    dialect: Dialect
    stream: bool
    client: ClientEvidence

    @cached_property
    def _head(self) -> tuple[int | None, dict[str, str], int]:
        received = b"".join(piece.data for piece in self.client.pieces)
        head, blank, _ = received.partition(b"\r\n\r\n")
        if not blank:
            return None, {}, 0
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split(" ")[1]), fields, len(head) + 4

    @property
    def status(self) -> int | None:
        """None where no head came."""
        return self._head[0]

    @property
    def headers(self) -> dict[str, str]:
        return self._head[1]

    @property
    def request_id(self) -> str:
        return self.headers.get(names.REQUEST_ID, "")

    @property
    def attempts(self) -> int:
        return int(self.headers.get(names.ATTEMPTS, "0"))

    @cached_property
    def _body(self) -> _Body:
        status, fields, start = self._head
        body = _Body()
        if status is None:
            return body
        position = 0
        raw = bytearray()
        length = int(fields["content-length"]) if "content-length" in fields else None
        unread = 0
        for piece in self.client.pieces:
            raw += piece.data[max(0, start - position) :]
            position += len(piece.data)
            unread = _take_chunks(raw, unread, body, piece.at) if length is None else _take(raw, unread, body, piece.at, length)
        return body

    @property
    def body(self) -> bytes:
        return bytes(self._body.data)

    @property
    def has_proper_end(self) -> bool:
        """Whether HTTP says that the body is whole."""
        return self._body.is_whole

    @cached_property
    def events(self) -> tuple[TimedEvent, ...]:
        """The stream's whole events in order; a cut one at the end is none."""
        return tuple(_read_events(self._body)) if self.is_event_stream else ()

    @property
    def is_event_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @cached_property
    def document(self) -> Any:  # noqa: ANN401  (JSON)
        """The JSON body of what is no event stream; None where there is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @cached_property
    def contents(self) -> tuple[tuple[float, str], ...]:
        """Each piece of the answer's text, with the time at which its event was whole."""
        if self.is_event_stream:
            texts = ((event.at, delta_text(self.dialect, event.data)) for event in self.events if isinstance(event.data, dict))
            return tuple((at, text) for at, text in texts if text)
        if self.status != 200 or not self.has_proper_end or not isinstance(self.document, dict):
            return ()
        text = whole_text(self.dialect, self.document)
        return ((self._body.time_of(len(self.body)), text),) if text else ()

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.contents)

    @property
    def errors(self) -> tuple[dict[str, Any], ...]:
        """The error objects inside the stream."""
        found = (_error_of(self.dialect, event.data) for event in self.events)
        return tuple(error for error in found if error is not None)

    @property
    def ends_with_error(self) -> bool:
        return bool(self.events) and _error_of(self.dialect, self.events[-1].data) is not None

    @cached_property
    def is_finished(self) -> bool:
        """Whether every choice has its finish."""
        if not self.is_event_stream:
            return self.status == 200 and self.has_proper_end and isinstance(self.document, dict) and "error" not in self.document
        return any(_finishes(event.data) for event in self.events)

    @property
    def told_usages(self) -> frozenset[int]:
        """The numbers of output tokens that the stream itself has told the client."""
        documents = [event.data for event in self.events if isinstance(event.data, dict)]
        usages = [document.get("usage") or (document.get("response") or {}).get("usage") or {} for document in documents]
        return frozenset(usage[name] for usage in usages for name in ("completion_tokens", "output_tokens") if name in usage)

    @property
    def last_mark(self) -> str | None:
        """The API's own end mark, where the stream's last event is one."""
        last = self.events[-1].data if self.events else None
        mark = last if isinstance(last, str) else last.get("type") if isinstance(last, dict) else None
        return mark if mark == LAST_MARKS[self.dialect] else None

    @property
    def refusal(self) -> dict[str, Any] | None:
        """The gateway's own error where it answered with one."""
        error = self.document.get("error") if isinstance(self.document, dict) else None
        return error if isinstance(error, dict) and "partial_output" in error else None

    @cached_property
    def ending(self) -> Ending:
        """How it ended, from these bytes alone."""
        if self.client.left_at is not None:
            return Ending.LEFT
        if self.status is None or not self.has_proper_end:
            return Ending.CUT
        if self.status >= 400:
            return Ending.PASSED if self.refusal is None else Ending.REFUSED
        if self.is_event_stream and self.errors:
            return Ending.INTERRUPTED if len(self.errors) == 1 and self.ends_with_error else Ending.UNREADABLE
        return Ending.COMPLETE if self.is_finished else Ending.UNREADABLE


def voices(text: str) -> tuple[str, ...]:
    """The replicas whose words a text is made of, in order of their first word."""
    return tuple(dict.fromkeys(word.partition(":")[0] for word in text.split()))


def is_counted(text: str) -> bool:
    """Whether its words count from 0 without a gap or a repeat."""
    return [word.partition(":")[2] for word in text.split()] == [str(number) for number in range(len(text.split()))]


def _take_chunks(raw: bytearray, position: int, body: _Body, at: float) -> int:
    """Decode as many chunks as are there (RFC 9112, 7.1); how far it got."""
    while not body.is_whole and (line_end := raw.find(b"\r\n", position)) >= 0:
        size = int(bytes(raw[position:line_end]).split(b";")[0], 16)
        after = line_end + 2 + size + 2
        if after > len(raw):
            break
        if size:
            body.add(bytes(raw[line_end + 2 : after - 2]), at)
        body.is_whole = size == 0
        position = after
    return position


def _take(raw: bytearray, position: int, body: _Body, at: float, length: int) -> int:
    fresh = bytes(raw[position:length])
    if fresh:
        body.add(fresh, at)
    body.is_whole = len(body.data) == length
    return position + len(fresh)


def _read_events(body: _Body) -> Iterator[TimedEvent]:
    position = 0
    while (end := body.data.find(b"\n\n", position)) >= 0:
        block = bytes(body.data[position:end])
        position = end + 2
        lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
        if lines:
            yield TimedEvent(body.time_of(position), _decode(b"\n".join(lines)))


def _decode(data: bytes) -> Any:  # noqa: ANN401  (JSON)
    if data == b"[DONE]":
        return "[DONE]"
    try:
        return json.loads(data)
    except ValueError:
        return None


def _error_of(dialect: Dialect, event: Any) -> dict[str, Any] | None:  # noqa: ANN401  (JSON)
    if not isinstance(event, dict) or not isinstance(event.get("error"), dict):
        return None
    typed = dialect in (Dialect.RESPONSES, Dialect.MESSAGES)
    return event["error"] if not typed or event.get("type") == "error" else None


def _finishes(event: Any) -> bool:  # noqa: ANN401  (JSON)
    if not isinstance(event, dict):
        return False
    if any(choice.get("finish_reason") for choice in event.get("choices") or ()):
        return True
    match event.get("type"):
        case "response.completed":
            return True
        case "message_delta":
            return bool(event["delta"].get("stop_reason"))
    return False
