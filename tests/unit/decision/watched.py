"""One replica under judgement, on a clock that the test moves, with pages that the test writes or that were recorded."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from extproc.decision.exposition import EngineReading, Page, Series, read_page
from extproc.decision.findings import History
from extproc.decision.health import judge
from extproc.decision.looks import Look, Observation, Outcome
from extproc.decision.verdicts import HealthSettings, Judgement, Knowledge, Verdict

RECORDED = Path(__file__).parents[2] / "data" / "metrics"
SETTINGS = HealthSettings(
    interval_ms=5_000, hung_after_ms=60_000, stale_after_ms=20_000, answer_deadline_ms=10_000, answer_every_ms=60_000
)
STARTED_S = 1764421200.53


def recorded(name: str) -> Page:
    return read_page((RECORDED / f"{name}.txt").read_bytes())


def engine(label: str = "0", model: str = "m", **series: float | None) -> EngineReading:
    """A whole reading; a series given as None is missing."""
    values: dict[Series, float | None] = {
        Series.RUNNING: 0,
        Series.WAITING: 0,
        Series.STEPS: 500,
        Series.GENERATED_TOKENS: 500,
        Series.PROMPT_TOKENS: 900,
        Series.KV_CACHE_USE: 0.0,
    }
    values |= {Series[name.upper()]: value for name, value in series.items()}
    return EngineReading(engine=label, model=model, values={name: float(v) for name, v in values.items() if v is not None})


def page(*engines: EngineReading, started: float | None = STARTED_S, **series: float | None) -> Page:
    return Page(started_at_s=started, engines=engines or (engine(**series),))


@dataclass(slots=True)
class Watched:
    settings: HealthSettings = SETTINGS
    is_proxy: bool = False
    expected_up: bool = False
    knowledge: Knowledge | None = None
    now_ms: int = 1_000_000
    asked: list[Look] = field(default_factory=list)
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.history = History.begin(self.now_ms, is_proxy=self.is_proxy, expected_up=self.expected_up)

    @property
    def judgement(self) -> Judgement:
        return self.history.judgement

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def next_look(self) -> Look:
        return self.judgement.next.look

    def see(self, look: Look, **observed: Any) -> Judgement:
        """Take this look now, whatever was asked for."""
        observed.setdefault("outcome", Outcome.ANSWERED)
        if observed["outcome"] is Outcome.ANSWERED:
            observed.setdefault("status", 200)
        self.asked.append(look)
        self.history, judgement = judge(
            self.history, Observation(look=look, **observed), self.settings, self.now_ms, self.knowledge
        )
        return judgement

    def read(self, page: Page, *, after_s: float = 5.0) -> Judgement:
        """The next reading of /metrics."""
        self.now_ms += round(after_s * 1000)
        return self.see(Look.METRICS, page=page)

    def fail(self, outcome: Outcome, *, look: Look = Look.METRICS, after_s: float = 5.0) -> Judgement:
        self.now_ms += round(after_s * 1000)
        return self.see(look, outcome=outcome)

    def answer(self, status: int = 200, *, took_ms: int = 40) -> Judgement:
        """The short answer that is asked for now."""
        assert self.next_look is Look.SHORT_ANSWER, f"no short answer is asked for, but {self.judgement}"
        self.now_ms += took_ms
        return self.see(Look.SHORT_ANSWER, status=status, took_ms=took_ms)

    def let_answer_time_out(self) -> Judgement:
        assert self.next_look is Look.SHORT_ANSWER, f"no short answer is asked for, but {self.judgement}"
        self.now_ms += self.settings.answer_deadline_ms
        return self.see(Look.SHORT_ANSWER, outcome=Outcome.READ_TIMEOUT, took_ms=self.settings.answer_deadline_ms)

    def health(self, status: int = 200) -> Judgement:
        assert self.next_look is Look.HEALTH, f"/health is not asked for, but {self.judgement}"
        return self.see(Look.HEALTH, status=status)

    def paused(self, paused: bool | None = None, *, status: int = 404) -> Judgement:
        assert self.next_look is Look.PAUSED, f"/is_paused is not asked for, but {self.judgement}"
        return self.see(Look.PAUSED, status=200 if paused is not None else status, paused=paused)

    def stand_still(self, page: Page, *, seconds: float) -> Judgement:
        """The same page again and again, with /health 200 where it is asked for, until so much time has passed or it is hung."""
        end_ms = self.now_ms + round(seconds * 1000)
        while self.now_ms < end_ms:
            self.read(page)
            if self.next_look is Look.HEALTH:
                self.health()
            if self.next_look is Look.PAUSED:
                return self.judgement
        return self.judgement

    def hang(self, page: Page) -> Judgement:
        """All the way to the proof."""
        self.read(page)
        self.stand_still(page, seconds=100)
        return self.paused()

    def settle_idle(self, page: Page) -> Judgement:
        """Read until it is asked for its short answer, and give it."""
        for _ in range(3):
            self.read(page)
            if self.next_look is Look.SHORT_ANSWER:
                return self.answer()
        raise AssertionError(f"never asked: {self.judgement}")

    def with_knowledge(self, attempts: int, *, output_ago_s: float | None = None) -> None:
        last = None if output_ago_s is None else self.now_ms - round(output_ago_s * 1000)
        self.knowledge = Knowledge(attempts_in_flight=attempts, last_output_at_ms=last)


def impatient(**changes: int) -> HealthSettings:
    return replace(SETTINGS, **changes)
