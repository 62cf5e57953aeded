"""A day of the seed's batch load, seconds apart, with a kubelet that restarts what /livez gives up (R26, R27).

Two to four requests of minutes each keep every slot full. Long prompts are prefilled in chunks, now and then a kernel is
compiled, the API server misses readings, and a restart fails what was in flight. The day is a fixed seed.
"""

import random
from dataclasses import dataclass, field

import pytest

from extproc.decision.exposition import Page
from extproc.decision.findings import History
from extproc.decision.health import judge
from extproc.decision.liveness import LivenessSettings, Record, answer_liveness
from extproc.decision.looks import Look, Observation, Outcome
from extproc.decision.verdicts import HealthSettings, Verdict
from tests.unit.decision.watched import page

DAY_S = 86_400
LOAD_S = 240
"""19 GB of weights."""
SLOTS = 4
INTERVAL_S = 10
KUBELET_FAILURES = 3
SETTINGS = HealthSettings(interval_ms=INTERVAL_S * 1000, hung_after_ms=180_000, stale_after_ms=30_000)


@dataclass(slots=True)
class Server:
    """A model server, advanced by the second."""

    seed: int
    hangs_after_s: float = float("inf")
    """Once, as soon as requests are in flight."""
    hung_at_s: int = 0
    chance: random.Random = field(init=False)
    network: random.Random = field(init=False)
    started_s: int = 0
    up_since_s: int = 0
    prefill_left_s: int = 0
    compile_left_s: int = 0
    batch_left_s: int = 0
    running: int = 0
    waiting: int = 0
    steps: int = 0
    kv: float = 0.0
    is_hung: bool = False
    short_answers: list[tuple[int, int]] = field(default_factory=list)
    """(second, requests that ran or waited then)."""

    def __post_init__(self) -> None:
        self.chance, self.network = random.Random(self.seed), random.Random(self.seed)

    def second(self, now_s: int) -> None:
        if now_s > self.hangs_after_s and not self.hung_at_s and self.running:
            self.is_hung, self.hung_at_s = True, now_s
        if self.is_hung or now_s < self.up_since_s:
            return
        if self.batch_left_s == 0 and self.chance.random() < 1 / 300:
            self.batch_left_s = self.chance.randint(600, 7200)
        if self.batch_left_s == 0:
            self.running = self.waiting = 0
            self.kv = 0.0
            return
        self.batch_left_s -= 1
        if self.running == 0 or self.chance.random() < 1 / 180:
            self.running = self.chance.randint(2, SLOTS)
            self.waiting = SLOTS - self.running + self.chance.randint(0, 3)
            self.prefill_left_s = self.chance.choice((0, 5, 60))
            self.compile_left_s = self.chance.choice((0,) * 20 + (90,))
        if self.compile_left_s:
            self.compile_left_s -= 1
        elif self.prefill_left_s:
            self.prefill_left_s -= 1
            self.kv = min(1.0, self.kv + 0.001)
        else:
            self.steps += 8

    def restart(self, now_s: int) -> None:
        self.up_since_s = self.started_s = now_s + LOAD_S
        self.is_hung = False
        self.running = self.waiting = self.steps = 0
        self.kv, self.batch_left_s = 0.0, 0

    def page(self) -> Page:
        return page(
            started=float(self.started_s),
            running=self.running,
            waiting=self.waiting,
            steps=self.steps,
            generated_tokens=self.steps,
            kv_cache_use=self.kv,
        )

    def observe(self, look: Look, now_s: int) -> Observation:
        if now_s < self.up_since_s:
            return Observation(look=look, outcome=Outcome.REFUSED)
        if look is Look.METRICS and self.network.random() < 0.02:
            return Observation(look=look, outcome=Outcome.READ_TIMEOUT)
        match look:
            case Look.METRICS:
                return Observation(look=look, outcome=Outcome.ANSWERED, status=200, page=self.page())
            case Look.SHORT_ANSWER:
                self.short_answers.append((now_s, self.running + self.waiting))
                assert not self.is_hung
                if now_s < self.up_since_s + 30:
                    return Observation(look=look, outcome=Outcome.ANSWERED, status=500)  # what a restart leaves behind
                self.steps += 1
                return Observation(look=look, outcome=Outcome.ANSWERED, status=200, took_ms=120)
            case Look.HEALTH:
                return Observation(look=look, outcome=Outcome.ANSWERED, status=200)
            case _:
                return Observation(look=look, outcome=Outcome.ANSWERED, status=404)


@dataclass(slots=True)
class Day:
    server: Server
    restarts: list[int] = field(default_factory=list)
    verdicts: set[Verdict] = field(default_factory=set)
    record: Record = field(default_factory=Record)
    failures: int = 0

    def run(self) -> "Day":
        history = History.begin(0)
        for now_s in range(DAY_S):
            now_ms = now_s * 1000
            self.server.second(now_s)
            while history.judgement.next.at_ms <= now_ms:
                observation = self.server.observe(history.judgement.next.look, now_s)
                history, judgement = judge(history, observation, SETTINGS, now_ms)
                self.verdicts.add(judgement.verdict)
            if now_s % 10 == 0:
                self.ask_liveness(history, now_s)
        return self

    def ask_liveness(self, history: History, now_s: int) -> None:
        self.record, liveness = answer_liveness(self.record, history.judgement, LivenessSettings(), now_s * 1000)
        self.failures = 0 if liveness.is_alive else self.failures + 1
        if self.failures == KUBELET_FAILURES:
            self.failures = 0
            self.restarts.append(now_s)
            self.server.restart(now_s)


@pytest.mark.parametrize("seed", [20260722, 1, 2])
def test_a_day_of_batch_load_restarts_nothing_and_asks_no_busy_engine(seed: int):
    day = Day(server=Server(seed=seed)).run()
    assert day.restarts == []
    assert {Verdict.BUSY, Verdict.IDLE, Verdict.SUSPECT, Verdict.UNKNOWN} <= day.verdicts
    assert Verdict.HUNG not in day.verdicts
    assert day.server.short_answers, "an idle engine is asked now and then"
    assert [asked for asked in day.server.short_answers if asked[1]] == []


@pytest.mark.parametrize("seed", [20260722, 1, 2])
def test_the_same_day_with_one_hang_restarts_exactly_once(seed: int):
    day = Day(server=Server(seed=seed, hangs_after_s=40_000)).run()
    (restarted_s,) = day.restarts
    assert 180 <= restarted_s - day.server.hung_at_s <= 300
    (demand,) = day.record.demands
    assert demand.verdict is Verdict.HUNG
    assert "nothing moved" in demand.evidence
    assert {Verdict.DEAD, Verdict.RESTARTED} <= day.verdicts
    assert [asked for asked in day.server.short_answers if asked[1]] == []
