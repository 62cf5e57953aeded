"""When /livez fails, how often, and the record of it (R27)."""

from dataclasses import replace

import pytest

from extproc.decision.liveness import HOUR_MS, RECORD_MAX, LivenessSettings, Record, answer_liveness
from extproc.decision.looks import Look
from extproc.decision.verdicts import PLACEMENT, Cause, Judgement, NextLook, Verdict

SETTINGS = LivenessSettings(
    restarts_per_hour_max=2, refused_after_ms=600_000, engine_dead_after_ms=30_000, answered_for_ms=120_000
)


def judgement(verdict: Verdict, cause: Cause | None = None, *, since_ms: int = 0) -> Judgement:
    return Judgement(
        verdict=verdict,
        evidence="the evidence",
        placement=PLACEMENT[verdict],
        at_ms=since_ms,
        since_ms=since_ms,
        next=NextLook(look=Look.METRICS, at_ms=0),
        cause=cause,
    )


def at(now_ms: int, judgement: Judgement, *, since_ms: int | None = None) -> Judgement:
    """The same, confirmed just now."""
    return replace(judgement, at_ms=now_ms, since_ms=judgement.since_ms if since_ms is None else since_ms)


HUNG = judgement(Verdict.HUNG, Cause.ENGINE_STANDS_STILL)
REFUSED = judgement(Verdict.DEAD, Cause.CONNECTION_REFUSED)
ENGINE_DEAD = judgement(Verdict.DEAD, Cause.ENGINE_DEAD)


@pytest.mark.parametrize("verdict", sorted(set(Verdict) - {Verdict.HUNG, Verdict.DEAD}))
def test_no_other_verdict_fails_liveness_however_long_it_lasts(verdict: Verdict):
    record, liveness = answer_liveness(Record(), judgement(verdict), SETTINGS, 10**9)
    assert (liveness.is_alive, record) == (True, Record())
    assert liveness.reason == f"{verdict}: the evidence"


def test_hung_fails_at_once_and_is_one_demand_however_often_it_is_asked():
    record = Record()
    for second in range(0, 300, 10):
        record, liveness = answer_liveness(record, at(second * 1000, HUNG), SETTINGS, second * 1000)
        assert not liveness.is_alive
    (demand,) = record.demands
    assert (demand.verdict, demand.evidence, demand.at_ms) == (Verdict.HUNG, "the evidence", 0)


def test_a_refused_connection_is_given_the_time_of_a_load():
    record, liveness = answer_liveness(Record(), at(599_999, REFUSED), SETTINGS, 599_999)
    assert (liveness.is_alive, record.demands) == (True, ())
    assert liveness.reason == "dead: the evidence; for 600 s, of 10 min that a load may take"
    assert not answer_liveness(record, at(600_000, REFUSED), SETTINGS, 600_000)[1].is_alive


def test_after_a_restart_for_a_refused_connection_the_next_load_is_waited_for():
    record, alive = Record(), []
    settings = replace(SETTINGS, restarts_per_hour_max=10)
    for minute in range(0, 36):
        record, liveness = answer_liveness(record, at(minute * 60_000, REFUSED), settings, minute * 60_000)
        alive.append(liveness.is_alive)
    assert alive == ([True] * 10 + [False] * 2) * 3
    assert [demand.number for demand in record.demands] == [0, 1, 2]


def test_an_engine_that_says_it_is_dead_gets_the_time_to_end_by_itself():
    record, liveness = answer_liveness(Record(), ENGINE_DEAD, SETTINGS, 29_999)
    assert liveness.is_alive
    assert "until it counts" in liveness.reason
    assert not answer_liveness(record, ENGINE_DEAD, SETTINGS, 30_000)[1].is_alive


def test_beyond_the_limit_it_reports_and_no_longer_fails():
    record, alive = Record(), []
    for spell in range(4):
        now_ms = spell * 60_000
        record, liveness = answer_liveness(record, at(now_ms, HUNG, since_ms=now_ms), SETTINGS, now_ms)
        alive.append(liveness.is_alive)
    assert alive == [False, False, True, True]
    assert liveness.reason.endswith("not failing, since 2 of 2 restarts were asked for within the hour: a person is needed")
    assert len(record.demands) == 2


def test_an_hour_later_it_fails_again():
    record = Record()
    for now_ms in (0, 60_000):
        record, _ = answer_liveness(record, at(now_ms, HUNG, since_ms=now_ms), SETTINGS, now_ms)
    spell = at(HOUR_MS - 1, HUNG, since_ms=120_000)
    assert answer_liveness(record, spell, SETTINGS, HOUR_MS - 1)[1].is_alive
    assert not answer_liveness(record, spell, SETTINGS, HOUR_MS)[1].is_alive


@pytest.mark.parametrize("proved", [HUNG, ENGINE_DEAD])
def test_r27_old_evidence_is_no_reason_since_the_model_may_be_loading(proved: Judgement):
    """The kubelet restarted the server, whose port now swallows every look: nothing has shown that the new process hangs."""
    record, liveness = answer_liveness(Record(), at(60_000, proved), SETTINGS, 180_000)
    assert not liveness.is_alive
    record, liveness = answer_liveness(record, at(60_000, proved), SETTINGS, 180_001)
    assert liveness.is_alive
    assert liveness.reason.endswith("but nothing has confirmed that for 120 s")


def test_a_limit_of_zero_only_reports():
    record, liveness = answer_liveness(Record(), HUNG, replace(SETTINGS, restarts_per_hour_max=0), 0)
    assert (liveness.is_alive, record.demands) == (True, ())


def test_the_record_is_bounded():
    record = Record()
    for spell in range(RECORD_MAX * 2):
        now_ms = spell * HOUR_MS
        record, _ = answer_liveness(record, at(now_ms, HUNG, since_ms=now_ms), SETTINGS, now_ms)
    assert len(record.demands) == RECORD_MAX


@pytest.mark.parametrize(
    "wrong",
    [{"restarts_per_hour_max": -1}, {"refused_after_ms": -1}, {"engine_dead_after_ms": -1}, {"answered_for_ms": 0}],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, int]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(SETTINGS, **wrong)
