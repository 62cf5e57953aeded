"""Server-sent events out of a byte stream, without losing, adding or changing a byte (WHATWG HTML, section 9.2.6).

1. A line ends with LF, CR or CRLF, mixed or not, and nowhere else: U+2028, U+0085 and form feed are text (CASES SSE-01, SSE-06).
2. An event ends with its blank line, at once. Where that line ends with the last CR of a chunk, the event is handed on without
   waiting; if the next chunk begins with LF, that LF is no new line: it comes as a blank of its own (CASES SSE-02).
3. Bytes are never decoded, so a character cut in two by a chunk border is no special case (CASES SSE-07).
4. The joined ``raw`` of all events is the input up to the end of the last whole event.
"""

import re
from dataclasses import dataclass
from typing import Final

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

EVENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest event by default. Far above what a token needs: a chunk with 20 alternatives a token is tens of KiB, and Go clients'
scanners stop at 1 MiB; audio and whole answers sent as one event reach megabytes (CASES SSE-08)."""

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    """One whole event, or what may stand between two: a blank line, or the LF of a blank line that a chunk border tore.

    ``raw``: all its bytes, with its blank line.
    ``name``: the value of ``event:``, empty where there is none.
    ``data``: its data lines joined by LF, each without one leading space; None where it has no data line.
    """

    raw: bytes
    name: bytes
    data: bytes | None


class EventTooLarge(Exception):  # noqa: N818  (a refusal, not a mistake)
    """An event is longer than the limit; the framer that raised this is spent. ``events``: what was whole before it."""

    def __init__(self, event_bytes_max: int, events: list[Event]) -> None:
        super().__init__(f"an event is longer than {event_bytes_max} bytes")
        self.event_bytes_max = event_bytes_max
        self.events = events


class Framer:
    """Cuts chunks of any size into events. Each byte is looked at once, however many chunks an event takes."""

    __slots__ = ("_at_offset_zero", "_event_bytes_max", "_held", "_line_is_empty", "_torn")

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        # Invariant: what came since the last whole event.
        self._held = bytearray()
        self._line_is_empty = True
        # Invariant: the last byte fed was a CR, so that a LF that comes next ends no line.
        self._torn = False
        self._at_offset_zero = True

    @property
    def pending(self) -> int:
        """Bytes held of an unfinished event."""
        return len(self._held)

    @property
    def is_between_events(self) -> bool:
        """Nothing is held and no line end is torn: the next chunk begins an event."""
        return not (self._held or self._torn or self._at_offset_zero)

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completes, in order. Raises EventTooLarge."""
        if self._held or self._torn or b"\r" in chunk:
            return self._feed_any(chunk)
        return self._feed_plain(chunk)

    def _feed_plain(self, chunk: bytes) -> list[Event]:
        """The common case: line ends are LF, and nothing is held."""
        events: list[Event] = []
        start = 0
        while start < len(chunk):
            if chunk.startswith(b"\n", start):
                end = start + 1
            elif (blank_line := chunk.find(b"\n\n", start)) >= 0:
                end = blank_line + 2
            else:
                self._hold(chunk[start:], events)
                self._line_is_empty = chunk.endswith(b"\n")
                break
            events.append(self._event(chunk[start:end], events))
            start = end
        return events

    def _feed_any(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        start = line = 0
        if self._torn and chunk.startswith(b"\n"):
            line = 1
            if not self._held:
                events.append(Event(b"\n", b"", None))
                start = 1
        for line_end in _LINE_END.finditer(chunk, line):
            if self._line_is_empty and line_end.start() == line:
                raw = bytes(self._held) + chunk[start : line_end.end()]
                self._held.clear()
                events.append(self._event(raw, events))
                start = line_end.end()
            line = line_end.end()
            self._line_is_empty = True
        if line < len(chunk):
            self._line_is_empty = False
        self._torn = chunk.endswith(b"\r") or (self._torn and not chunk)
        self._hold(chunk[start:], events)
        return events

    def _hold(self, rest: bytes, events: list[Event]) -> None:
        self._held += rest
        if len(self._held) > self._event_bytes_max:
            raise EventTooLarge(self._event_bytes_max, events)

    def _event(self, raw: bytes, events: list[Event]) -> Event:
        if len(raw) > self._event_bytes_max:
            raise EventTooLarge(self._event_bytes_max, events)
        if self._at_offset_zero:
            self._at_offset_zero = False
            return _decode_event(raw, raw.removeprefix(BYTE_ORDER_MARK))
        # The shape of nearly every event of the two OpenAI completion APIs: one data line.
        if raw.startswith(b"data: ") and raw.find(b"\n", 6) == len(raw) - 2 and b"\r" not in raw:
            return Event(raw, b"", raw[6:-2])
        return _decode_event(raw, raw)


def _decode_event(raw: bytes, text: bytes) -> Event:
    """``text`` is ``raw`` without a byte-order mark."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    name = b""
    data: list[bytes] = []
    for line in text.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return Event(raw, name, b"\n".join(data) if data else None)
