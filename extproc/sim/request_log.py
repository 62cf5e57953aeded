"""What was asked of this replica, what it really published, and when: evidence for the fault suite (R18).

Times are CLOCK_MONOTONIC seconds, which all processes of one Linux machine share.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from extproc.contract import headers
from extproc.sim.dialects.writer import Event, EventKind
from extproc.sim.reading import Api

_KEPT: Final = frozenset(
    {"x-request-id", "idempotency-key", "user-agent", "traceparent", "x-envoy-attempt-count", headers.DESTINATION}
)


class Ended(StrEnum):
    """How a request ended, as the replica saw it."""

    FINISHED = "finished"
    """Its last byte was handed to the connection."""
    CLIENT_GONE = "client_gone"
    CANCELLED = "cancelled"
    """The app's task was cancelled from outside (the lease guard, a shutdown)."""
    REFUSED = "refused"
    """Answered with an error status."""
    FAILED = "failed"
    """Ended with an in-band error."""
    ABORTED = "aborted"
    """Ended with the finish reason ``abort``."""
    FAULT = "fault"
    """A fault ended it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a body that the connection took."""

    at: float
    kind: EventKind
    size: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of the tool URL; ``status`` 0: no answer came. ``replayed``: the gateway's ledger answered, not the tool."""

    at: float
    call_id: str
    status: int
    answer: str = ""
    replayed: bool = False


@dataclass(slots=True, kw_only=True)
class Record:
    """One request. Only the request's own task writes here."""

    number: int
    api: Api
    headers: dict[str, str]
    stream: bool = False
    received_at: float = field(default_factory=time.monotonic)
    headers_at: float | None = None
    slot_taken_at: float | None = None
    first_token_at: float | None = None
    slot_freed_at: float | None = None
    ended_at: float | None = None
    ended: Ended | None = None
    status: int | None = None
    fault: str | None = None
    tokens_computed: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)

    def published(self, event: Event) -> None:
        self.chunks.append(Chunk(time.monotonic(), event.kind, len(event.data), event.text))

    def computed(self, tokens: int) -> None:
        self.tokens_computed += tokens
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()

    def end(self, ended: Ended) -> None:
        """The first word on how it ended holds."""
        if self.ended is None:
            self.ended = ended
            self.ended_at = time.monotonic()

    def listing(self) -> dict[str, Any]:
        """The JSON object of /sim/log: the fields, the two ids, and ``bytes_published``."""
        listed = {name: getattr(self, name) for name in self.__slots__ if name not in ("chunks", "tool_calls")}
        return {
            "request_id": self.headers.get(headers.REQUEST_ID),
            "attempt_id": self.headers.get(headers.ATTEMPT_ID),
            **listed,
            "bytes_published": sum(chunk.size for chunk in self.chunks),
            "chunks": [{"at": chunk.at, "kind": chunk.kind, "size": chunk.size, "text": chunk.text} for chunk in self.chunks],
            "tool_calls": [asdict(call) for call in self.tool_calls],
        }


class RequestLog:
    """The newest requests, oldest first."""

    def __init__(self, limit: int) -> None:
        self._records: deque[Record] = deque(maxlen=limit)
        self._count = 0

    def open(self, api: Api, request_headers: Mapping[str, str]) -> Record:
        kept = {name: value for name, value in request_headers.items() if _is_kept(name)}
        record = Record(number=self._count, api=api, headers=kept)
        self._count += 1
        self._records.append(record)
        return record

    def clear(self) -> None:
        self._records.clear()

    def listing(self) -> Iterable[dict[str, Any]]:
        return [record.listing() for record in self._records]


def _is_kept(name: str) -> bool:
    return name in _KEPT or (name.startswith(headers.PREFIX) and name != headers.TOKEN)
