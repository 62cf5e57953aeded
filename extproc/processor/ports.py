"""What a session needs of the world besides Envoy and the egress: small interfaces, so that tests can stand in."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from extproc.decision.causes import Failure, Fencing
from extproc.decision.policy import LeasePolicy
from extproc.journal.interface import Journal
from extproc.journal.texts import NoTexts, Texts
from extproc.processor.decision_log import NO_DECISION_LOG, DecisionLog
from extproc.processor.gathering import Gather, at_once
from extproc.processor.keyed import Keying
from extproc.processor.observing import UNOBSERVED, Observer
from extproc.processor.pools import Pools
from extproc.processor.protobuf import ProcessingRequest, ProcessingResponse
from extproc.replicas.attempt_client import AttemptClient
from extproc.replicas.roster import Replica, Roster


class Stream(Protocol):
    """One ext_proc stream, whatever transport carries it. A client that leaves cancels the task that serves it."""

    @property
    def initial_metadata(self) -> Sequence[tuple[str, str]]:
        """gRPC metadata of the call: lower-case names, text values."""

    async def read(self) -> ProcessingRequest | None:
        """Envoy's next message; None at the stream's end."""

    async def write(self, message: ProcessingResponse | bytes) -> None:
        """Send a message, or the bytes of one."""

    def write_now(self, data: bytes) -> bool:
        """Send the bytes of a message if that needs no waiting; else send nothing and say False."""

    async def abort(self, detail: str) -> NoReturn:
        """End the stream with an error status, which makes Envoy cut what the client was receiving."""


class Fence(Protocol):
    """Publishing rights of attempts: granted, checked, taken back (R6, R7)."""

    async def grant(
        self, attempt_id: str, replica: Replica, on_lost: Callable[[Failure], None], policy: LeasePolicy
    ) -> Sequence[tuple[str, str]]:
        """The headers by which the replica knows the attempt's lease. ``on_lost`` hears when the attempt became uncertain.

        Raises OSError where no lease can be granted; the attempt may not start then.
        """

    def may_publish(self, attempt_id: str) -> bool:
        """Whether the processor may still forward what the attempt produces."""

    async def fence(self, attempt_id: str, replica: Replica, fencing: Fencing, failure: Failure) -> str | None:
        """Take the attempt's right away; the proof's name, or None where it could not be proved in time."""

    def cancel(self, attempt_id: str, replica: Replica) -> None:
        """Ask the replica to stop; nobody waits."""

    def release(self, attempt_id: str) -> None:
        """The attempt ended properly; its lease needs no renewal."""


ToolCallRecorded = Callable[[str], Awaitable[bool]]
"""Request id → whether any tool call was recorded for it (R12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that sessions of one processor share."""

    roster: Roster
    attempts: AttemptClient
    fence: Fence
    journal: Journal
    pools: Pools
    tool_call_recorded: ToolCallRecorded
    now_ms: Callable[[], int]
    """Monotonic milliseconds."""
    wall_ms: Callable[[], int]
    """Milliseconds since the epoch, for records that people read."""
    new_id: Callable[[], str]
    """A ULID."""
    held_bytes_max: int
    """What one request may hold of an answer that is not delivered yet."""
    is_draining: Callable[[], bool]
    keying: Keying
    gather: Gather = at_once
    texts: Texts = field(default_factory=NoTexts)
    observer: Observer = UNOBSERVED
    decisions: DecisionLog = NO_DECISION_LOG
