"""Who repeats what. One request of a client, under the real table or under a rule that many gateways and agents have by hand."""

import math
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Final

from extproc.decision import effects, events
from extproc.decision.causes import CAUSES, Cause, Failure, Fencing
from extproc.decision.gates import GateFacts
from extproc.decision.policy import DEFAULT_POLICY, Policy
from extproc.decision.replay_cost import PROMPT_BYTES_PER_TOKEN
from extproc.decision.request import Phase
from extproc.faults.storm.agenda import Agenda
from extproc.faults.storm.decided import DecidedRequest
from extproc.faults.storm.engine import Caller, Engine, Job
from extproc.faults.storm.gateway import Gateway

REFUSED_MS: Final = 2.0
"""Until a connection to a dead process is known to be refused."""
FENCE_MS: Final = {Fencing.NOT_NEEDED: 0.0, Fencing.CONFIRM: 5.0, Fencing.REVOKE_AND_WAIT: 5.0}
"""All deaths here are processes killed, whose address refuses the cancel call at once."""
READ_TOKENS_PER_MS: Final = 4.0
NAIVE_ATTEMPTS_MAX: Final = 4
NAIVE_LATE_MS: Final = 10_000.0


class Conduct(StrEnum):
    """What is done about a failed attempt."""

    NO_RETRIES = auto()
    NAIVE = auto()
    """Whatever failed or was late is sent again at once, up to four attempts, also what had begun to arrive."""
    DELTAFENCE = auto()
    """The built-in default policy."""


class Ending(StrEnum):
    """What became of a client's request."""

    COMPLETE = auto()
    INTERRUPTED = auto()
    REFUSED = auto()
    """An error before anything was delivered."""
    GAVE_UP = auto()
    """Its client waited long enough for a first delta."""
    UNDER_WAY = auto()
    """Not over when the study was."""


@dataclass(slots=True, kw_only=True)
class Told:
    """One request, as the study counts it."""

    asked_at_ms: float
    ending: Ending = Ending.UNDER_WAY
    over_at_ms: float = math.inf
    first_delta_after_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a client sends, the same under every conduct."""

    at_ms: float
    gateway: int
    prefill_ms: float
    decode_ms: float

    @property
    def prompt_bytes(self) -> int:
        return math.ceil(self.prefill_ms * READ_TOKENS_PER_MS * PROMPT_BYTES_PER_TOKEN)


@dataclass(slots=True, kw_only=True)
class Attempts:
    """Attempts sent, by the moment: (ms, replica, number)."""

    sent: list[tuple[float, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all callers of one storm share."""

    agenda: Agenda
    engines: list[Engine]
    gateways: list[Gateway]
    attempts: Attempts
    patience_ms: float


class _Sender:
    """The half that both conducts share: one job at a time, and who is told of it."""

    def __init__(self, around: Surroundings, ask: Ask) -> None:
        self.told = Told(asked_at_ms=around.agenda.now_ms)
        self.around = around
        self.ask = ask
        self.gateway = around.gateways[ask.gateway]
        self.failed_on: set[int] = set()
        self.job: Job | None = None
        self.at = 0

    def send(self, caller: Caller, number: int, index: int) -> None:
        """One attempt; a dead process refuses its connection."""
        job = Job(caller=caller, number=number, prefill_ms=self.ask.prefill_ms, decode_ms=self.ask.decode_ms)
        self.job, self.at = job, index
        self.gateway.acquire(index)
        self.around.attempts.sent.append((self.around.agenda.now_ms, index, number))
        engine = self.around.engines[index]
        if engine.is_alive:
            engine.add(job)
        else:
            self.around.agenda.after(REFUSED_MS, caller.on_refused, job)

    def adopt(self, job: Job, index: int) -> None:
        """A job that was decoding when the study began."""
        self.job, self.at = job, index
        self.gateway.acquire(index)
        self.around.engines[index].add_decoding(job)

    def drop(self) -> None:
        """The attempt is over, or is not wanted any more."""
        job, self.job = self.job, None
        if job is not None:
            self.gateway.release(self.at)
            self.around.engines[self.at].cancel(job)

    def end(self, ending: Ending) -> None:
        self.told.ending = ending
        self.told.over_at_ms = self.around.agenda.now_ms

    def note_first_delta(self) -> None:
        if self.told.first_delta_after_ms is None:
            self.told.first_delta_after_ms = self.around.agenda.now_ms - self.told.asked_at_ms


class DecidedCaller(DecidedRequest):
    """The real table, gates, causes and budget under a policy."""

    def __init__(self, around: Surroundings, ask: Ask, policy: Policy) -> None:
        super().__init__(policy)
        self._sender = _Sender(around, ask)
        self.told = self._sender.told
        self._candidate: int | None = None
        self._started_ms = 0.0

    def begin(self) -> None:
        """Admission."""
        self._sender.around.agenda.after(self._sender.around.patience_ms, self._lose_patience)
        self.feed(events.Placed(candidate=self._find_candidate()))

    def adopt(self, job: Job, index: int) -> None:
        """Be the caller of an answer that was half delivered when the study began."""
        self._candidate = index
        self.state = self.decide(events.Placed(candidate=True))[0]
        self.state = self.decide(events.BoundaryRecorded())[0]
        self._sender.adopt(job, index)

    def on_first_delta(self, job: Job) -> None:
        if job is self._sender.job:
            self.feed(events.FirstDeltaArrived())

    def on_finished(self, job: Job) -> None:
        if job is self._sender.job:
            self.feed(events.AnswerFinished())
            self._sender.drop()

    def on_broken(self, job: Job) -> None:
        self._fail(job, Cause.REPLICA_GONE, "the connection broke")

    def on_refused(self, job: Job) -> None:
        self._fail(job, Cause.NEVER_STARTED, "the connection was refused")

    def carry_out(self, effect: effects.Effect) -> events.Event | None:
        match effect:
            case effects.StartAttempt():
                self._start(effect.number)
            case effects.FenceAttempt():
                self._sender.failed_on.add(self._sender.at)
                self._sender.drop()
                self._sender.around.agenda.after(FENCE_MS[effect.fencing], self._fenced)
            case effects.RecordBoundary():
                return self._cross()
            case effects.CancelAttempt():
                self._sender.drop()
            case effects.AnswerError():
                self._sender.end(Ending.REFUSED)
            case effects.InterruptStream():
                self._sender.end(Ending.INTERRUPTED)
            case effects.FinishStream():
                self._sender.end(Ending.COMPLETE)
        return None

    def _start(self, number: int) -> None:
        assert self._candidate is not None
        pool, terms, now_ms = self._sender.gateway.pool, self.policy.retry_budget, self._now_ms
        if number == 1:
            pool.note_request(terms, now_ms)
        else:
            pool.take_repeat(terms, now_ms)
        self._started_ms = self._sender.around.agenda.now_ms
        self._sender.send(self, number, self._candidate)

    def _cross(self) -> events.Event:
        pool = self._sender.gateway.pool
        elapsed_ms = self._sender.around.agenda.now_ms - self._started_ms
        pool.note_prefill(pool.cost_of(self._sender.ask.prompt_bytes).prompt_tokens, int(elapsed_ms))
        self._sender.note_first_delta()
        return events.BoundaryRecorded()

    def _fail(self, job: Job, cause: Cause, evidence: str) -> None:
        if job is self._sender.job:
            self.feed(events.AttemptFailed(failure=Failure(cause=cause, evidence=evidence)))

    def _fenced(self) -> None:
        if self.phase is not Phase.FENCING:
            return
        pool, now_ms = self._sender.gateway.pool, self._now_ms
        facts = GateFacts(
            fenced=True,
            budget_available=pool.allows_repeat(self.policy.retry_budget, now_ms),
            replay_cost=pool.cost_of(self._sender.ask.prompt_bytes),
            client_deadline_left_ms=int(self.told.asked_at_ms) + self.policy.deadlines.first_delta_ms - now_ms,
            tool_call_recorded=False,
            candidate=self._find_candidate(),
        )
        self.feed(events.FenceSettled(facts=facts))

    def _lose_patience(self) -> None:
        if self.phase in (Phase.PREFILL, Phase.FENCING):
            self._sender.end(Ending.GAVE_UP)
            self.feed(events.ClientLeft())

    def _find_candidate(self) -> bool:
        self._candidate = self._sender.gateway.choose(self._sender.failed_on)
        return self._candidate is not None

    @property
    def _now_ms(self) -> int:
        return int(self._sender.around.agenda.now_ms)


class NaiveCaller:
    """Sends whatever failed or is late again, at once."""

    def __init__(self, around: Surroundings, ask: Ask) -> None:
        self._sender = _Sender(around, ask)
        self.told = self._sender.told
        self._attempts = 0

    def begin(self) -> None:
        """Admission."""
        self._sender.around.agenda.after(self._sender.around.patience_ms, self._lose_patience)
        self._send_again()

    def adopt(self, job: Job, index: int) -> None:
        """Be the caller of an answer that was half delivered when the study began."""
        self._attempts = 1
        self.told.first_delta_after_ms = 0.0
        self._sender.adopt(job, index)

    def on_first_delta(self, job: Job) -> None:
        if job is self._sender.job:
            self._sender.note_first_delta()

    def on_finished(self, job: Job) -> None:
        if job is self._sender.job:
            self._sender.end(Ending.COMPLETE)
            self._sender.drop()

    def on_broken(self, job: Job) -> None:
        if job is self._sender.job:
            self._sender.failed_on.add(self._sender.at)
            self._sender.drop()
            self._send_again()

    on_refused = on_broken

    def _send_again(self) -> None:
        index = self._sender.gateway.choose(self._sender.failed_on)
        if index is None or self._attempts == NAIVE_ATTEMPTS_MAX:
            self._sender.end(Ending.REFUSED if self.told.first_delta_after_ms is None else Ending.INTERRUPTED)
            return
        self._attempts += 1
        self._sender.send(self, self._attempts, index)
        self._sender.around.agenda.after(NAIVE_LATE_MS, self._be_late, self._sender.job)

    def _be_late(self, job: Job) -> None:
        if job is self._sender.job and not job.has_begun:
            self.on_broken(job)

    def _lose_patience(self) -> None:
        if self.told.ending is Ending.UNDER_WAY and self.told.first_delta_after_ms is None:
            self._sender.end(Ending.GAVE_UP)
            self._sender.drop()


def policy_of(conduct: Conduct) -> Policy:
    """What the table is given. Raises LookupError for a conduct without a table."""
    return {Conduct.DELTAFENCE: DEFAULT_POLICY, Conduct.NO_RETRIES: Policy(retry_before_first_delta=False)}[conduct]


def new_caller(conduct: Conduct, around: Surroundings, ask: Ask) -> DecidedCaller | NaiveCaller:
    """Who asks ``ask``."""
    if conduct is Conduct.NAIVE:
        return NaiveCaller(around, ask)
    return DecidedCaller(around, ask, policy_of(conduct))


assert set(FENCE_MS) == {row.fencing for row in CAUSES.values()}
