"""One storm from its seed, and the whole study: a share of the replicas dies at once; all conducts meet the same clients."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from extproc.decision.policy import RetryBudgetPolicy
from extproc.faults.storm.agenda import Agenda
from extproc.faults.storm.callers import (
    Ask,
    Attempts,
    Conduct,
    DecidedCaller,
    Ending,
    NaiveCaller,
    Surroundings,
    new_caller,
    policy_of,
)
from extproc.faults.storm.engine import Engine, Job
from extproc.faults.storm.gateway import Gateway

SHARES_PERCENT: Final = (10, 30, 60)
SAMPLE_MS: Final = 500.0
DECODE_MS_MAX: Final = 300_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The pool and its clients. Lengths of prompts and answers are exponentially distributed."""

    replicas: int = 1_000
    gateways: int = 20
    slots: int = 16
    """Sequences that one replica runs at once."""
    load_percent: int = 55
    """Slots in use before the storm."""
    prefill_ms_mean: float = 1_500.0
    prefill_ms_max: float = 15_000.0
    decode_ms_mean: float = 30_000.0
    patience_ms: float = 60_000.0
    """How long a client waits for its first delta."""
    warm_up_ms: float = 10_000.0
    watched_ms: float = 60_000.0
    """From the deaths on, which are at 0."""
    looks_every_ms: float = 5_000.0
    """Each gateway's health monitor looks at each replica so often; until then it takes the dead for idle."""

    @property
    def asks_per_ms(self) -> float:
        """So many that ``load_percent`` of the slots are in use."""
        return self.replicas * self.slots * self.load_percent / 100 / (self.prefill_ms_mean + self.decode_ms_mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """One storm's result. Everything is of the time from the deaths on, and of the replicas that lived."""

    conduct: Conduct
    share_percent: int
    requests: int
    """That came in."""
    repeats: int
    """Attempts beyond a request's first, wherever they were sent."""
    repeats_allowed: int | None
    """What the retry budgets of all gateways could hold; None where there is no budget."""
    attempts_per_s_max: float
    """Attempts that reached the survivors in the worst second, each."""
    attempts_per_s_before: float
    load_percent: tuple[tuple[float, float], ...]
    """(seconds, held / slots in percent): more than 100 is a queue."""
    repeats_read_percent: float
    """How much of the time in which the survivors read prompts went into repeats."""
    first_delta_s: tuple[float, float]
    """Median and 99th percentile of the requests that came in and got one."""
    endings: Mapping[Ending, int]
    """Of all requests that were under way at the deaths or came in later."""

    @property
    def load_percent_max(self) -> float:
        return max(load for at_s, load in self.load_percent if at_s >= 0)

    @property
    def attempts_growth(self) -> float:
        """The worst second beside the seconds before."""
        return self.attempts_per_s_max / self.attempts_per_s_before

    @property
    def repeats_per_request(self) -> float:
        return self.repeats / self.requests

    def document(self) -> dict[str, Any]:
        """As JSON."""
        derived = ("load_percent_max", "attempts_growth", "repeats_per_request")
        return asdict(self) | {name: round(getattr(self, name), 3) for name in derived}


def study(seed: int, terms: Terms, progress: Callable[[Storm], None]) -> tuple[Storm, ...]:
    """Every share under every conduct."""
    storms = []
    for share in SHARES_PERCENT:
        for conduct in Conduct:
            storms.append(run_storm(seed, share, conduct, terms))
            progress(storms[-1])
    return tuple(storms)


def run_storm(seed: int, share_percent: int, conduct: Conduct, terms: Terms) -> Storm:
    """One storm; the same seed and share give every conduct the same clients, prompts, answers and dead."""
    random = Random(f"{seed}/{share_percent}")  # noqa: S311  (a study, no secret)
    run = _Run(conduct, terms, random)
    victims = frozenset(random.sample(range(terms.replicas), terms.replicas * share_percent // 100))
    run.fill(random)
    asks = tuple(_asks(terms, random))
    run.play(asks, victims, random)
    return run.result(share_percent, victims)


def _asks(terms: Terms, random: Random) -> Sequence[Ask]:
    asks = []
    at_ms = -terms.warm_up_ms
    while (at_ms := at_ms + random.expovariate(terms.asks_per_ms)) < terms.watched_ms:
        asks.append(_ask(at_ms, terms, random))
    return asks


def _ask(at_ms: float, terms: Terms, random: Random) -> Ask:
    return Ask(
        at_ms=at_ms,
        gateway=random.randrange(terms.gateways),
        prefill_ms=min(terms.prefill_ms_max, random.expovariate(1 / terms.prefill_ms_mean)),
        decode_ms=min(DECODE_MS_MAX, random.expovariate(1 / terms.decode_ms_mean)),
    )


class _Run:
    """One storm under way."""

    def __init__(self, conduct: Conduct, terms: Terms, random: Random) -> None:
        self.conduct = conduct
        self.terms = terms
        self.agenda = Agenda(begin_ms=-terms.warm_up_ms)
        self.engines = [Engine(self.agenda, slots=terms.slots) for _ in range(terms.replicas)]
        self.around = Surroundings(
            agenda=self.agenda,
            engines=self.engines,
            gateways=[Gateway(terms.replicas, Random(random.random())) for _ in range(terms.gateways)],  # noqa: S311  (a study)
            attempts=Attempts(),
            patience_ms=terms.patience_ms,
        )
        self.callers: list[DecidedCaller | NaiveCaller] = []
        self.loads: list[tuple[float, float]] = []
        self.read_before: dict[int, dict[bool, float]] = {}

    def fill(self, random: Random) -> None:
        """The answers under way in a pool at its usual load: exponential lengths have no memory, so none of them is odd."""
        decoding_share = self.terms.decode_ms_mean / (self.terms.prefill_ms_mean + self.terms.decode_ms_mean)
        each = self.terms.slots * self.terms.load_percent / 100 * decoding_share
        for index in range(self.terms.replicas):
            for _ in range(int(each) + (random.random() < each % 1)):
                ask = _ask(self.agenda.now_ms, self.terms, random)
                caller = new_caller(self.conduct, self.around, ask)
                caller.adopt(Job(caller=caller, number=1, prefill_ms=ask.prefill_ms, decode_ms=ask.decode_ms), index)
                self.callers.append(caller)

    def play(self, asks: Sequence[Ask], victims: frozenset[int], random: Random) -> None:
        now_ms = self.agenda.now_ms
        for ask in asks:
            self.agenda.after(ask.at_ms - now_ms, self._begin, ask)
        self.agenda.after(-now_ms, self._strike, victims)
        for gateway in self.around.gateways:
            for index in sorted(victims):
                self.agenda.after(random.uniform(0, self.terms.looks_every_ms) - now_ms, gateway.notice_dead, index)
        survivors = [engine for index, engine in enumerate(self.engines) if index not in victims]
        self._sample(survivors)
        self.agenda.run_until(self.terms.watched_ms)

    def _begin(self, ask: Ask) -> None:
        caller = new_caller(self.conduct, self.around, ask)
        self.callers.append(caller)
        caller.begin()

    def _strike(self, victims: frozenset[int]) -> None:
        self.read_before = {index: dict(engine.read_ms) for index, engine in enumerate(self.engines)}
        for index in sorted(victims):
            self.engines[index].die()

    def _sample(self, survivors: Sequence[Engine]) -> None:
        held = sum(engine.held for engine in survivors)
        load = 100 * held / len(survivors) / self.terms.slots
        self.loads.append((round(self.agenda.now_ms / 1000, 3), round(load, 2)))
        self.agenda.after(SAMPLE_MS, self._sample, survivors)

    # --- what came of it ---

    def result(self, share_percent: int, victims: frozenset[int]) -> Storm:
        after = [caller.told for caller in self.callers if caller.told.asked_at_ms >= 0]
        waited_s = sorted(told.first_delta_after_ms / 1000 for told in after if told.first_delta_after_ms is not None)
        per_second = Counter(int(at_ms // 1000) for at_ms, index, _ in self.around.attempts.sent if index not in victims)
        survivors = self.terms.replicas - len(victims)
        before = [per_second[second] for second in range(-int(self.terms.warm_up_ms // 1000), 0)]
        repeats = sum(number > 1 and at_ms >= 0 for at_ms, _, number in self.around.attempts.sent)
        return Storm(
            conduct=self.conduct,
            share_percent=share_percent,
            requests=len(after),
            repeats=repeats,
            repeats_allowed=self._repeats_allowed(),
            attempts_per_s_max=max(count for second, count in per_second.items() if second >= 0) / survivors,
            attempts_per_s_before=sum(before) / len(before) / survivors,
            load_percent=tuple(self.loads),
            repeats_read_percent=self._repeats_read_percent(victims),
            first_delta_s=(round(_quantile(waited_s, 0.5), 2), round(_quantile(waited_s, 0.99), 2)),
            endings=dict(Counter(caller.told.ending for caller in self._there_at_the_deaths())),
        )

    def _there_at_the_deaths(self) -> list[DecidedCaller | NaiveCaller]:
        return [caller for caller in self.callers if caller.told.asked_at_ms >= 0 or caller.told.over_at_ms >= 0]

    def _repeats_allowed(self) -> int | None:
        if self.conduct is Conduct.NAIVE:
            return None
        policy = policy_of(self.conduct)
        if policy.attempts_allowed == 1:
            return 0
        first = sum(number == 1 and at_ms >= 0 for at_ms, _, number in self.around.attempts.sent)
        return repeats_allowed(
            policy.retry_budget, requests=first, gateways=self.terms.gateways, elapsed_ms=self.terms.watched_ms
        )

    def _repeats_read_percent(self, victims: frozenset[int]) -> float:
        spent = dict.fromkeys((False, True), 0.0)
        for index, engine in enumerate(self.engines):
            if index not in victims:
                for is_repeat in spent:
                    spent[is_repeat] += engine.read_ms[is_repeat] - self.read_before[index][is_repeat]
        return round(100 * spent[True] / sum(spent.values()), 2)


def repeats_allowed(terms: RetryBudgetPolicy, *, requests: int, gateways: int, elapsed_ms: float) -> int:
    """The most that budgets can hold which were full at first: each gateway process has one of its own."""
    return int(gateways * (terms.burst + terms.min_per_second * elapsed_ms / 1000) + requests * terms.percent / 100)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
