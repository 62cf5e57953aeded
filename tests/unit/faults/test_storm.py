"""The storm study: what its numbers say about the retry budget, and that a seed decides them (R15)."""

import json
from collections import Counter
from dataclasses import asdict
from random import Random
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from extproc.app import faults_command
from extproc.decision.policy import DEFAULT_POLICY, Policy, RetryBudgetPolicy
from extproc.faults.storm import callers
from extproc.faults.storm.agenda import Agenda
from extproc.faults.storm.callers import Conduct, Ending
from extproc.faults.storm.engine import Engine, Job
from extproc.faults.storm.gateway import Gateway
from extproc.faults.storm.study import SHARES_PERCENT, Storm, Terms, repeats_allowed, run_storm
from extproc.replicas.roster import Replica, Roster

SMALL = Terms(replicas=60, gateways=2, looks_every_ms=1_000.0)


@pytest.fixture(scope="module")
def storms() -> dict[tuple[int, Conduct], Storm]:
    return {(share, conduct): run_storm(0, share, conduct, SMALL) for share in SHARES_PERCENT for conduct in Conduct}


@pytest.mark.parametrize("conduct", Conduct)
def test_same_seed_gives_the_same_storm_and_another_seed_another(storms, conduct: Conduct) -> None:
    assert asdict(run_storm(0, 60, conduct, SMALL)) == asdict(storms[60, conduct])
    assert asdict(run_storm(1, 60, conduct, SMALL)) != asdict(storms[60, conduct])


def test_every_conduct_meets_the_same_clients_and_the_same_load_before_the_deaths(storms) -> None:
    for share in SHARES_PERCENT:
        before = [[load for at_s, load in storms[share, conduct].load_percent if at_s < 0] for conduct in Conduct]
        assert before[0] == before[1] == before[2]
        assert len({storms[share, conduct].requests for conduct in Conduct}) == 1
        assert before[0][-1] == pytest.approx(SMALL.load_percent, abs=8)


@pytest.mark.parametrize("share", SHARES_PERCENT)
def test_repeats_stay_within_what_the_budgets_hold(storms, share: int) -> None:
    ours = storms[share, Conduct.DELTAFENCE]
    assert 0 < ours.repeats <= ours.repeats_allowed


def test_naive_retries_multiply_the_load_of_the_survivors_and_the_budget_does_not(storms) -> None:
    none, naive, ours = (storms[60, conduct] for conduct in Conduct)
    assert naive.attempts_growth > 1.5 * none.attempts_growth
    assert naive.load_percent_max > 1.03 * none.load_percent_max
    assert naive.repeats > 10 * ours.repeats
    assert naive.repeats_read_percent > 15
    assert ours.attempts_growth <= 1.1 * none.attempts_growth
    assert ours.load_percent_max <= 1.02 * none.load_percent_max
    assert ours.repeats_read_percent < 2


def test_without_retries_nothing_is_repeated(storms) -> None:
    for share in SHARES_PERCENT:
        none = storms[share, Conduct.NO_RETRIES]
        assert (none.repeats, none.repeats_allowed, none.repeats_read_percent) == (0, 0, 0)


def test_without_its_budget_the_same_table_exceeds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is the budget's doing: it is reached where failures are many enough."""
    terms = Terms(replicas=60, gateways=1, load_percent=90, watched_ms=20_000.0, looks_every_ms=20_000.0)
    own = run_storm(0, 60, Conduct.DELTAFENCE, terms)
    assert own.repeats <= own.repeats_allowed
    endless = Policy(retry_budget=RetryBudgetPolicy(percent=100, min_per_second=1000, burst=1000))
    monkeypatch.setattr(callers, "DEFAULT_POLICY", endless)
    assert run_storm(0, 60, Conduct.DELTAFENCE, terms).repeats > own.repeats_allowed


def test_allowed_repeats_are_the_share_of_requests_and_the_floor_and_burst_of_every_gateway() -> None:
    terms = DEFAULT_POLICY.retry_budget
    assert repeats_allowed(terms, requests=1_000, gateways=3, elapsed_ms=10_000) == 200 + 3 * (10 + 10)


class Nobody:
    """A caller who writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_first_delta(self, job: Job) -> None:
        self.told.append("first delta")

    def on_finished(self, job: Job) -> None:
        self.told.append("finished")

    def on_broken(self, job: Job) -> None:
        self.told.append("broken")

    def on_refused(self, job: Job) -> None:
        self.told.append("refused")


def test_engine_reads_one_prompt_after_the_other_and_holds_no_more_than_its_slots() -> None:
    agenda = Agenda()
    engine = Engine(agenda, slots=2)
    jobs = [Job(caller=Nobody(), number=1, prefill_ms=10, decode_ms=100) for _ in range(3)]
    for job in jobs:
        engine.add(job)
    agenda.run_until(25)
    assert [job.caller.told for job in jobs] == [["first delta"], ["first delta"], []]
    agenda.run_until(115)
    assert jobs[0].caller.told == ["first delta", "finished"]
    agenda.run_until(125)
    assert jobs[2].caller.told == ["first delta"]


@pytest.mark.parametrize("at_ms", [5, 15, 60])
def test_cancelled_job_frees_its_place_and_is_told_nothing_more(at_ms: int) -> None:
    agenda = Agenda()
    engine = Engine(agenda, slots=1)
    first, second = (Job(caller=Nobody(), number=1, prefill_ms=10, decode_ms=100) for _ in range(2))
    engine.add(first)
    engine.add(second)
    agenda.run_until(at_ms)
    told = list(first.caller.told)
    engine.cancel(first)
    engine.cancel(first)
    agenda.run_until(1_000)
    assert first.caller.told == told
    assert second.caller.told == ["first delta", "finished"]
    assert engine.held == 0


def test_death_breaks_every_connection_once() -> None:
    agenda = Agenda()
    engine = Engine(agenda, slots=1)
    jobs = [Job(caller=Nobody(), number=1, prefill_ms=10, decode_ms=100) for _ in range(3)]
    for job in jobs:
        engine.add(job)
    agenda.run_until(20)
    engine.die()
    agenda.run_until(1_000)
    assert [job.caller.told for job in jobs] == [["first delta", "broken"], ["broken"], ["broken"]]


def test_gateway_chooses_the_least_busy_replica_that_is_neither_known_dead_nor_failed_on() -> None:
    gateway = Gateway(4, Random(0))
    gateway.acquire(0)
    gateway.acquire(1)
    gateway.acquire(1)
    gateway.notice_dead(2)
    assert gateway.choose(()) == 3
    assert gateway.choose({3}) == 0
    assert gateway.choose({0, 3}) == 1
    assert gateway.choose({0, 1, 3}) is None
    gateway.release(1)
    gateway.release(1)
    assert {gateway.choose(()), gateway.choose(())} == {1, 3}


def test_gateway_gives_its_equals_as_many_turns_each_as_the_real_roster_does() -> None:
    """A replica that refuses every attempt stays among the idle, and must not get all of them for that."""
    gateway = Gateway(5, Random(0))
    roster = Roster(Replica(destination=str(index), url="") for index in range(5))
    turns, real_turns = Counter(), Counter()
    for _ in range(50):
        chosen, real = gateway.choose(()), roster.choose()
        gateway.acquire(chosen)
        gateway.release(chosen)
        turns[chosen] += 1
        real_turns[int(real.destination)] += 1
    assert turns == real_turns


def test_command_leaves_a_page_a_picture_and_json(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_command, "Terms", lambda: SMALL)
    result = CliRunner().invoke(faults_command.faults, ["storm", "--seed", "3", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "index.html") in result.output
    document = json.loads((tmp_path / "storm.json").read_text())
    assert (document["seed"], document["terms"]["replicas"], len(document["storms"])) == (3, 60, 9)
    assert document["storms"][0]["endings"][Ending.COMPLETE] > 0
    picture = ElementTree.fromstring((tmp_path / "storm.svg").read_text())
    assert len(picture.findall("{http://www.w3.org/2000/svg}polyline")) == 9
    page = (tmp_path / "index.html").read_text()
    assert "10 %" in page
    assert "<polyline" in page
    assert "&lt;" not in page
