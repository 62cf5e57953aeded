"""The client's side of one request: what was promised, what was written, and the one end.

Invariant: headers once, then bodies, then exactly one end of stream; nothing after it. Envoy cuts the stream on a second
head and lets the client hang without an end (FACTS C9, C11).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.processor import messages
from extproc.processor.protobuf import ProcessingResponse

Write = Callable[[ProcessingResponse | bytes], Awaitable[None]]
"""Sends a message, or the bytes of one."""
WriteNow = Callable[[bytes], bool]
"""Sends the bytes of a message without waiting, if that is possible; else nothing is sent and it says False."""
Headers = Sequence[tuple[str, str]]
Metadata = Mapping[str, str | float]


class Written(StrEnum):
    """How far the client's answer is."""

    NOTHING = "nothing"
    HEAD = "head"
    ENDED = "ended"


_HEAD: Final = Written.HEAD
"""Looked up once: Python 3.11 takes 90 ns for an enum's member, and this is asked for with every delta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """An answer's head, and the message that says it. Making one takes as long as ten deltas: it can be made before its time."""

    status: int
    headers: Headers
    message: bytes


def make_head(status: int, headers: Headers, metadata: Metadata | None = None) -> Head:
    """``metadata`` is what Envoy's access log tells of a stream whose end never comes."""
    message = messages.answer_headers(status, headers, dynamic_metadata=metadata)
    return Head(status=status, headers=tuple(headers), message=message.SerializeToString())


class ClientStream:
    """Writes one answer. Every method may raise what the transport raises when the client is gone."""

    def __init__(self, write: Write, write_now: WriteNow | None = None) -> None:
        self._write = write
        self._write_now = write_now
        self.written = Written.NOTHING

    async def begin(self, head: Head) -> None:
        """Write the answer's head."""
        assert self.written is Written.NOTHING, "a second head"
        self.written = Written.HEAD
        await self._write(head.message)

    async def write(self, data: bytes) -> None:
        """Write a piece of the body."""
        assert self.written is _HEAD, f"a body after {self.written}"
        await self._write(messages.encode_delta(data))

    @property
    def may_write_now(self) -> bool:
        """Whether ``write_now`` is ever of use."""
        return self._write_now is not None

    def write_now(self, data: bytes) -> bool:
        """``write`` without waiting, if that is possible; else nothing is written and it says False."""
        assert self.written is _HEAD, f"a body after {self.written}"
        return self._write_now is not None and self._write_now(messages.encode_delta(data))

    async def keep(self, last: bytes) -> None:
        """The answer is whole with ``last``, which only ``end`` will write: store it where its repeats are to get it."""

    async def end(self, data: bytes, metadata: Metadata) -> None:
        """Write the last piece (which may be empty) and end the answer. ``metadata`` goes to Envoy's access log."""
        assert self.written is Written.HEAD, f"an end after {self.written}"
        self.written = Written.ENDED
        await self._write(messages.answer_body(data, end_of_stream=True, dynamic_metadata=metadata))

    async def answer(self, status: int, headers: Headers, body: bytes, *, details: str, metadata: Metadata) -> None:
        """Answer at once, in one message, with nothing written before."""
        assert self.written is Written.NOTHING, f"an answer after {self.written}"
        self.written = Written.ENDED
        await self._write(messages.immediate(status, headers, body, details, metadata))
