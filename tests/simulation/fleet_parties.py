"""Who takes part in a fleet besides its replicas: gateways, attempts as all see them, clients with what their sockets have."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from extproc.decision.lease import FenceProof, Lease, Stamp
from extproc.faults.invariants import Invariant
from extproc.processor.pools import Pool
from extproc.replicas.roster import Replica, Roster
from tests.simulation.fleet_replicas import Site
from tests.simulation.world import Clock

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet
    from tests.simulation.fleet_requests import FleetRequest

OVER_SLACK_MS = 2.0
"""For whole milliseconds on two clocks."""


class Gateway:
    """One processor process."""

    def __init__(self, clock: Clock, replicas: list[Replica]) -> None:
        self.clock = clock
        self.is_up = True
        self.is_draining = False
        self.roster = Roster(replicas)
        self.pool = Pool()
        self.stamps: dict[int, Stamp] = {}
        self.firsts = 0
        self.repeats = 0
        """Attempts begun, by whether they were a request's first; the budget is checked against them."""
        self.requests: list[FleetRequest] = []

    def crash(self) -> None:
        """SIGKILL: its clients' connections are cut, and nobody fences its attempts."""
        self.is_up = False
        for client in (request.client for request in self.requests):
            if client.over_at_ms is None:
                client.is_cut = True
                client.over()


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt, as everybody who must not disagree about it sees it."""

    number: int
    request: "FleetRequest"
    site: Site
    began_ms: float
    lease: Lease | None = None
    heard_at_ms: int = 0
    is_pursued: bool = False
    pursued_since_ms: int = 0
    is_broken: bool = False
    proof: FenceProof | None = None
    pieces: int = 0
    arrives_at_ms: float = 0.0


@dataclass(slots=True)
class Client:
    """What its socket has: pieces by attempt, and ends."""

    fleet: "Fleet"
    request: "FleetRequest"
    pieces: list[tuple[int, int]] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    over_at_ms: float | None = None
    has_left: bool = False
    is_cut: bool = False

    def receive(self, attempt: int, number: int) -> None:
        if self.ends:
            raise self.fleet.violated(Invariant.ONE_ENDING, f"output after {self.ends}")
        if self.pieces and self.pieces[-1][0] != attempt:
            raise self.fleet.violated(Invariant.ONE_VOICE, f"output of attempts {self.pieces[-1][0]} and {attempt}")
        if self.pieces and self.pieces[-1][1] + 1 != number:
            raise self.fleet.violated(Invariant.ONLY_WHAT_WAS_PUBLISHED, f"piece {number} after {self.pieces[-1][1]}")
        self.pieces.append((attempt, number))

    def over(self) -> None:
        """From here on nobody wants anything."""
        self.over_at_ms = self.fleet.agenda.now_ms
        self.fleet.agenda.after(self.fleet.terms.longest_wait_ms + OVER_SLACK_MS, self.fleet.check_stopped, self.request)

    def end(self, how: str, *, partial: bool) -> None:
        self.ends.append(how)
        self.over()
        if len(self.ends) > 1:
            raise self.fleet.violated(Invariant.ONE_ENDING, f"ended {self.ends}")
        if partial != bool(self.pieces):
            raise self.fleet.violated(Invariant.ONE_ENDING, f"ended {how} with {len(self.pieces)} pieces")
