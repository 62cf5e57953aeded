"""One gateway, two replicas, one request, and a network that delays, reorders, duplicates and drops every message at random.

Everything that happens follows from a seed. True time is known to the world alone; each machine reads its own clock, with
its own offset and rate. The processor uses extproc/decision/lease.py itself; the workers follow the guard's rules
(extproc/worker). Two claims are watched (issue 3):

- when an attempt starts, no earlier attempt of the request can publish, and none ever publishes after that;
- a request waits for a fence no longer than one lease and the cancel timeout.

``Rules`` holds what a mutant may change. ``python -m tests.simulation.world SEED [MUTANT]`` prints what happened.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Any

from extproc.contract.guard import GuardRefusal, StopState
from extproc.decision.lease import (
    FenceProof,
    Lease,
    LeaseTerms,
    Stamp,
    grant,
    is_newer,
    may_publish,
    proof_by_cancel,
    proof_by_refusal,
    valid_until_after_renewal,
)

TTL_MS = 100
HORIZON_MS = 7 * TTL_MS
BEAT_MS = TTL_MS // 4
CANCEL_TIMEOUT_MS = 20
ATTEMPTS_MAX = 4
CHUNKS_MAX = 6


class ViolationError(AssertionError):
    """A claim that did not hold, with the seed that shows it."""


class Rules:
    """What the product does; a mutant does one thing otherwise."""

    def grant(self, stamp: Stamp, terms: LeaseTerms, now_ms: int) -> Lease:
        return grant(stamp, terms)

    def renewed(self, lease: Lease, stamp: Stamp, terms: LeaseTerms, now_ms: int) -> Lease:
        return lease.renewed(stamp, terms)

    def counted(self, sent: Lease, acknowledged: Lease) -> Lease:
        """Which lease bounds the attempt: the longest grant sent, or the longest whose receipt is known."""
        return sent

    def proof_by_stamp(self, lease: Lease, stamp: Stamp) -> FenceProof | None:
        return lease.proof_by_stamp(stamp)

    def renews_while_fencing(self) -> bool:
        return False

    def keeps_tombstones(self) -> bool:
        return True

    def acknowledges_on_receipt(self) -> bool:
        """Whether a cancel is answered before the app has ended, and stops nothing until then."""
        return False

    def knows_duplicates_first(self) -> bool:
        """Whether an attempt that was here before is refused as such, even where its first lease has ended meanwhile."""
        return True


class Clock:
    """Milliseconds, rounded down; ``rate`` per true millisecond."""

    __slots__ = ("offset", "rate")

    def __init__(self, offset: float, rate: float) -> None:
        self.offset = offset
        self.rate = rate

    def read(self, now: float) -> int:
        return int(self.offset + self.rate * now)

    def moment(self, reading_ms: int) -> float:
        """The true moment at which the clock reads ``reading_ms``."""
        return (reading_ms - self.offset) / self.rate


@dataclass(slots=True)
class Running:
    """An attempt in a worker."""

    valid_until_ms: int
    state: str = "running"
    revoked: bool = False
    chunks: int = 0


class Worker:
    """A replica with its guard."""

    __slots__ = ("attempts", "boot", "boot_number", "clock", "index", "tombstones", "world")

    def __init__(self, world: "World", index: int, clock: Clock) -> None:
        self.world = world
        self.index = index
        self.clock = clock
        self.boot_number = 0
        self.start()

    def start(self) -> None:
        """A new process, which remembers nothing."""
        self.boot_number += 1
        self.boot = f"boot_{self.index}_{self.boot_number}"
        self.attempts: dict[int, Running] = {}
        self.tombstones: set[int] = set()

    def can_publish(self, number: int) -> bool:
        attempt = self.attempts.get(number)
        if attempt is None or attempt.state != "running" or attempt.revoked:
            return False
        return may_publish(valid_until_ms=attempt.valid_until_ms, now_ms=self.clock.read(self.world.now))

    def on_attempt(self, number: int, boot: str, valid_until_ms: int) -> None:
        refusal = self.refusal(number, boot, valid_until_ms)
        if refusal is not None:
            self.world.send(self.world.on_refused, number, refusal)
            return
        self.attempts[number] = Running(valid_until_ms)
        self.world.after(self.world.random.expovariate(1 / TTL_MS), self.publish, number, boot)

    def refusal(self, number: int, boot: str, valid_until_ms: int) -> GuardRefusal | None:
        is_over = not may_publish(valid_until_ms=valid_until_ms, now_ms=self.clock.read(self.world.now))
        if boot != self.boot:
            return GuardRefusal.WRONG_BOOT_ID
        if is_over and not self.world.rules.knows_duplicates_first():
            return GuardRefusal.LEASE_EXPIRED
        if number in self.tombstones:
            return GuardRefusal.TOMBSTONED
        if number in self.attempts:
            return GuardRefusal.DUPLICATE_ATTEMPT
        return GuardRefusal.LEASE_EXPIRED if is_over else None

    def find_publisher(self, number: int, boot: str) -> Running | None:
        """The attempt if it runs in this process and may publish; one whose lease is over is stopped by being looked at."""
        attempt = self.attempts.get(number)
        if boot != self.boot or attempt is None or attempt.state != "running":
            return None
        if not self.can_publish(number):
            attempt.state = "stopped"
            return None
        return attempt

    def publish(self, number: int, boot: str) -> None:
        attempt = self.find_publisher(number, boot)
        if attempt is None:
            return
        self.world.published(number)
        self.world.send(self.world.on_chunk, number)
        attempt.chunks += 1
        if attempt.chunks == CHUNKS_MAX:
            attempt.state = "finished"
        else:
            self.world.after(self.world.random.expovariate(1 / BEAT_MS), self.publish, number, boot)

    def on_heartbeat(self, asked_at_ms: int, number: int, lease: Lease | None) -> None:
        now_ms = self.clock.read(self.world.now)
        attempt = self.attempts.get(number)
        if lease is not None and attempt is not None and lease.boot_id == self.boot:
            attempt.valid_until_ms = valid_until_after_renewal(
                held_ms=attempt.valid_until_ms, offered_ms=lease.valid_until_ms, now_ms=now_ms
            )
        self.world.send(self.world.on_stamp, self.index, self.boot, now_ms, asked_at_ms, number, lease)

    def on_cancel(self, number: int, asked_at_ms: int) -> None:
        attempt = self.attempts.get(number)
        if attempt is None:
            if self.world.rules.keeps_tombstones():
                self.tombstones.add(number)
            self.answer_cancel(number, asked_at_ms, StopState.NEVER_STARTED)
        elif attempt.state != "running":
            self.answer_cancel(number, asked_at_ms, StopState(attempt.state))
        elif self.world.rules.acknowledges_on_receipt():
            self.answer_cancel(number, asked_at_ms, StopState.STOPPED)
            self.world.after(self.world.random.uniform(0, TTL_MS), self.end, attempt)
        else:
            attempt.revoked = True
            self.world.after(self.world.random.uniform(0, BEAT_MS), self.end, attempt, number, asked_at_ms, self.boot)

    def end(self, attempt: Running, number: int = 0, asked_at_ms: int = 0, boot: str = "") -> None:
        """The app's task has ended."""
        if attempt.state == "running":
            attempt.state = "stopped"
        if boot == self.boot:
            self.answer_cancel(number, asked_at_ms, StopState(attempt.state))

    def answer_cancel(self, number: int, asked_at_ms: int, state: StopState) -> None:
        now_ms = self.clock.read(self.world.now)
        self.world.send(self.world.on_cancel_answer, number, self.boot, now_ms, asked_at_ms, state)


class World:
    """The queue of what will happen, the network, and the processor with its one request."""

    def __init__(self, seed: int, rules: Rules, *, trace: bool = False) -> None:
        self.seed = seed
        self.rules = rules
        self.trace = trace
        self.random = random = Random(seed)
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.pushed = 0
        drift_ppm = random.choice((0, 1_000, 50_000))
        self.terms = LeaseTerms(ttl_ms=TTL_MS, drift_ppm=drift_ppm)
        # The slowest worker runs at rate 1, so that no clock outruns another by more than the drift that the terms allow.
        fastest = 1 + drift_ppm / 1_000_000
        self.clock = Clock(random.uniform(0, 1_000), random.choice((1.0, fastest, random.uniform(1, fastest))))
        self.workers = [Worker(self, index, Clock(random.uniform(0, 1_000), random.uniform(1, fastest))) for index in (0, 1)]
        self.loss = random.choice((0.0, 0.1, 0.4))
        self.duplication = random.choice((0.0, 0.1, 0.3))
        self.slowness = random.choice((0.0, 0.1, 0.5))
        self.cut_from = random.uniform(0, 2 * HORIZON_MS)
        self.cut_until = self.cut_from + random.uniform(0, 3 * TTL_MS)

        self.stamps: dict[int, Stamp] = {}
        self.number = 0
        self.at = 0
        self.phase = "placing"
        self.sent: Lease | None = None
        self.acknowledged: Lease | None = None
        self.fencing_since_ms = 0
        self.forwarded_from: int | None = None

    # Time and network.

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        self.pushed += 1
        heappush(self.queue, (self.now + delay, self.pushed, action, arguments))

    def send(self, deliver: Callable[..., None], *arguments: Any) -> None:
        """No copy, one or two, each with a delay of its own; a cut loses everything."""
        random = self.random
        if self.cut_from <= self.now < self.cut_until:
            return
        fate = random.random()
        if fate < self.loss:
            return
        for _ in range(2 if fate > 1 - self.duplication else 1):
            slow = random.random() < self.slowness
            self.after(random.uniform(0, 2 * TTL_MS) if slow else random.random() * 3, deliver, *arguments)

    def run(self) -> None:
        """Until the horizon; raises ViolationError."""
        for index in (0, 1):
            self.after(0, self.beat, index)
            if self.random.random() < 0.4:
                self.after(self.random.uniform(0, HORIZON_MS), self.restart, index)
        while self.queue:
            self.now, _, action, arguments = heappop(self.queue)
            if self.now > HORIZON_MS:
                break
            if self.trace:
                print(f"{self.now:8.3f} {self.phase:8} {self.number} {action.__qualname__} {arguments}")
            action(*arguments)

    def restart(self, index: int) -> None:
        worker = self.workers[index]
        worker.start()
        if self.random.random() < 0.5:
            worker.clock.offset = self.random.uniform(0, 1_000)  # the pod came back on another machine

    # What is watched.

    def violated(self, claim: str) -> ViolationError:
        return ViolationError(f"seed {self.seed}, {type(self.rules).__name__}, at {self.now:.3f} ms: {claim}")

    def published(self, number: int) -> None:
        if number != self.number:
            raise self.violated(f"attempt {number} publishes beside attempt {self.number}")

    # The processor.

    def read_clock(self) -> int:
        return self.clock.read(self.now)

    def lease(self) -> Lease:
        assert self.sent is not None
        assert self.acknowledged is not None
        return self.rules.counted(self.sent, self.acknowledged)

    def beat(self, index: int) -> None:
        is_renewed = index == self.at and (
            self.phase == "running" or (self.phase == "fencing" and self.rules.renews_while_fencing())
        )
        if is_renewed:
            assert self.sent is not None
            self.sent = self.rules.renewed(self.sent, self.stamps[index], self.terms, self.read_clock())
        renewal = (self.number, self.sent) if is_renewed else (0, None)
        self.send(self.workers[index].on_heartbeat, self.read_clock(), *renewal)
        self.after(BEAT_MS, self.beat, index)

    def on_stamp(self, index: int, boot: str, now_ms: int, asked_at_ms: int, number: int, renewed: Lease | None) -> None:
        stamp = Stamp(boot_id=boot, now_ms=now_ms, asked_at_ms=asked_at_ms, received_at_ms=self.read_clock())
        if index not in self.stamps or is_newer(stamp, self.stamps[index]):
            self.stamps[index] = stamp
        if renewed is not None and number == self.number:
            assert self.acknowledged is not None
            self.acknowledged = max(self.acknowledged, renewed, key=lambda lease: lease.valid_until_ms)
        if self.phase == "placing":
            self.place()
        elif self.phase == "fencing" and index == self.at and (proof := self.rules.proof_by_stamp(self.lease(), stamp)):
            self.fenced(proof)

    def place(self) -> None:
        """Start the next attempt where a stamp is known, on another replica than the last one."""
        index = (self.at + 1) % 2
        if index not in self.stamps:
            return
        self.number += 1
        self.at = index
        for worker in self.workers:
            for number in range(1, self.number):
                if worker.can_publish(number):
                    raise self.violated(f"attempt {self.number} starts while attempt {number} can publish")
        self.phase = "running"
        self.sent = self.acknowledged = self.rules.grant(self.stamps[index], self.terms, self.read_clock())
        self.send(self.workers[index].on_attempt, self.number, self.sent.boot_id, self.sent.valid_until_ms)
        self.after(self.random.expovariate(1 / TTL_MS), self.suspect, self.number)

    def suspect(self, number: int) -> None:
        """Any failure, real or not: what counts is that nothing is known about the attempt."""
        if number != self.number or self.phase != "running":
            return
        if self.forwarded_from is not None:
            self.phase = "ended"
            return
        self.phase = "fencing"
        self.fencing_since_ms = self.read_clock()
        for delay in (0.0, CANCEL_TIMEOUT_MS, 2 * CANCEL_TIMEOUT_MS):
            self.after(delay, self.cancel, number)
        self.await_bound(number)

    def cancel(self, number: int) -> None:
        if number == self.number and self.phase == "fencing":
            self.send(self.workers[self.at].on_cancel, number, self.read_clock())

    def await_bound(self, number: int) -> None:
        if number != self.number or self.phase != "fencing":
            return
        waited_ms = self.read_clock() - self.fencing_since_ms
        if waited_ms > self.terms.longest_wait_ms + CANCEL_TIMEOUT_MS:
            raise self.violated(f"waited {waited_ms} ms for a fence")
        if proof := self.lease().proof_by_clock(now_ms=self.read_clock()):
            self.fenced(proof)
            return
        # Look again at the bound, or as soon as waiting any longer would be too long.
        latest_ms = self.fencing_since_ms + self.terms.longest_wait_ms + CANCEL_TIMEOUT_MS + 1
        moment = self.clock.moment(min(self.lease().publish_bound_ms, latest_ms))
        self.after(max(moment - self.now, 0.001), self.await_bound, number)

    def on_cancel_answer(self, number: int, boot: str, now_ms: int, asked_at_ms: int, state: StopState) -> None:
        if number != self.number or self.phase != "fencing":
            return
        stamp = Stamp(boot_id=boot, now_ms=now_ms, asked_at_ms=asked_at_ms, received_at_ms=self.read_clock())
        if proof := proof_by_cancel(self.lease(), stamp, state):
            self.fenced(proof)

    def on_refused(self, number: int, refusal: GuardRefusal) -> None:
        if number == self.number and self.phase in ("running", "fencing") and (proof := proof_by_refusal(refusal)):
            self.fenced(proof)

    def on_chunk(self, number: int) -> None:
        if self.phase != "running" or number != self.number or not self.lease().may_forward(now_ms=self.read_clock()):
            return
        if self.random.random() < 0.5:
            return  # a chunk without a delta: the boundary is not crossed
        if self.forwarded_from not in (None, number):
            raise self.violated(f"chunks of attempts {self.forwarded_from} and {number} forwarded")
        self.forwarded_from = number

    def fenced(self, proof: FenceProof) -> None:
        if self.trace:
            print(f"         fenced: {proof}")
        self.phase = "placing" if self.number < ATTEMPTS_MAX and self.forwarded_from is None else "ended"
        if self.phase == "placing":
            self.place()


def run(seed: int, rules: Rules | None = None, *, trace: bool = False) -> World:
    """One world from its beginning to its horizon; raises ViolationError."""
    world = World(seed, rules or Rules(), trace=trace)
    world.run()
    return world


if __name__ == "__main__":
    from tests.simulation.mutants import MUTANTS

    run(int(sys.argv[1]), MUTANTS[sys.argv[2]]() if len(sys.argv) > 2 else None, trace=True)
