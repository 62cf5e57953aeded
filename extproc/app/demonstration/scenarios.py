"""The points where the decision changes, and what the client must get when a replica breaks there (R17)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.contract import headers as names
from extproc.sim.faults import Fault, What, Where


class Received(StrEnum):
    """What a client is left with. There is no third."""

    COMPLETE = "complete answer"
    TERMINAL_EVENT = "partial answer, terminal event"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One line of the demo: a fault on the first replica that is asked, and the ending it must lead to.

    ``whole_faults`` are its counterpart for an answer that is not streamed; that one is held whole, so it is always repeated.
    """

    name: str
    faults: tuple[Fault, ...]
    whole_faults: tuple[Fault, ...]
    received: Received
    attempts: int
    cut_after: bytes | None = None
    """The network to the first replica is cut behind the event that holds this; the replica itself is well."""


def _killed(where: Where) -> tuple[Fault, ...]:
    return _faults((where, What.KILL))


def _faults(*places: tuple[Where, What]) -> tuple[Fault, ...]:
    # By its header, so that health's own short answers are not what uses it up.
    return tuple(Fault(where=where, what=what, times=1, header=names.REQUEST_ID) for where, what in places)


SCENARIOS: Final = (
    Scenario(name="none", faults=(), whole_faults=(), received=Received.COMPLETE, attempts=1),
    Scenario(
        name="killed before headers",
        faults=_killed(Where.BEFORE_HEADERS),
        whole_faults=_killed(Where.BEFORE_HEADERS),
        received=Received.COMPLETE,
        attempts=2,
    ),
    Scenario(
        name="killed after the 200 headers",
        faults=_killed(Where.AFTER_HEADERS),
        whole_faults=_killed(Where.IN_PREFILL),
        received=Received.COMPLETE,
        attempts=2,
    ),
    Scenario(
        name="killed after the role chunk",
        faults=_killed(Where.AFTER_ROLE),
        whole_faults=_killed(Where.AFTER_TOKEN_COMPUTED),
        received=Received.COMPLETE,
        attempts=2,
    ),
    Scenario(
        name="killed right after the first delta",
        faults=_killed(Where.AFTER_FIRST_DELTA),
        whole_faults=_killed(Where.MID_DECODE),
        received=Received.TERMINAL_EVENT,
        attempts=1,
    ),
    Scenario(
        name="killed mid-decode",
        faults=_killed(Where.MID_DECODE),
        whole_faults=_killed(Where.MID_BODY),
        received=Received.TERMINAL_EVENT,
        attempts=1,
    ),
    Scenario(
        name="in-band error + [DONE] before the first delta",
        faults=_faults((Where.AFTER_ROLE, What.ERROR_EVENT)),
        whole_faults=_faults((Where.BEFORE_HEADERS, What.ERROR_EVENT)),
        received=Received.COMPLETE,
        attempts=2,
    ),
    Scenario(
        name="in-band error + [DONE] after the first delta",
        # Read together with the first delta, it would mean that nothing was delivered, and the request would rightly be repeated
        # (R17.2). So the replica goes on behind that delta only when the client has it.
        faults=_faults((Where.AFTER_FIRST_DELTA, What.HOLD), (Where.MID_DECODE, What.ERROR_EVENT)),
        whole_faults=_faults((Where.MID_DECODE, What.ERROR_EVENT)),
        received=Received.TERMINAL_EVENT,
        attempts=1,
    ),
    Scenario(
        name="EOF without a finish",
        faults=_faults((Where.MID_DECODE, What.EOF)),
        whole_faults=_faults((Where.MID_BODY, What.EOF)),
        received=Received.TERMINAL_EVENT,
        attempts=1,
    ),
)
CUTS: Final = (
    Scenario(
        name="network cut before the first delta",
        faults=(),
        whole_faults=(),
        received=Received.COMPLETE,
        attempts=2,
        cut_after=b'"role"',
    ),
    Scenario(
        name="network cut after the first delta",
        faults=(),
        whole_faults=(),
        received=Received.TERMINAL_EVENT,
        attempts=1,
        cut_after=b'"content":"replica-a:0',
    ),
)
"""These need the lease guard: only a lease proves that a replica which can't be heard has stopped (R5, R6, R7)."""
