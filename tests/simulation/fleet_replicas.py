"""One replica of a fleet with its guard, and the way to it. The guard's rules are those of the lease simulation (world.py)."""

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from extproc.contract.guard import GuardRefusal, StopState
from extproc.decision.causes import Cause
from extproc.decision.lease import Lease
from tests.simulation.world import BEAT_MS, TTL_MS, Clock, Running, Worker

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

SLOTS = 6


class Piece(Enum):
    """What an attempt publishes, one at a time."""

    ROLE = auto()
    """No content: nothing of it is delivery (R2)."""
    DELTA = auto()
    FINISH = auto()
    ERROR = auto()
    """In-band, as vLLM's."""


class Way:
    """The network between everybody and one replica, and what its worker knows of the world.

    Heartbeats and cancels are lost, doubled and late at random. A connection's own bytes are not: TCP keeps them in order, and
    while the way is cut it keeps them back; a connection that could not be opened then is tried again some time later.
    """

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet = fleet
        self.rules = fleet.rules.lease
        self.random = fleet.random
        self.is_cut = False
        self.kept_back: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.unopened: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    @property
    def now(self) -> float:
        return self.fleet.agenda.now_ms

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        self.fleet.agenda.after(delay, action, *arguments)

    def send(self, deliver: Callable[..., None], *arguments: Any) -> None:
        fate = self.random.random()
        if self.is_cut or fate < self.fleet.loss:
            return
        for _ in range(2 if fate > 1 - self.fleet.duplication else 1):
            self.after(self.fleet.delay(), deliver, *arguments)

    def stream(self, deliver: Callable[..., None], *arguments: Any) -> None:
        if self.is_cut:
            self.kept_back.append((deliver, arguments))
        else:
            self.after(self.random.random(), deliver, *arguments)

    def open(self, deliver: Callable[..., None], *arguments: Any) -> None:
        if self.is_cut:
            self.unopened.append((deliver, arguments))
        else:
            self.after(self.random.random(), deliver, *arguments)

    def heal(self) -> None:
        self.is_cut = False
        unopened, self.unopened = self.unopened, []
        for deliver, arguments in unopened:
            self.after(self.random.uniform(0, TTL_MS), deliver, *arguments)
        kept_back, self.kept_back = self.kept_back, []
        for number, (deliver, arguments) in enumerate(kept_back):
            self.after(number * 1e-6, deliver, *arguments)

    # What a worker tells.

    def published(self, number: int) -> None:
        self.fleet.published(number)

    def on_refused(self, number: int, refusal: GuardRefusal) -> None:
        self.fleet.attempts[number].request.on_refused(number, refusal)

    def on_stamp(self, index: int, boot: str, now_ms: int, asked_at_ms: int, number: int, lease: Lease | None) -> None:
        self.fleet.attempts[number].request.on_stamp(number, boot, now_ms, asked_at_ms, lease)

    def on_cancel_answer(self, number: int, boot: str, now_ms: int, asked_at_ms: int, state: StopState) -> None:
        self.fleet.attempts[number].request.on_cancel_answer(number, boot, now_ms, asked_at_ms, state)


class Site(Worker):
    """A replica: a guarded worker that can die, hang, be cut off, and come back as another model revision."""

    def __init__(self, fleet: "Fleet", index: int, rack: int, clock: Clock) -> None:
        self.fleet = fleet
        self.way = Way(fleet)
        self.rack = rack
        self.revision = "one"
        self.is_alive = True
        self.is_hung = False
        self.errs = False
        """A bad revision: every answer ends in an error."""
        super().__init__(self.way, index, clock)

    def start(self) -> None:
        super().start()
        self.is_alive, self.is_hung = True, False
        self.fleet.revision_of_boot[self.boot] = self.revision

    def kill(self) -> None:
        """SIGKILL: the attempts are gone, and their connections break once that can be seen."""
        numbers = [number for number, attempt in self.attempts.items() if attempt.state == "running"]
        self.is_alive = False
        self.attempts = {}
        for number in numbers:
            self.way.stream(self.fleet.attempts[number].request.on_broken, number)

    def terminate(self) -> None:
        """SIGTERM, as in a rollout: every answer ends in an abort, then the process does."""
        for number, attempt in self.attempts.items():
            if attempt.state == "running" and self.can_publish(number):
                attempt.state = "finished"
                self.tell(number, Piece.ERROR)
        self.kill()

    @property
    def running(self) -> int:
        return sum(attempt.state == "running" for attempt in self.attempts.values())

    # What arrives.

    def on_attempt(self, number: int, boot: str, valid_until_ms: int) -> None:
        request = self.fleet.attempts[number].request
        if not self.is_alive:
            self.way.stream(request.on_failed, number, Cause.NEVER_STARTED)
            return
        refusal = self.refusal(number, boot, valid_until_ms)
        if refusal is not None:
            self.way.stream(self.way.on_refused, number, refusal)
        elif self.running >= SLOTS:
            self.tombstones.add(number)
            self.way.stream(request.on_failed, number, Cause.OVERLOAD)
        else:
            self.fleet.check_let_in(number)
            self.attempts[number] = Running(valid_until_ms)
            self.way.after(self.fleet.prefill_ms(), self.publish, number, boot)

    def on_heartbeat(self, asked_at_ms: int, number: int, lease: Lease | None) -> None:
        if self.is_alive:
            super().on_heartbeat(asked_at_ms, number, lease)

    def on_cancel(self, number: int, asked_at_ms: int) -> None:
        if self.is_alive:
            super().on_cancel(number, asked_at_ms)
        else:
            self.way.send(self.fleet.attempts[number].request.on_cancel_refused, number)

    def publish(self, number: int, boot: str) -> None:
        attempt = self.find_publisher(number, boot)
        if attempt is None:
            return
        if not self.is_hung:
            piece = self.next_piece(attempt)
            attempt.chunks += 1
            if piece in (Piece.FINISH, Piece.ERROR):
                attempt.state = "finished"
            self.tell(number, piece)
        if attempt.state == "running":
            self.way.after(self.fleet.random.uniform(0, 2 * BEAT_MS), self.publish, number, boot)

    def next_piece(self, attempt: Running) -> Piece:
        if self.errs and self.fleet.random.random() < 0.4:
            return Piece.ERROR
        if attempt.chunks == 0:
            return Piece.ROLE
        return Piece.DELTA if attempt.chunks <= self.fleet.deltas else Piece.FINISH

    def tell(self, number: int, piece: Piece) -> None:
        self.fleet.published(number)
        attempt = self.fleet.attempts[number]
        attempt.pieces += 1
        # One connection: nothing overtakes anything.
        attempt.arrives_at_ms = max(attempt.arrives_at_ms, self.way.now + self.fleet.random.random())
        if self.way.is_cut:
            self.way.kept_back.append((attempt.request.on_piece, (number, piece, attempt.pieces)))
        else:
            self.way.after(attempt.arrives_at_ms - self.way.now, attempt.request.on_piece, number, piece, attempt.pieces)
