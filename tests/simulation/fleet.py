"""A fleet: hundreds of gateways and replicas, and what strikes many of them at once. Everything follows from a seed.

The core is the product's own (table, gates, budget, causes, lease arithmetic, roster, pool), the guards' rules are those of
world.py, and virtual time is the storm study's. The claims are the fault suite's, named as there (extproc/faults/invariants.py);
they are watched while things happen. A world has two halves: disasters, and then a time in which everything has healed and every
new request must be answered whole.

``FleetRules`` holds what a mutant may change. ``python -m tests.simulation.fleet SEED [MUTANT]`` prints what came of a seed.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from extproc.decision import effects, events
from extproc.decision.effects import Outcome
from extproc.decision.lease import LeaseTerms
from extproc.decision.policy import DeadlinesPolicy, LeasePolicy, Policy, RetryBudgetPolicy
from extproc.decision.request import RequestState, step
from extproc.faults.invariants import Invariant
from extproc.faults.storm.agenda import Agenda
from extproc.faults.storm.study import repeats_allowed
from extproc.processor.pools import Pool
from extproc.replicas.roster import Replica, Standing
from tests.simulation.fleet_disasters import DISASTERS, Disaster
from tests.simulation.fleet_parties import Attempt, Gateway
from tests.simulation.fleet_replicas import Site
from tests.simulation.fleet_requests import FleetRequest
from tests.simulation.world import BEAT_MS, CANCEL_TIMEOUT_MS, TTL_MS, Clock, Rules, ViolationError

GATEWAYS = 120
REPLICAS = 240
RACKS = 12
LOOKS = 10
"""Gateways that look at the replicas at one moment are a tenth of all."""
REQUESTS = 600
STORM_MS = 1_500.0
HEALED_MS = 1_000.0
SETTLING_MS = 6.0 * TTL_MS
OUTCOMES = {"complete": Outcome.COMPLETED, "interrupted": Outcome.INTERRUPTED, "refused": Outcome.FAILED}


class FleetRules:
    """What the product does; a mutant does one thing otherwise."""

    lease = Rules()

    def decide(self, state: RequestState, event: events.Event, policy: Policy) -> tuple[RequestState, tuple[effects.Effect, ...]]:
        return step(state, event, policy)

    def budget_available(self, pool: Pool, terms: RetryBudgetPolicy, now_ms: int) -> bool:
        return pool.allows_repeat(terms, now_ms)

    def take_repeat(self, pool: Pool, terms: RetryBudgetPolicy, now_ms: int) -> None:
        pool.take_repeat(terms, now_ms)

    def assumes_fences(self) -> bool:
        return False

    def cancels(self) -> bool:
        return True

    def records_the_boundary(self) -> bool:
        return True

    def may_serve(self, identity: str | None, revision: str) -> bool:
        return identity in (None, revision)


class FleetViolationError(ViolationError):
    """A broken promise, by its name."""

    def __init__(self, invariant: Invariant, how: str) -> None:
        super().__init__(f"{invariant}: {how}")
        self.invariant = invariant


class Fleet:
    """Everybody, the network between them, and what is watched."""

    def __init__(self, seed: int, rules: FleetRules) -> None:
        self.seed = seed
        self.rules = rules
        self.random = random = Random(seed)
        self.agenda = Agenda()
        self.has_healed = False
        drift_ppm = random.choice((0, 1_000, 50_000))
        fastest = 1 + drift_ppm / 1_000_000
        self.terms = LeaseTerms(ttl_ms=TTL_MS, drift_ppm=drift_ppm)
        self.loss = random.choice((0.0, 0.05, 0.3))
        self.duplication = random.choice((0.0, 0.1, 0.3))
        self.slowness = random.choice((0.0, 0.05, 0.2))
        self.journal_loss = random.choice((0.0, 0.0, 0.05))
        self.deltas = random.randint(1, 6)
        self.policy = Policy(
            max_attempts=random.randint(2, 4),
            retry_budget=RetryBudgetPolicy(
                percent=random.choice((10, 20, 50)), min_per_second=random.choice((0.1, 1.0)), burst=random.choice((1, 3, 10))
            ),
            lease=LeasePolicy(ttl_ms=TTL_MS, cancel_timeout_ms=CANCEL_TIMEOUT_MS),
            deadlines=DeadlinesPolicy(first_delta_ms=random.choice((300, 1_000)), total_ms=2_000),
        )
        self.revision_of_boot: dict[str, str] = {}
        self.sites = [
            Site(self, index, index % RACKS, Clock(random.uniform(0, 1_000), random.uniform(1, fastest)))
            for index in range(REPLICAS)
        ]
        self.replicas = [Replica(destination=str(index), url="") for index in range(REPLICAS)]
        self.gateways = [
            self.new_gateway(Clock(random.uniform(0, 1_000), random.choice((1.0, fastest, random.uniform(1, fastest)))))
            for _ in range(GATEWAYS)
        ]
        self.disasters: Sequence[Disaster] = [random.choice(DISASTERS) for _ in range(random.randint(1, 4))]
        self.attempts: dict[int, Attempt] = {}
        self.requests: list[FleetRequest] = []

    # Randomness that everybody uses.

    def delay(self) -> float:
        """Of one message."""
        return self.random.uniform(0, 2 * TTL_MS) if self.random.random() < self.slowness else self.random.random() * 3

    def prefill_ms(self) -> float:
        return self.random.uniform(0, BEAT_MS) if self.has_healed else self.random.expovariate(1 / TTL_MS)

    def new_gateway(self, clock: Clock) -> Gateway:
        """Each has found the replicas in an order of its own."""
        return Gateway(clock, self.random.sample(self.replicas, REPLICAS))

    def new_attempt(self, request: FleetRequest, site: Site) -> Attempt:
        number = len(self.attempts) + 1
        self.attempts[number] = attempt = Attempt(number, request, site, self.agenda.now_ms)
        return attempt

    # The course of a world.

    def run(self) -> None:
        """Disasters, then the time after them; raises ViolationError."""
        for _ in range(REQUESTS):
            self.agenda.after(self.random.uniform(0, STORM_MS), self.ask)
        for disaster in self.disasters:
            self.later(self.random.uniform(0, STORM_MS), disaster, self)
        self.agenda.run_until(STORM_MS)
        self.heal()
        self.agenda.run_until(self.agenda.now_ms + SETTLING_MS)
        healed = [self.ask() for _ in range(GATEWAYS)]
        self.agenda.run_until(self.agenda.now_ms + HEALED_MS + self.policy.deadlines.total_ms)
        self.check_end(healed)

    def ask(self) -> FleetRequest:
        request = FleetRequest(self, self.random.choice(self.gateways), self.policy)
        self.requests.append(request)
        if self.random.random() < 0.1 and self.agenda.now_ms < STORM_MS:
            self.agenda.after(self.random.expovariate(1 / TTL_MS), request.leave)
        request.begin()
        return request

    def later(self, delay_ms: float, action: Callable[..., None], *arguments: Any) -> None:
        """A disaster, or a part of one: what is still to come when everything heals does not come."""
        self.agenda.after(delay_ms, self.unless_healed, action, arguments)

    def unless_healed(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.has_healed:
            action(*arguments)

    def heal(self) -> None:
        """Everybody is back, and stays."""
        self.has_healed = True
        self.loss = self.duplication = self.slowness = self.journal_loss = 0.0
        for site in self.sites:
            site.way.heal()
            site.errs = False
            if not site.is_alive or site.is_hung:
                self.restart(site)
        for number, gateway in enumerate(self.gateways):
            if not gateway.is_up or gateway.is_draining:
                self.gateways[number] = self.new_gateway(gateway.clock)

    def restart(self, site: Site) -> None:
        if site.is_alive:
            site.kill()
        site.start()
        if self.random.random() < 0.5:
            site.clock.offset = self.random.uniform(0, 1_000)  # the pod came back on another machine
        self.tell_health([site], Standing.PLACEABLE)

    def tell_health(self, sites: list[Site], standing: Standing) -> None:
        """Every gateway's health monitor finds it out, sooner or later."""
        for first in range(LOOKS):
            self.agenda.after(self.random.uniform(0, 2 * TTL_MS), self.set_standing, first, sites, standing)

    def set_standing(self, first: int, sites: list[Site], standing: Standing) -> None:
        for site in sites:
            if site.is_alive is (standing is Standing.PLACEABLE):
                for gateway in self.gateways[first::LOOKS]:
                    gateway.roster.set_standing(str(site.index), standing)

    def endings(self) -> Counter[str]:
        """How the requests ended for their clients."""
        return Counter(
            "cut" if client.is_cut else "left" if client.has_left else client.ends[0]
            for client in (request.client for request in self.requests)
        )

    # What is watched.

    def violated(self, invariant: Invariant, how: str) -> FleetViolationError:
        name = type(self.rules).__name__
        return FleetViolationError(invariant, f"seed {self.seed}, {name}, at {self.agenda.now_ms:.3f} ms: {how}")

    def published(self, number: int) -> None:
        attempt = self.attempts[number]
        request = attempt.request
        if request.attempts[-1] is not attempt:
            raise self.violated(Invariant.ONE_PUBLISHER, f"attempt {number} publishes beside {request.attempts[-1].number}")
        if attempt.site.revision != request.identity:
            raise self.violated(Invariant.ONE_VOICE, f"revision {attempt.site.revision} answers for {request.identity}")

    def check_start(self, request: FleetRequest) -> None:
        """When an attempt starts no earlier one can publish, nothing was delivered, and it was allowed."""
        if request.client.pieces:
            raise self.violated(Invariant.NO_ATTEMPT_AFTER_DELIVERY, f"an attempt after {len(request.client.pieces)} pieces")
        if len(request.attempts) > self.policy.attempts_allowed:
            raise self.violated(Invariant.ATTEMPTS_BOUNDED, f"{len(request.attempts)} attempts")
        for before in request.attempts[:-1]:
            if before.site.can_publish(before.number):
                raise self.violated(Invariant.ONE_PUBLISHER, f"attempt {before.number} can still publish")
        gateway = request.gateway
        allowed = repeats_allowed(self.policy.retry_budget, requests=gateway.firsts, gateways=1, elapsed_ms=self.agenda.now_ms)
        if gateway.repeats > allowed:
            raise self.violated(Invariant.ATTEMPTS_BOUNDED, f"{gateway.repeats} repeats, {allowed} in the budget")

    def check_let_in(self, number: int) -> None:
        if (proof := self.attempts[number].proof) is not None:
            raise self.violated(Invariant.ONE_PUBLISHER, f"attempt {number} is let in, which was fenced: {proof}")

    def check_stopped(self, request: FleetRequest) -> None:
        for attempt in request.attempts:
            if attempt.site.can_publish(attempt.number):
                raise self.violated(Invariant.STOPPED_IN_TIME, f"attempt {attempt.number} outlives its client and its lease")

    def check_end(self, healed: list[FleetRequest]) -> None:
        for request in self.requests:
            client = request.client
            if client.is_cut or client.has_left:
                continue
            if len(client.ends) != 1:
                raise self.violated(Invariant.ONE_ENDING, f"a client has {client.ends} and {len(client.pieces)} pieces")
            if OUTCOMES[client.ends[0]] is not request.outcome:
                raise self.violated(Invariant.JOURNAL_AGREES, f"ended {client.ends[0]}, recorded {request.outcome}")
        for site in self.sites:
            if site.running:
                raise self.violated(Invariant.NO_SLOT_LEFT, f"replica {site.index} runs {site.running} attempts")
        for request in healed:
            if request.client.ends != ["complete"]:
                raise self.violated(Invariant.EXPECTED_ENDING, f"after everything healed: {request.client.ends} {request.why}")


def run(seed: int, rules: FleetRules | None = None) -> Fleet:
    """One fleet from its beginning to its end; raises ViolationError."""
    fleet = Fleet(seed, rules or FleetRules())
    fleet.run()
    return fleet


if __name__ == "__main__":
    from tests.simulation.fleet_mutants import MUTANTS

    mutants = {mutant.__name__: mutant for mutant in MUTANTS}
    fleet = run(int(sys.argv[1]), mutants[sys.argv[2]]() if len(sys.argv) > 2 else None)
    print(dict(fleet.endings()), f"{len(fleet.attempts)} attempts")
