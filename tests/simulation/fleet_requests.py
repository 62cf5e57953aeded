"""One request of a fleet: the real table, gates, budget, roster and lease arithmetic, in virtual time.

What session.py, carrier.py and fencing.py do with a clock and sockets is done here with the agenda and the way to a replica.
"""

from typing import TYPE_CHECKING

from extproc.contract.guard import GuardRefusal, StopState
from extproc.decision import effects, events
from extproc.decision.causes import Cause, Failure, Fencing
from extproc.decision.effects import Outcome
from extproc.decision.gates import GateFacts
from extproc.decision.lease import FenceProof, Lease, Stamp, is_newer, proof_by_cancel, proof_by_refusal
from extproc.decision.policy import Policy
from extproc.decision.request import Phase, RequestState
from extproc.faults.invariants import Invariant
from extproc.faults.storm.decided import DecidedRequest
from extproc.replicas.roster import Replica
from tests.simulation.fleet_parties import Attempt, Client, Gateway
from tests.simulation.fleet_replicas import Piece
from tests.simulation.world import BEAT_MS, CANCEL_TIMEOUT_MS, TTL_MS

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

UNHEARD_MS = 0.6 * TTL_MS
"""Heartbeats unanswered for so long make an attempt uncertain."""
FENCE_WAIT_SLACK_MS = CANCEL_TIMEOUT_MS + 2
PROMPT_BYTES = 400


class FleetRequest(DecidedRequest):
    """One request. Whatever arrives for a gateway that has crashed reaches nobody."""

    def __init__(self, fleet: "Fleet", gateway: Gateway, policy: Policy) -> None:
        super().__init__(policy)
        self.fleet = fleet
        self.gateway = gateway
        self.client = Client(fleet, self)
        self.attempt: Attempt | None = None
        self.fencing: Attempt | None = None
        self.attempts: list[Attempt] = []
        self.failed_on: set[str] = set()
        self.candidate: Replica | None = None
        self.identity: str | None = None
        self.held: list[tuple[int, int]] = []
        self.boundary_recorded = False
        self.outcome: Outcome | None = None
        self.why = ""
        """What a refused client is told."""

    # Decisions.

    def decide(self, event: events.Event) -> tuple[RequestState, tuple[effects.Effect, ...]]:
        return self.fleet.rules.decide(self.state, event, self.policy)

    def begin(self) -> None:
        if not self.gateway.is_up:
            self.client.is_cut = True
            return
        self.gateway.requests.append(self)
        deadlines = self.policy.deadlines
        self.fleet.agenda.after(deadlines.first_delta_ms, self.pass_deadline, events.Deadline.FIRST_DELTA)
        self.fleet.agenda.after(deadlines.total_ms, self.pass_deadline, events.Deadline.TOTAL)
        self.feed(events.Placed(candidate=self.find_candidate(), draining=self.gateway.is_draining))

    def carry_out(self, effect: effects.Effect) -> events.Event | None:
        match effect:
            case effects.StartAttempt():
                self.start(effect.number)
            case effects.FenceAttempt():
                self.fence(effect.fencing, effect.failure)
            case effects.CancelAttempt():
                self.cancel()
            case effects.RecordBoundary():
                return self.record_boundary()
            case effects.RecordOutcome():
                self.outcome = effect.outcome
            case effects.DeliverHeld():
                self.deliver_held()
            case effects.FinishStream():
                self.release()
                self.client.end("complete", partial=True)
            case effects.InterruptStream():
                self.client.end("interrupted", partial=True)
            case effects.AnswerError():
                self.why = effect.detail
                self.client.end("refused", partial=False)
        return None

    def start(self, number: int) -> None:
        gateway, now_ms = self.gateway, int(self.fleet.agenda.now_ms)
        replica, self.candidate = self.candidate, None
        assert replica is not None
        if number == 1:
            gateway.pool.note_request(self.policy.retry_budget, now_ms)
            gateway.firsts += 1
        else:
            self.fleet.rules.take_repeat(gateway.pool, self.policy.retry_budget, now_ms)
            gateway.repeats += 1
        self.attempt = attempt = self.fleet.new_attempt(self, self.fleet.sites[int(replica.destination)])
        self.attempts.append(attempt)
        gateway.roster.acquire(replica)
        self.fleet.check_start(self)
        self.held = []
        stamp = gateway.stamps.get(attempt.site.index)
        if stamp is not None and self.clock_ms() - stamp.received_at_ms <= TTL_MS // 2:
            self.grant(attempt, stamp)
        else:
            self.send_beat(attempt, None)
            self.fleet.agenda.after(CANCEL_TIMEOUT_MS, self.give_up_granting, attempt)

    def grant(self, attempt: Attempt, stamp: Stamp) -> None:
        """The identity is that of the process that the lease names."""
        revision = self.fleet.revision_of_boot[stamp.boot_id]
        if not self.fleet.rules.may_serve(self.identity, revision):
            self.on_failed(attempt.number, Cause.NEVER_STARTED)
            return
        self.identity = self.identity or revision
        attempt.lease = self.fleet.rules.lease.grant(stamp, self.fleet.terms, self.clock_ms())
        attempt.heard_at_ms = self.clock_ms()
        attempt.site.way.open(attempt.site.on_attempt, attempt.number, stamp.boot_id, attempt.lease.valid_until_ms)
        self.fleet.agenda.after(BEAT_MS, self.beat, attempt)

    def give_up_granting(self, attempt: Attempt) -> None:
        if attempt.lease is None:
            self.on_failed(attempt.number, Cause.NEVER_STARTED)

    def fence(self, fencing: Fencing, failure: Failure) -> None:
        attempt = self.drop()
        self.fencing = attempt
        self.failed_on.add(str(attempt.site.index))
        if self.fleet.rules.assumes_fences():
            self.settle(attempt, FenceProof.CANCEL_ACKNOWLEDGED)
        elif attempt.lease is None:
            self.settle(attempt, FenceProof.NOT_STARTED)
        elif fencing is Fencing.NOT_NEEDED:
            self.settle(attempt, FenceProof.ENDED_BY_ITSELF)
        else:
            self.pursue(attempt)

    def settle(self, attempt: Attempt, proof: FenceProof) -> None:
        """Later in the same moment: a decision is never made inside another one."""
        attempt.proof = attempt.proof or proof
        if attempt is self.fencing:
            self.fencing = None
            self.fleet.agenda.after(0, self.settled)

    def settled(self) -> None:
        if self.phase is not Phase.FENCING or not self.gateway.is_up:
            return
        now_ms = int(self.fleet.agenda.now_ms)
        facts = GateFacts(
            fenced=True,
            budget_available=self.fleet.rules.budget_available(self.gateway.pool, self.policy.retry_budget, now_ms),
            replay_cost=self.gateway.pool.cost_of(PROMPT_BYTES),
            client_deadline_left_ms=self.policy.deadlines.first_delta_ms,
            tool_call_recorded=False,
            candidate=self.find_candidate(),
            draining=self.gateway.is_draining,
        )
        self.feed(events.FenceSettled(facts=facts))

    def cancel(self) -> None:
        if self.attempt is not None and self.fleet.rules.cancels():
            attempt = self.drop()
            if attempt.lease is not None:
                self.pursue(attempt)

    def release(self) -> None:
        if self.attempt is not None:
            self.drop()

    def drop(self) -> Attempt:
        attempt, self.attempt = self.attempt, None
        assert attempt is not None
        self.gateway.roster.release(self.fleet.replicas[attempt.site.index])
        return attempt

    def find_candidate(self) -> bool:
        self.candidate = self.gateway.roster.choose(self.failed_on)
        return self.candidate is not None

    def record_boundary(self) -> events.Event:
        if self.fleet.random.random() < self.fleet.journal_loss:
            return events.BoundaryNotRecorded(detail="the journal is away")
        self.boundary_recorded = self.fleet.rules.records_the_boundary()
        return events.BoundaryRecorded()

    def deliver_held(self) -> None:
        if not self.boundary_recorded:
            raise self.fleet.violated(Invariant.RECORDED_BEFORE_DELIVERED, "output goes out unrecorded")
        for attempt, number in self.held:
            self.client.receive(attempt, number)

    # What arrives.

    def clock_ms(self) -> int:
        return self.gateway.clock.read(self.fleet.agenda.now_ms)

    def is_current(self, number: int) -> bool:
        return self.gateway.is_up and self.attempt is not None and self.attempt.number == number

    def on_failed(self, number: int, cause: Cause) -> None:
        if self.is_current(number):
            self.feed(events.AttemptFailed(failure=Failure(cause=cause, evidence=f"it is {cause}")))

    def on_broken(self, number: int) -> None:
        self.fleet.attempts[number].is_broken = True
        self.on_failed(number, Cause.REPLICA_GONE)

    def on_refused(self, number: int, refusal: GuardRefusal) -> None:
        if proof_by_refusal(refusal) is not None:
            self.on_failed(number, Cause.NEVER_STARTED)

    def on_piece(self, number: int, piece: Piece, sequence: int) -> None:
        if not self.is_current(number) or self.phase is Phase.ENDED:
            return
        assert self.attempt is not None
        assert self.attempt.lease is not None
        if not self.attempt.lease.may_forward(now_ms=self.clock_ms()):
            self.on_failed(number, Cause.UNCERTAIN)
            return
        if piece is Piece.ERROR:
            self.on_failed(number, Cause.ENGINE_ERROR)
        elif self.phase is Phase.PREFILL:
            self.held.append((number, sequence))
            if piece is not Piece.ROLE:
                self.feed(events.FirstDeltaArrived())
        else:
            self.client.receive(number, sequence)
        if piece is Piece.FINISH and self.phase is Phase.DECODE:
            self.feed(events.AnswerFinished())

    def leave(self) -> None:
        if self.gateway.is_up and self.client.over_at_ms is None and not self.client.is_cut:
            self.client.has_left = True
            self.client.over()
            self.feed(events.ClientLeft())

    def pass_deadline(self, deadline: events.Deadline) -> None:
        if self.gateway.is_up:
            self.feed(events.DeadlinePassed(deadline=deadline))

    # Leases.

    def send_beat(self, attempt: Attempt, lease: Lease | None) -> None:
        attempt.site.way.send(attempt.site.on_heartbeat, self.clock_ms(), attempt.number, lease)

    def beat(self, attempt: Attempt) -> None:
        if not self.is_current(attempt.number):
            return
        assert attempt.lease is not None
        if self.clock_ms() - attempt.heard_at_ms > UNHEARD_MS:
            self.on_failed(attempt.number, Cause.UNCERTAIN)
            return
        stamp = self.gateway.stamps[attempt.site.index]
        attempt.lease = self.fleet.rules.lease.renewed(attempt.lease, stamp, self.fleet.terms, self.clock_ms())
        self.send_beat(attempt, attempt.lease)
        self.fleet.agenda.after(BEAT_MS, self.beat, attempt)

    def on_stamp(self, number: int, boot: str, now_ms: int, asked_at_ms: int, renewed: Lease | None) -> None:
        if not self.gateway.is_up:
            return
        attempt = self.fleet.attempts[number]
        stamp = Stamp(boot_id=boot, now_ms=now_ms, asked_at_ms=asked_at_ms, received_at_ms=self.clock_ms())
        stamps, index = self.gateway.stamps, attempt.site.index
        if index not in stamps or is_newer(stamp, stamps[index]):
            stamps[index] = stamp
        if attempt.lease is None:
            if self.is_current(number) and stamps[index] is stamp:
                self.grant(attempt, stamp)
            return
        attempt.heard_at_ms = self.clock_ms()
        if proof := attempt.lease.proof_by_stamp(stamp):
            self.settle(attempt, proof)
            self.on_failed(number, Cause.REPLICA_GONE)

    def pursue(self, attempt: Attempt) -> None:
        attempt.is_pursued = True
        attempt.pursued_since_ms = self.clock_ms()
        self.send_cancel(attempt)
        self.await_bound(attempt)

    def send_cancel(self, attempt: Attempt) -> None:
        if self.gateway.is_up and attempt.proof is None:
            attempt.site.way.send(attempt.site.on_cancel, attempt.number, self.clock_ms())
            self.fleet.agenda.after(CANCEL_TIMEOUT_MS, self.send_cancel, attempt)

    def await_bound(self, attempt: Attempt) -> None:
        if not self.gateway.is_up or attempt.proof is not None:
            return
        assert attempt.lease is not None
        now_ms = self.clock_ms()
        if now_ms - attempt.pursued_since_ms > self.fleet.terms.longest_wait_ms + FENCE_WAIT_SLACK_MS:
            raise self.fleet.violated(Invariant.STOPPED_IN_TIME, f"waited {now_ms - attempt.pursued_since_ms} ms for a fence")
        if proof := attempt.lease.proof_by_clock(now_ms=now_ms):
            self.settle(attempt, proof)
            return
        moment_ms = self.gateway.clock.moment(attempt.lease.publish_bound_ms)
        self.fleet.agenda.after(max(moment_ms - self.fleet.agenda.now_ms, 0.001), self.await_bound, attempt)

    def on_cancel_answer(self, number: int, boot: str, now_ms: int, asked_at_ms: int, state: StopState) -> None:
        attempt = self.fleet.attempts[number]
        if not self.gateway.is_up or not attempt.is_pursued:
            return
        assert attempt.lease is not None
        stamp = Stamp(boot_id=boot, now_ms=now_ms, asked_at_ms=asked_at_ms, received_at_ms=self.clock_ms())
        if proof := proof_by_cancel(attempt.lease, stamp, state):
            self.settle(attempt, proof)

    def on_cancel_refused(self, number: int) -> None:
        """Nobody listens there: a proof only where the attempt's own connection has broken."""
        attempt = self.fleet.attempts[number]
        if self.gateway.is_up and attempt.is_pursued and attempt.is_broken:
            self.settle(attempt, FenceProof.CONNECTION_REFUSED)
