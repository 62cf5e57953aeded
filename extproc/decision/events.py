"""What can happen to a request: facts in the past tense, fed into request.py's table one at a time."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.decision.causes import Failure
from extproc.decision.gates import GateFacts


class Deadline(StrEnum):
    """Which of a policy's deadlines passed."""

    FIRST_DELTA = "first_delta_ms"
    TOTAL = "total_ms"
    IDLE = "idle_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Admission looked for a replica for the first attempt."""

    candidate: bool
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDeltaArrived:
    """The first content-bearing event is in the processor's hands; nothing was written yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryRecorded:
    """The journal holds ``first_delta_sent``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryNotRecorded:
    """The journal could not hold ``first_delta_sent``; the boundary must not be crossed."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFinished:
    """The stream's finish was seen (or the whole answer was), and everything before it is in hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """The replica answered with a request error (4xx other than 429)."""

    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """The running attempt ended badly or became uncertain."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceSettled:
    """The fence was proved or given up; ``facts`` were gathered at that moment."""

    facts: GateFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLeft:
    """The ext_proc stream was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePassed:
    """One of the policy's deadlines."""

    deadline: Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimitReached:
    """The processor ends what is left."""


Event = (
    Placed
    | FirstDeltaArrived
    | BoundaryRecorded
    | BoundaryNotRecorded
    | AnswerFinished
    | RequestRefused
    | AttemptFailed
    | FenceSettled
    | ClientLeft
    | DeadlinePassed
    | DrainLimitReached
)
EVENT_TYPES: Final[tuple[type[Event], ...]] = (
    Placed,
    FirstDeltaArrived,
    BoundaryRecorded,
    BoundaryNotRecorded,
    AnswerFinished,
    RequestRefused,
    AttemptFailed,
    FenceSettled,
    ClientLeft,
    DeadlinePassed,
    DrainLimitReached,
)


def spoils_a_finish(event: Event) -> bool:
    """Whether an event ends a request badly. After the finish it only ends the wait for what may follow a finish: a client that
    has a whole answer is never told that it is partial."""
    match event:
        case AttemptFailed() | DrainLimitReached():
            return True
        case DeadlinePassed():
            return event.deadline is not Deadline.FIRST_DELTA
        case _:
            return False
