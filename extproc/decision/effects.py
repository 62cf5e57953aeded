"""What a decision asks the shell to do: imperatives, carried out in the order in which a transition lists them."""

from dataclasses import dataclass
from enum import StrEnum

from extproc.contract.errors import ErrorCode
from extproc.decision.causes import Failure, Fencing
from extproc.decision.gates import Gate


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Take a repeat from the budget (numbers above 1), grant a lease and send the request."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtReplica:
    """Place other attempts elsewhere, where that can be done, until health has looked at the running attempt's replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAttempt:
    """Prove that the attempt can't publish any more, then feed ``FenceSettled``."""

    fencing: Fencing
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAttempt:
    """Close the attempt's connection and send the cancel call; nobody waits for the acknowledgement."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBoundary:
    """Write ``first_delta_sent`` to the journal, then feed ``BoundaryRecorded`` or ``BoundaryNotRecorded``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRefusal:
    """Write to the journal which gate refused the repeat, and why.

    ``failure`` is what would have been repeated, and ``attempts`` how many had been started.
    """

    gate: Gate
    detail: str
    failure: Failure
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOutcome:
    """Write the outcome to the journal."""

    outcome: Outcome
    reason: str
    error_code: ErrorCode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverHeld:
    """Write headers and everything held so far downstream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishStream:
    """Write what is left of the finished answer and end the client's stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAnswer:
    """Hand the replica's own answer (a request error) to the client unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerError:
    """Nothing was delivered: answer with an honest status and a JSON error (R9, ``partial_output: false``)."""

    code: ErrorCode
    detail: str
    reason: str
    status: int | None = None
    """Replaces the code's own status where a replica's refusal is handed on."""
    retry_after_s: int | None = None
    upstream_error: dict[str, str | int | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptStream:
    """Something was delivered: write the terminal event and end the stream (R9, ``partial_output: true``)."""

    detail: str
    reason: str
    upstream_error: dict[str, str | int | None] | None = None


Effect = (
    StartAttempt
    | DoubtReplica
    | FenceAttempt
    | CancelAttempt
    | RecordBoundary
    | RecordRefusal
    | RecordOutcome
    | DeliverHeld
    | FinishStream
    | PassAnswer
    | AnswerError
    | InterruptStream
)
