"""Everything that was seen of one request from outside the processor (R18). Facts only; invariants.py judges them.

Times are CLOCK_MONOTONIC seconds of the machine that the suite runs on, but for ``JournalEntry.at_ms``, which is the processor's
wall clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Final

from extproc.sse.dialects import Dialect

CONTENT_KINDS: Final = frozenset({"delta", "body"})
"""Chunks of a replica's log that hold the answer's text (extproc.sim.dialects.writer.EventKind)."""


class Peer(StrEnum):
    """How the gateway ended the client's connection."""

    FIN = auto()
    RESET = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes that one read returned."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEvidence:
    """The client's socket. ``left_at``: the client closed it before it was over; ``closed_at``: the gateway did."""

    sent_at: float
    pieces: tuple[Piece, ...]
    left_at: float | None
    closed_at: float | None
    peer: Peer | None
    wall_offset_s: float
    """Add it to a time of the socket's to get the wall clock."""

    @property
    def over_at(self) -> float | None:
        return self.left_at if self.left_at is not None else self.closed_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One chunk that a replica says it has handed to its connection."""

    at: float
    kind: str
    size: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEvidence:
    """One attempt as its replica logged it, and what the suite did to that replica's process meanwhile."""

    replica: str
    request_id: str | None
    attempt_id: str | None
    received_at: float
    slot_taken_at: float | None
    slot_freed_at: float | None
    ended_at: float | None
    ended: str | None
    status: int | None
    fault: str | None
    published: tuple[Published, ...]
    tool_calls: int
    first_lease_until: float | None = None
    """Where its first grant ended; heartbeats renewed it from then on."""
    process_ended_at: float | None = None
    """When the suite killed its process: the log is from just before."""
    stopped_from: float | None = None
    """SIGSTOP and SIGCONT of its process; while it is stopped it publishes nothing, whatever it holds."""
    stopped_until: float | None = None

    @property
    def over_at(self) -> float | None:
        """When it had surely stopped by itself or with its process; None where it may be running on."""
        ends = [at for at in (self.ended_at, self.process_ended_at) if at is not None]
        return min(ends) if ends else None

    @property
    def quiet_at(self) -> float | None:
        """From when on it could publish nothing, as far as that can be said of a process that was stopped."""
        moments = [at for at in (self.over_at, self.stopped_from) if at is not None]
        return min(moments) if moments else None

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.published)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLine:
    """One line of Envoy's access log."""

    listener: str
    request_id: str | None
    attempt_id: str | None
    status: int
    flags: str | None
    details: str | None
    outcome: str | None
    attempts: int | None
    delivered_output_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One event of the journal."""

    kind: str
    at_ms: int
    attempt_id: str | None
    replica: str | None
    detail: Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAction:
    """One action that the tool says it has carried out."""

    at: float
    request_id: str
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the route promises, and how patient the judge is on a busy machine."""

    attempts_max: int
    over_within_s: float
    """From the moment at which nobody wants an attempt any more to its end at the replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Which evidence could be gathered at all; what could not is not judged, and the report says so."""

    replicas: bool = True
    access_log: bool = True
    journal: bool = True
    tool: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All of it, for one request."""

    key: str
    """The fault point's."""
    name: str
    """The x-request-id that joins the sources; one point may be tried several times."""
    api: Dialect
    stream: bool
    tokens: int
    """Text tokens of a whole answer."""
    client: ClientEvidence
    attempts: tuple[AttemptEvidence, ...]
    access: tuple[AccessLine, ...]
    journal: tuple[JournalEntry, ...]
    tool: tuple[ToolAction, ...]
    bounds: Bounds
    sources: Sources = field(default_factory=Sources)
    gateway_broken: bool = False
    """Whether the suite killed Envoy or the processor under this request: then the connection need not hold."""
    expects_fault: bool = True
    """Whether a fault was armed for it, which must have struck."""
