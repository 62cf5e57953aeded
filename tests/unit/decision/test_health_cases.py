"""Odd inputs from public reports (CASES area 5, K8-06, K8-07), and the seed's own list (R26)."""

import pytest

from extproc.decision.exposition import read_page
from extproc.decision.looks import Look, Outcome, read_answer
from extproc.decision.verdicts import Cause, Placement, Verdict
from tests.unit.decision.watched import RECORDED, Watched, engine, impatient, page, recorded


@pytest.mark.parametrize("still", [page(running=1, steps=500), page(running=0, waiting=3, steps=500)])
def test_hl_01_stuck_work_is_hung_whatever_health_says(still: object):
    watched = Watched()
    watched.read(still)
    watched.stand_still(still, seconds=100)
    assert watched.paused().verdict is Verdict.HUNG
    assert Look.HEALTH in watched.asked
    assert Look.SHORT_ANSWER not in watched.asked


@pytest.mark.parametrize("outcome", [Outcome.READ_TIMEOUT, Outcome.CONNECT_TIMEOUT])
def test_hl_02_readings_that_time_out_are_unknown_and_a_saturated_backlog_is_not_dead(outcome: Outcome):
    watched = Watched()
    watched.read(page(running=2))
    for _ in range(3):
        assert watched.fail(outcome).verdict is Verdict.UNKNOWN
    judgement = watched.read(page(running=2, steps=900))
    assert (judgement.verdict, judgement.evidence) == (Verdict.BUSY, "2 running; 400 steps in 20 s")


def test_hl_02_a_refused_connection_is_dead():
    watched = Watched()
    watched.read(page(running=2))
    assert watched.fail(Outcome.REFUSED).verdict is Verdict.DEAD


def test_hl_06_several_api_servers_have_no_start_time_and_a_drop_is_a_restart():
    watched = Watched()
    watched.read(recorded("several_api_servers"))
    assert watched.verdict is Verdict.BUSY
    watched.read(recorded("several_api_servers_restarted"))
    assert watched.verdict is Verdict.RESTARTED
    later = recorded("several_api_servers_restarted")
    watched.read(later)
    watched.read(later)
    assert watched.answer().verdict is Verdict.IDLE


def test_hl_06_counters_kept_across_a_restart_are_told_by_the_outage():
    watched = Watched()
    watched.read(page(started=None, running=1, steps=9000))
    watched.fail(Outcome.REFUSED)
    watched.read(page(started=None, steps=9000))
    assert watched.verdict is Verdict.RESTARTED


def test_hl_06_two_restarts_with_an_outage_between_are_no_proxy():
    watched = Watched()
    for steps in (9000, 12, 5):
        watched.read(page(started=None, steps=steps))
        watched.fail(Outcome.REFUSED)
        assert watched.next_look is Look.METRICS


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"Internal Server Error", "metrics: answered 500"),
        (404, b"", "metrics: answered 404"),
        (200, b"", "vllm:num_requests_running, vllm:num_requests_waiting are missing from /metrics"),
        (
            200,
            (RECORDED / "log_stats_disabled.txt").read_bytes(),
            "vllm:num_requests_running, vllm:num_requests_waiting are missing from /metrics",
        ),
        (200, b'vllm:num_requests_running{engine="0"} 0\n', "vllm:num_requests_waiting is missing from /metrics"),
    ],
)
def test_hl_07_no_signal_is_unknown_with_its_reason_and_falls_back_to_health(status: int, body: bytes, words: str):
    watched = Watched(expected_up=True)
    for _ in range(100):
        watched.now_ms += 5000
        observation = read_answer(Look.METRICS, status, body, took_ms=3)
        watched.see(Look.METRICS, status=observation.status, page=observation.page)
        assert (watched.verdict, watched.next_look) == (Verdict.UNKNOWN, Look.HEALTH)
        judgement = watched.health(200)
        assert judgement.verdict is Verdict.UNKNOWN
        assert judgement.evidence == f"{words}; /health answers 200"
        assert judgement.placement is Placement.LAST_RESORT
    assert Look.SHORT_ANSWER not in watched.asked, "nobody knows whether it is idle"


def test_hl_08_one_stuck_engine_of_several_is_hung_by_its_own_label():
    watched = Watched()
    watched.read(recorded("two_engines_1"))
    watched.read(recorded("two_engines_2"))
    assert watched.verdict is Verdict.SUSPECT
    assert watched.judgement.evidence.startswith("engine 1: 5 running; nothing moved in 5.0 s (steps stand at 6100)")
    for turn in range(20):
        watched.read(page(engine("0", running=3, steps=8000 + turn), engine("1", running=5, steps=6100)))
        if watched.next_look is Look.PAUSED:
            break
    assert watched.paused().evidence.startswith("engine 1: 5 running; nothing moved in")


def test_hl_08_an_idle_engine_beside_a_busy_one_may_stand_still():
    watched = Watched()
    for turn in range(50):
        watched.read(page(engine("0", running=3, steps=8000 + turn), engine("1", steps=6100)))
        assert watched.verdict is Verdict.BUSY
    assert watched.judgement.evidence == "engine 0: 3 running; 1 steps in 5.0 s"
    assert watched.next_look is Look.METRICS


def test_hl_08_two_busy_engines_are_both_in_the_evidence():
    watched = Watched()
    for turn in range(2):
        watched.read(page(engine("0", running=3, steps=turn), engine("1", running=1, steps=2 * turn)))
    assert watched.judgement.evidence == "engine 0: 3 running; 1 steps in 5.0 s, engine 1: 1 running; 2 steps in 5.0 s"


def test_hl_09_a_paused_engine_is_paused_where_it_can_be_asked():
    watched = Watched()
    still = page(running=4)
    watched.read(still)
    watched.stand_still(still, seconds=100)
    assert watched.paused(True).verdict is Verdict.PAUSED
    for _ in range(100):
        watched.read(still)
        if watched.next_look is Look.PAUSED:
            watched.paused(True)
        assert watched.verdict is Verdict.PAUSED
    assert watched.read(page(running=4, steps=501)).verdict is Verdict.BUSY


def test_hl_10_slow_is_not_hung():
    watched = Watched()
    for turn in range(12):
        watched.read(page(running=1, waiting=14, steps=500 + 27 * turn), after_s=300)
        assert watched.verdict is Verdict.BUSY


def test_hl_11_an_engine_error_and_then_a_refused_connection_is_dead_whatever_the_exit_status():
    watched = Watched()
    watched.read(page(running=1))
    watched.read(page(running=1))
    assert watched.health(503).placement is Placement.WITHHELD
    assert watched.judgement.cause is Cause.ENGINE_DEAD
    assert (watched.fail(Outcome.REFUSED).verdict, watched.judgement.cause) == (Verdict.DEAD, Cause.CONNECTION_REFUSED)


def test_k8_06_a_silent_replica_does_not_look_idle():
    watched = Watched()
    watched.settle_idle(page())
    for _ in range(12):
        watched.fail(Outcome.CONNECT_TIMEOUT)
    assert (watched.verdict, watched.judgement.placement) == (Verdict.UNKNOWN, Placement.WITHHELD)


def test_k8_06_an_address_that_was_used_again_is_another_process():
    watched = Watched()
    watched.settle_idle(page(steps=9000))
    watched.read(page(engine(model="other", steps=3), started=1764429999.0))
    assert (watched.verdict, watched.judgement.placement) == (Verdict.RESTARTED, Placement.WITHHELD)


def test_k8_06_another_model_without_start_time_is_another_process():
    watched = Watched()
    watched.read(page(started=None, steps=9000))
    assert watched.read(page(engine(model="other", steps=9001), started=None)).verdict is Verdict.RESTARTED


def test_k8_07_a_port_that_is_not_open_yet_is_starting_for_as_long_as_it_takes():
    watched = Watched()
    for _ in range(96):
        judgement = watched.fail(Outcome.REFUSED)
        assert (judgement.verdict, judgement.placement) == (Verdict.STARTING, Placement.WITHHELD)
    assert judgement.evidence == "nothing has answered yet, for 480 s; metrics: connection refused"
    assert watched.read(page()).verdict is Verdict.IDLE
    assert watched.fail(Outcome.REFUSED).verdict is Verdict.DEAD


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.CONNECT_TIMEOUT, Outcome.READ_TIMEOUT, Outcome.CLOSED])
def test_k8_07_no_failure_before_the_first_answer_is_more_than_starting(outcome: Outcome):
    watched = Watched()
    assert watched.fail(outcome).verdict is Verdict.STARTING


def test_r26_the_seeds_own_reading():
    """Its first live run: 2 requests in flight, 107 new steps between two readings, and no request sent."""
    watched = Watched(settings=impatient(interval_ms=10_000, stale_after_ms=30_000))
    watched.read(read_page((RECORDED / "busy_1.txt").read_bytes()))
    assert watched.read(recorded("busy_2"), after_s=10).evidence == "2 running; 107 steps in 10 s"
    assert set(watched.asked) == {Look.METRICS}
