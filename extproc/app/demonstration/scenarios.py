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

    ``whole_fault`` is its counterpart for an answer that is not streamed; that one is held whole, so it is always repeated.
    """

    name: str
    fault: Fault | None
    whole_fault: Fault | None
    received: Received
    attempts: int
    cut_after: bytes | None = None
    """The network to the first replica is cut behind the event that holds this; the replica itself is well."""


def _killed(where: Where) -> Fault:
    return _fault(where, What.KILL)


def _fault(where: Where, what: What) -> Fault:
    # By its header, so that health's own short answers are not what uses it up.
    return Fault(where=where, what=what, times=1, header=names.REQUEST_ID)


SCENARIOS: Final = (
    Scenario(name="none", fault=None, whole_fault=None, received=Received.COMPLETE, attempts=1),
    Scenario(
        name="killed before headers",
        fault=_killed(Where.BEFORE_HEADERS),
        whole_fault=_killed(Where.BEFORE_HEADERS),
        received=Received.COMPLETE,
        attempts=2,
    ),
    Scenario(
        name="killed after the 200 headers",
        fault=_killed(Where.AFTER_HEADERS),
        whole_fault=_killed(Where.IN_PREFILL),
        received=Received.COMPLETE,
        attempts=2,
    ),
    Scenario(
        name="killed after the role chunk",
        fault=_killed(Where.AFTER_ROLE),
        whole_fault=_killed(Where.AFTER_TOKEN_COMPUTED),
        received=Received.COMPLETE,
        attempts=2,
    ),
    Scenario(
        name="killed right after the first delta",
        fault=_killed(Where.AFTER_FIRST_DELTA),
        whole_fault=_killed(Where.MID_DECODE),
        received=Received.TERMINAL_EVENT,
        attempts=1,
    ),
    Scenario(
        name="killed mid-decode",
        fault=_killed(Where.MID_DECODE),
        whole_fault=_killed(Where.MID_BODY),
        received=Received.TERMINAL_EVENT,
        attempts=1,
    ),
    Scenario(
        name="in-band error + [DONE] before the first delta",
        fault=_fault(Where.AFTER_ROLE, What.ERROR_EVENT),
        whole_fault=_fault(Where.BEFORE_HEADERS, What.ERROR_EVENT),
        received=Received.COMPLETE,
        attempts=2,
    ),
    Scenario(
        name="in-band error + [DONE] after the first delta",
        fault=_fault(Where.MID_DECODE, What.ERROR_EVENT),
        whole_fault=_fault(Where.MID_DECODE, What.ERROR_EVENT),
        received=Received.TERMINAL_EVENT,
        attempts=1,
    ),
    Scenario(
        name="EOF without a finish",
        fault=_fault(Where.MID_DECODE, What.EOF),
        whole_fault=_fault(Where.MID_BODY, What.EOF),
        received=Received.TERMINAL_EVENT,
        attempts=1,
    ),
)
CUTS: Final = (
    Scenario(
        name="network cut before the first delta",
        fault=None,
        whole_fault=None,
        received=Received.COMPLETE,
        attempts=2,
        cut_after=b'"role"',
    ),
    Scenario(
        name="network cut after the first delta",
        fault=None,
        whole_fault=None,
        received=Received.TERMINAL_EVENT,
        attempts=1,
        cut_after=b'"content":"replica-a:0',
    ),
)
"""These need the lease guard: only a lease proves that a replica which can't be heard has stopped (R5, R6, R7)."""
