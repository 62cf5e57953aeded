"""What a client may be left with at each point. Narrow where the moment is certain, and saying why where it is not."""

from enum import StrEnum, auto
from typing import Final

from extproc.faults.points import Kind, Point, Position, Scope
from extproc.sim.faults import Where


class Ending(StrEnum):
    """How an exchange ended for its client."""

    COMPLETE = auto()
    """One whole answer."""
    INTERRUPTED = auto()
    """Part of an answer and one terminal event."""
    REFUSED = auto()
    """A JSON error of the gateway's, with an honest status."""
    PASSED = auto()
    """The replica's own request error, unchanged."""
    CUT = auto()
    """The connection broke under it."""
    LEFT = auto()
    """The client left by itself."""
    UNREADABLE = auto()
    """Ended properly, and is none of these. Never allowed."""


_ANY_PROPER: Final = frozenset({Ending.COMPLETE, Ending.INTERRUPTED})


def expected_endings(point: Point) -> frozenset[Ending]:
    """The endings that are right for a point."""
    match point.kind:
        case Kind.NOTHING | Kind.SLOW:
            return frozenset({Ending.COMPLETE})
        case Kind.CLIENT_CLOSED | Kind.CLIENT_RESET:
            # A finished answer may end by itself before its client has left.
            return frozenset({Ending.LEFT, Ending.COMPLETE} if point.position is Position.AFTER_FINISH else {Ending.LEFT})
        case Kind.HTTP_400:
            return frozenset({Ending.PASSED})
        case Kind.PROCESSOR_KILLED | Kind.ENVOY_KILLED | Kind.PROCESSOR_DRAINED | Kind.JOURNAL_LOST:
            return _of_gateway(point)
        case Kind.TOOL_KILLED:
            # The attempt whose tool call has no known outcome may be repeated only because the ledger stands before the tool.
            return frozenset({Ending.COMPLETE})
        case Kind.FENCE_WAIT_CLIENT_CLOSED if point.position is Position.BEFORE_BOUNDARY:
            return frozenset({Ending.LEFT})
    return _of_broken_attempt(point)


def _of_broken_attempt(point: Point) -> frozenset[Ending]:
    undelivered = Ending.COMPLETE if point.attempt == 1 else Ending.REFUSED
    if point.position is Position.BEFORE_BOUNDARY:
        return frozenset({undelivered})
    certain = Ending.COMPLETE if point.position is Position.AFTER_FINISH else Ending.INTERRUPTED
    if point.row.scope is not Scope.REQUEST:
        return frozenset({certain})
    # What came before the break may not have been read by then: it is still in the gateway's hands, or has died with Envoy's
    # connection to the replica. So fewer deltas may be delivered than were sent, down to none (R17.2).
    return frozenset({certain, Ending.INTERRUPTED, undelivered})


def _of_gateway(point: Point) -> frozenset[Ending]:
    match point.kind, point.position:
        case Kind.JOURNAL_LOST, Position.BEFORE_BOUNDARY:
            return frozenset({Ending.REFUSED})
        case Kind.JOURNAL_LOST, _:
            return frozenset({Ending.COMPLETE})
        case Kind.PROCESSOR_DRAINED, Position.BEFORE_BOUNDARY:
            return frozenset({Ending.REFUSED})
        case Kind.PROCESSOR_DRAINED, _:
            return _ANY_PROPER if point.position is Position.AFTER_FINISH else frozenset({Ending.INTERRUPTED})
        case Kind.PROCESSOR_KILLED, Position.BEFORE_BOUNDARY:
            return frozenset({Ending.REFUSED, Ending.CUT})
        case _, _ if point.place.where in (Where.AFTER_FINISH, Where.AFTER_DONE):
            return frozenset({Ending.CUT, Ending.COMPLETE})
        case _:
            return frozenset({Ending.CUT})
