"""Each verdict and each way between them (R20-R26)."""

from dataclasses import replace

import pytest

from extproc.decision.findings import History
from extproc.decision.health import current
from extproc.decision.looks import Look, Outcome
from extproc.decision.verdicts import PLACEMENT, Cause, HealthSettings, Knowledge, Placement, Verdict, duration
from tests.unit.decision.watched import SETTINGS, Watched, engine, impatient, page, recorded

IDLE = page()
BUSY = page(running=2)


# Busy (R21)


def test_requests_in_flight_and_steps_are_busy_and_nothing_is_asked():
    watched = Watched()
    watched.read(recorded("busy_1"))
    judgement = watched.read(recorded("busy_2"), after_s=10)
    assert (judgement.verdict, judgement.placement) == (Verdict.BUSY, Placement.PREFERRED)
    assert judgement.evidence == "2 running; 107 steps in 10 s"
    assert watched.next_look is Look.METRICS


def test_the_first_reading_of_a_busy_replica_is_busy():
    watched = Watched()
    assert watched.read(BUSY).verdict is Verdict.BUSY
    assert watched.judgement.evidence == "2 running; first reading"
    assert watched.judgement.next.at_ms == watched.now_ms + SETTINGS.interval_ms


def test_waiting_requests_are_work_too():
    watched = Watched()
    watched.read(page(waiting=3))
    assert watched.read(page(waiting=3, steps=501)).evidence == "0 running, 3 waiting; 1 steps in 5.0 s"


@pytest.mark.parametrize(
    "series", ["generated_tokens", "prompt_tokens", "finished_requests", "kv_cache_use", "running", "waiting"]
)
def test_any_series_that_moves_is_progress(series: str):
    watched = Watched()
    watched.read(page(**{"running": 1, "finished_requests": 1}))
    moved = {"running": 1, "finished_requests": 1} | {series: 1000}
    assert watched.read(page(**moved)).verdict is Verdict.BUSY
    assert "nothing moved" not in watched.judgement.evidence


def test_r22_a_lone_long_prompt_in_chunks_is_busy_though_no_step_is_counted():
    watched = Watched(settings=impatient(hung_after_ms=5_000))
    for number in range(1, 6):
        watched.read(recorded(f"chunked_prefill_{number}"), after_s=12)
        assert watched.verdict is Verdict.BUSY
    assert watched.judgement.evidence == "1 running; kv_cache_usage_perc 0.057 -> 0.074 in 12 s"


def test_a_reading_too_soon_after_the_last_is_no_wait():
    watched = Watched()
    watched.read(BUSY)
    assert watched.read(BUSY, after_s=1).evidence == "2 running; nothing moved in 1.0 s"
    assert watched.verdict is Verdict.BUSY


# Idle and its short answer (R21)


def test_an_idle_replica_is_asked_only_after_a_second_reading_agrees():
    watched = Watched()
    watched.read(recorded("idle"))
    assert (watched.verdict, watched.next_look) == (Verdict.IDLE, Look.METRICS)
    watched.read(recorded("idle"))
    assert (watched.verdict, watched.next_look) == (Verdict.IDLE, Look.SHORT_ANSWER)
    assert watched.judgement.next.at_ms == watched.now_ms


def test_the_short_answer_is_part_of_the_evidence():
    watched = Watched()
    assert watched.settle_idle(IDLE).evidence == "nothing runs or waits; a short answer came in 40 ms"
    assert watched.next_look is Look.METRICS
    assert watched.read(IDLE).evidence == "nothing runs or waits; a short answer came in 40 ms 5.0 s ago"


def test_an_idle_replica_is_asked_again_only_once_in_a_while():
    watched = Watched()
    watched.settle_idle(IDLE)
    looks = []
    for _ in range(12):
        watched.read(IDLE)
        looks.append(watched.next_look)
    assert looks == [Look.METRICS] * 11 + [Look.SHORT_ANSWER]


def test_without_start_times_a_third_reading_must_agree_before_anything_is_asked():
    watched = Watched()
    looks = [watched.read(page(started=None)).next.look for _ in range(3)]
    assert looks == [Look.METRICS, Look.METRICS, Look.SHORT_ANSWER]


def test_a_page_without_a_model_name_cannot_be_asked():
    watched = Watched()
    for _ in range(4):
        watched.read(page(engine(model="")))
        assert (watched.verdict, watched.next_look) == (Verdict.IDLE, Look.METRICS)


@pytest.mark.parametrize("status", [400, 401, 404, 409, 302])
def test_a_server_that_refuses_the_question_stays_idle_and_says_so(status: int):
    watched = Watched()
    watched.read(IDLE)
    watched.read(IDLE)
    assert watched.answer(status).verdict is Verdict.IDLE
    assert str(status) in watched.judgement.evidence
    assert watched.read(IDLE).next.look is Look.METRICS


@pytest.mark.parametrize("how", [{"outcome": Outcome.GAVE_WAY}, {"status": 429}])
def test_an_answer_that_gave_way_or_was_queued_out_changes_nothing(how: dict[str, object]):
    watched = Watched()
    watched.read(IDLE)
    before = watched.read(IDLE)
    after = watched.see(Look.SHORT_ANSWER, **how)
    assert (after.verdict, after.evidence, after.next.look) == (before.verdict, before.evidence, Look.METRICS)


def test_no_answer_is_asked_for_while_an_attempt_of_ours_is_there():
    watched = Watched(knowledge=Knowledge(attempts_in_flight=1))
    for _ in range(2):
        watched.read(IDLE)
        assert watched.next_look is not Look.SHORT_ANSWER
        assert "1 of our attempts" in watched.judgement.evidence


def test_r27_an_answer_with_an_error_is_unknown_and_never_leads_to_hung():
    watched = Watched()
    watched.settle_idle(IDLE)
    for _ in range(200):
        watched.read(IDLE)
        if watched.next_look is Look.SHORT_ANSWER:
            assert watched.answer(500).verdict is Verdict.UNKNOWN
            assert "never count towards a restart" in watched.judgement.evidence
            watched.health(200)
            assert (watched.verdict, watched.judgement.placement) == (Verdict.UNKNOWN, Placement.LAST_RESORT)
        assert watched.verdict in (Verdict.IDLE, Verdict.UNKNOWN)
    assert watched.verdict is Verdict.UNKNOWN


# Hung (R21, R23)


def test_two_waits_and_the_grace_are_needed_before_hung():
    watched = Watched()
    watched.read(BUSY)
    first = watched.read(BUSY)
    assert (first.verdict, first.placement, first.next.look) == (Verdict.SUSPECT, Placement.LAST_RESORT, Look.HEALTH)
    assert first.evidence == "2 running; nothing moved in 5.0 s (steps stand at 500) (hung after 2 waits and 60 s)"
    watched.health()
    assert watched.verdict is Verdict.SUSPECT
    watched.stand_still(BUSY, seconds=100)
    assert (watched.verdict, watched.next_look) == (Verdict.SUSPECT, Look.PAUSED)
    hung = watched.paused()
    assert (hung.verdict, hung.cause, hung.placement) == (Verdict.HUNG, Cause.ENGINE_STANDS_STILL, Placement.WITHHELD)
    assert hung.evidence == "2 running; nothing moved in 60 s (steps stand at 500)"


def test_a_single_wait_is_never_enough_however_long():
    watched = Watched()
    watched.read(BUSY)
    assert watched.read(BUSY, after_s=3600).verdict is Verdict.SUSPECT
    assert watched.next_look is Look.HEALTH


def test_a_pause_shorter_than_the_grace_is_forgiven():
    watched = Watched()
    watched.read(BUSY)
    watched.stand_still(BUSY, seconds=55)
    assert watched.verdict is Verdict.SUSPECT
    assert watched.read(page(running=2, steps=501)).verdict is Verdict.BUSY
    assert watched.read(page(running=2, steps=501)).evidence.startswith("2 running; nothing moved in 5.0 s")


def test_hung_stands_until_something_moves():
    watched = Watched()
    watched.hang(BUSY)
    assert (watched.read(BUSY).verdict, watched.next_look) == (Verdict.HUNG, Look.METRICS)
    assert watched.read(page(running=2, steps=502)).verdict is Verdict.BUSY


@pytest.mark.parametrize("outcome", [Outcome.READ_TIMEOUT, Outcome.CONNECT_TIMEOUT, Outcome.CLOSED, Outcome.UNREACHABLE])
def test_a_failed_reading_does_not_undo_the_proof(outcome: Outcome):
    watched = Watched()
    watched.hang(BUSY)
    since_ms, proved_ms = watched.judgement.since_ms, watched.judgement.at_ms
    judgement = watched.fail(outcome)
    assert judgement.at_ms == proved_ms, "kept, but not confirmed again"
    assert (judgement.verdict, judgement.cause, judgement.since_ms) == (Verdict.HUNG, Cause.ENGINE_STANDS_STILL, since_ms)
    assert watched.read(page(steps=500, running=2), after_s=5).verdict is Verdict.HUNG


def test_a_hung_replica_that_became_idle_must_answer_first():
    watched = Watched(knowledge=Knowledge(attempts_in_flight=1))
    watched.read(IDLE)
    watched.stand_still(IDLE, seconds=100)
    assert watched.paused().cause is Cause.ATTEMPT_UNHEARD
    watched.knowledge = Knowledge(attempts_in_flight=0)
    watched.read(IDLE)
    assert (watched.verdict, watched.next_look) == (Verdict.UNKNOWN, Look.SHORT_ANSWER)
    assert watched.judgement.evidence == "was hung, and has not answered since; nothing runs or waits"
    assert watched.answer().verdict is Verdict.IDLE


@pytest.mark.parametrize("name", ["steps", "kv_cache_use"])
def test_without_the_series_that_move_standing_still_is_unknown_with_the_name(name: str):
    watched = Watched()
    still = page(running=1, **{name: None})
    watched.read(still)
    end = watched.now_ms + 200_000
    while watched.now_ms < end:
        watched.read(still)
        watched.health()
        assert watched.next_look is Look.METRICS
    assert watched.verdict is Verdict.UNKNOWN
    assert watched.judgement.placement is Placement.LAST_RESORT
    assert f"no proof of a hang without vllm:{'kv_cache_usage_perc' if name == 'kv_cache_use' else 'iteration_tokens'}" in (
        watched.judgement.evidence
    )


# What the gateway knows itself


def test_output_that_reached_us_is_movement_whatever_the_gauges_say():
    watched = Watched()
    watched.read(BUSY)
    for _ in range(40):
        watched.with_knowledge(1, output_ago_s=-4)
        assert watched.read(BUSY).verdict is Verdict.BUSY
    watched.with_knowledge(1, output_ago_s=0)
    watched.stand_still(BUSY, seconds=100)
    assert watched.paused().verdict is Verdict.HUNG


def test_output_of_one_engine_does_not_excuse_another():
    watched = Watched()
    still = page(engine("0", running=1), engine("1", running=1))
    watched.read(still)
    for _ in range(3):
        watched.with_knowledge(2, output_ago_s=-4)
        assert watched.read(still).verdict is Verdict.SUSPECT


def test_gauges_that_froze_after_a_mass_cancel_are_never_hung_while_nobody_of_ours_is_there():
    watched = Watched(knowledge=Knowledge(attempts_in_flight=0))
    watched.read(page(running=4))
    for _ in range(100):
        judgement = watched.read(page(running=4))
        assert (judgement.verdict, judgement.placement) == (Verdict.SUSPECT, Placement.LAST_RESORT)
        watched.health()
    assert "gauges freeze after a mass cancel" in judgement.evidence


def test_patience_starts_anew_when_somebody_of_ours_arrives_at_frozen_gauges():
    watched = Watched(knowledge=Knowledge(attempts_in_flight=0))
    watched.read(page(running=4))
    watched.stand_still(page(running=4), seconds=600)
    watched.with_knowledge(1)
    arrived_ms = watched.now_ms
    watched.stand_still(page(running=4), seconds=50)
    assert watched.verdict is Verdict.SUSPECT
    watched.stand_still(page(running=4), seconds=20)
    assert watched.paused().verdict is Verdict.HUNG
    assert watched.now_ms - arrived_ms >= SETTINGS.hung_after_ms


def test_the_proof_outlives_those_who_suffered_from_it():
    watched = Watched(knowledge=Knowledge(attempts_in_flight=2))
    watched.hang(BUSY)
    watched.with_knowledge(0)
    for _ in range(5):
        assert watched.read(BUSY).verdict is Verdict.HUNG


def test_an_attempt_that_hears_nothing_from_an_idle_looking_engine_proves_a_hang():
    watched = Watched(knowledge=Knowledge(attempts_in_flight=1))
    assert watched.read(IDLE).verdict is Verdict.BUSY
    watched.stand_still(IDLE, seconds=100)
    judgement = watched.paused()
    assert (judgement.verdict, judgement.cause) == (Verdict.HUNG, Cause.ATTEMPT_UNHEARD)
    assert judgement.evidence == "0 running by its metrics, yet 1 of our attempts wait there; nothing moved or came in 60 s"
    assert Look.SHORT_ANSWER not in watched.asked


def test_attempts_that_come_and_go_are_no_hang():
    watched = Watched()
    watched.settle_idle(IDLE)
    for turn in range(60):
        watched.with_knowledge(turn % 2)
        assert watched.read(IDLE).verdict in (Verdict.IDLE, Verdict.BUSY)
        if watched.next_look is Look.SHORT_ANSWER:
            watched.answer()


# An idle engine that does not answer


def test_an_idle_engine_that_owes_its_answer_becomes_suspect_then_hung():
    watched = Watched()
    watched.read(IDLE)
    watched.read(IDLE)
    assert watched.let_answer_time_out().verdict is Verdict.SUSPECT
    seen = []
    while watched.next_look is not Look.PAUSED:
        if watched.next_look is Look.SHORT_ANSWER:
            watched.let_answer_time_out()
        else:
            watched.read(IDLE, after_s=1)
        seen.append(watched.verdict)
    assert set(seen) == {Verdict.SUSPECT}
    hung = watched.paused()
    assert (hung.verdict, hung.cause) == (Verdict.HUNG, Cause.NO_ANSWER_WHEN_IDLE)
    assert "short answers did not come" in hung.evidence
    watched.read(IDLE)
    assert (watched.verdict, watched.next_look) == (Verdict.HUNG, Look.SHORT_ANSWER)
    assert watched.let_answer_time_out().verdict is Verdict.HUNG
    watched.read(IDLE)
    assert watched.answer().verdict is Verdict.IDLE


@pytest.mark.parametrize("later", [page(steps=501), page(running=1), page(running=1, steps=502)])
def test_anything_that_moves_after_a_missing_answer_forgives_it(later: object):
    watched = Watched()
    watched.read(IDLE)
    watched.read(IDLE)
    watched.let_answer_time_out()
    watched.read(later)
    assert watched.verdict in (Verdict.IDLE, Verdict.BUSY)


def test_one_missing_answer_is_forgiven_by_the_next():
    watched = Watched()
    watched.read(IDLE)
    watched.read(IDLE)
    watched.let_answer_time_out()
    watched.read(IDLE)
    assert watched.answer().verdict is Verdict.IDLE
    assert watched.read(IDLE).verdict is Verdict.IDLE


@pytest.mark.parametrize("outcome", [Outcome.CLOSED, Outcome.CONNECT_TIMEOUT, Outcome.UNREACHABLE])
def test_a_broken_question_is_unknown(outcome: Outcome):
    watched = Watched()
    watched.read(IDLE)
    watched.read(IDLE)
    assert watched.fail(outcome, look=Look.SHORT_ANSWER, after_s=0).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("took_s", "pause_ms"), [(1, 4_000), (10, 5_000)])
def test_a_question_that_took_longer_than_the_interval_is_followed_by_a_pause(took_s: float, pause_ms: int):
    """One replica is asked at a time: one that never answers would be asked all the time, and the others never."""
    watched = Watched()
    watched.read(IDLE)
    watched.read(IDLE)
    watched.fail(Outcome.READ_TIMEOUT, look=Look.SHORT_ANSWER, after_s=took_s)
    assert watched.next_look is Look.METRICS
    assert watched.judgement.next.at_ms == watched.now_ms + pause_ms


# Restarted (R24)


def test_r24_another_start_time_asks_for_an_answer_and_compares_no_counters():
    watched = Watched()
    watched.settle_idle(recorded("idle"))
    watched.read(recorded("restarted"))
    assert (watched.verdict, watched.judgement.placement, watched.next_look) == (
        Verdict.RESTARTED,
        Placement.WITHHELD,
        Look.METRICS,
    )
    watched.read(recorded("restarted"))
    assert (watched.verdict, watched.next_look) == (Verdict.RESTARTED, Look.SHORT_ANSWER)
    assert watched.answer().verdict is Verdict.IDLE
    assert watched.read(recorded("restarted")).verdict is Verdict.IDLE


def test_a_restarted_replica_with_work_is_judged_by_its_own_progress():
    watched = Watched()
    watched.read(page(running=2, steps=9000))
    watched.read(page(running=1, steps=3, started=STARTED_LATER))
    assert watched.verdict is Verdict.RESTARTED
    assert watched.judgement.evidence == (
        "another process than at the last reading; 1 running; first reading, progress is judged at the next reading"
    )
    assert watched.read(page(running=1, steps=40, started=STARTED_LATER)).verdict is Verdict.BUSY


def test_a_restarted_replica_gets_the_whole_patience_again():
    watched = Watched()
    watched.read(BUSY)
    watched.stand_still(BUSY, seconds=55)
    later = page(running=1, started=STARTED_LATER)
    watched.read(later)
    assert watched.verdict is Verdict.RESTARTED
    watched.stand_still(later, seconds=50)
    assert watched.verdict is Verdict.SUSPECT


STARTED_LATER = 1764421200.53 + 3600


# Dead, starting, unknown


def test_a_refused_connection_is_dead_once_it_has_answered():
    watched = Watched()
    watched.read(BUSY)
    judgement = watched.fail(Outcome.REFUSED)
    assert (judgement.verdict, judgement.cause, judgement.placement) == (
        Verdict.DEAD,
        Cause.CONNECTION_REFUSED,
        Placement.WITHHELD,
    )
    assert judgement.evidence == "metrics: connection refused"


def test_a_replica_that_is_expected_to_be_up_is_dead_at_once():
    watched = Watched(expected_up=True)
    assert watched.verdict is Verdict.UNKNOWN
    assert watched.fail(Outcome.REFUSED).verdict is Verdict.DEAD


def test_a_refused_short_answer_is_dead_too():
    watched = Watched()
    watched.read(IDLE)
    watched.read(IDLE)
    assert watched.fail(Outcome.REFUSED, look=Look.SHORT_ANSWER, after_s=0).verdict is Verdict.DEAD


def test_a_timed_out_reading_is_unknown_and_a_last_resort_while_the_last_one_is_fresh():
    watched = Watched()
    watched.read(BUSY)
    assert watched.fail(Outcome.READ_TIMEOUT).verdict is Verdict.UNKNOWN
    assert watched.judgement.placement is Placement.LAST_RESORT
    assert watched.judgement.evidence == "metrics: no answer within the time limit"
    for _ in range(4):
        watched.fail(Outcome.READ_TIMEOUT)
    assert (watched.verdict, watched.judgement.placement) == (Verdict.UNKNOWN, Placement.WITHHELD)
    assert watched.read(page(running=2, steps=700)).verdict is Verdict.BUSY


def test_a_dead_replica_that_times_out_later_is_no_last_resort():
    watched = Watched()
    watched.read(BUSY)
    watched.fail(Outcome.REFUSED)
    assert watched.fail(Outcome.CONNECT_TIMEOUT).placement is Placement.WITHHELD


def test_a_starting_server_with_errors_stays_starting_until_its_health_answers():
    watched = Watched()
    watched.now_ms += 1000
    watched.see(Look.METRICS, status=503)
    assert (watched.verdict, watched.next_look) == (Verdict.STARTING, Look.HEALTH)
    assert watched.health(503).verdict is Verdict.STARTING
    watched.now_ms += 5000
    watched.see(Look.METRICS, status=503)
    assert watched.health(404).verdict is Verdict.STARTING
    watched.now_ms += 5000
    watched.see(Look.METRICS, status=404)
    assert watched.health(200).verdict is Verdict.UNKNOWN


def test_health_that_refuses_is_dead():
    watched = Watched()
    watched.read(BUSY)
    watched.read(BUSY)
    assert watched.fail(Outcome.REFUSED, look=Look.HEALTH, after_s=0).verdict is Verdict.DEAD


def test_unknown_without_a_healthy_health_is_withheld_once_stale():
    watched = Watched()
    watched.read(BUSY)
    watched.now_ms += 5000
    watched.see(Look.METRICS, status=500)
    assert watched.judgement.placement is Placement.LAST_RESORT
    watched.health(200)
    watched.now_ms += 25_000
    watched.see(Look.METRICS, status=500)
    assert watched.judgement.placement is Placement.LAST_RESORT
    assert watched.fail(Outcome.READ_TIMEOUT, look=Look.HEALTH, after_s=1).placement is Placement.WITHHELD


def test_one_look_that_times_out_withholds_no_server_that_only_its_health_speaks_for():
    """One without metrics, as ``--disable-log-stats`` makes it (HL-07)."""
    watched = Watched()
    watched.see(Look.METRICS, status=404)
    watched.health(200)
    assert watched.fail(Outcome.READ_TIMEOUT).placement is Placement.LAST_RESORT
    assert watched.fail(Outcome.READ_TIMEOUT, after_s=16).placement is Placement.WITHHELD


def test_unknown_is_a_last_resort_for_as_long_as_our_tokens_still_come():
    """A page that times out for minutes on a server that streams to us: slow is not dead (R5)."""
    watched = Watched()
    watched.read(BUSY)
    for _ in range(60):
        watched.with_knowledge(1, output_ago_s=-4)
        judgement = watched.fail(Outcome.READ_TIMEOUT)
        assert (judgement.verdict, judgement.placement) == (Verdict.UNKNOWN, Placement.LAST_RESORT)
    heard_at_ms = watched.now_ms
    while watched.judgement.placement is Placement.LAST_RESORT:
        watched.fail(Outcome.READ_TIMEOUT, after_s=1)
    assert watched.now_ms - heard_at_ms in range(SETTINGS.stale_after_ms, SETTINGS.stale_after_ms + 2_000)


def test_tokens_do_not_lift_what_was_withheld_for_another_reason():
    """They may be of the process before."""
    watched = Watched()
    watched.settle_idle(IDLE)
    watched.read(page(started=STARTED_LATER))
    assert watched.verdict is Verdict.RESTARTED
    watched.with_knowledge(1, output_ago_s=0)
    assert watched.fail(Outcome.READ_TIMEOUT).placement is Placement.WITHHELD


# Paused (HL-09)


def test_a_sleeping_engine_is_paused_and_asked_nothing():
    watched = Watched()
    for _ in range(50):
        watched.read(recorded("asleep"))
        assert (watched.verdict, watched.next_look) == (Verdict.PAUSED, Look.METRICS)
    assert watched.judgement.placement is Placement.WITHHELD
    watched.read(recorded("idle"))
    assert watched.verdict is Verdict.IDLE


def test_a_paused_engine_without_work_stays_paused_while_it_answers_nothing():
    watched = Watched()
    watched.read(IDLE)
    watched.read(IDLE)
    seen = []
    while len(seen) < 60:
        match watched.next_look:
            case Look.SHORT_ANSWER:
                watched.let_answer_time_out()
            case Look.PAUSED:
                watched.paused(True)
            case Look.HEALTH:
                watched.health()
            case _:
                watched.read(IDLE, after_s=1)
        seen.append(watched.verdict)
    begins = seen.index(Verdict.PAUSED)
    assert set(seen[:begins]) == {Verdict.SUSPECT}
    assert set(seen[begins:]) == {Verdict.PAUSED}


def test_a_pause_that_ended_in_a_hang_is_hung():
    watched = Watched()
    watched.read(BUSY)
    watched.stand_still(BUSY, seconds=100)
    assert watched.paused(True).verdict is Verdict.PAUSED
    watched.stand_still(BUSY, seconds=100)
    assert (watched.verdict, watched.next_look) == (Verdict.PAUSED, Look.PAUSED)
    assert watched.paused(False).verdict is Verdict.HUNG


def test_an_unasked_word_about_a_pause_changes_nothing():
    watched = Watched()
    before = watched.read(BUSY)
    assert watched.see(Look.PAUSED, paused=True).verdict is before.verdict


# Proxies (R25)


def test_r25_a_declared_proxy_is_asked_for_its_models_only():
    watched = Watched(is_proxy=True)
    assert watched.next_look is Look.MODELS
    watched.see(Look.MODELS, models=2)
    assert (watched.verdict, watched.judgement.placement) == (Verdict.REACHABLE, Placement.PREFERRED)
    for how in ({"status": 500}, {"status": 200}, {"status": 404}):
        watched.now_ms += 5000
        watched.see(Look.MODELS, **how)
        assert watched.verdict is Verdict.UNKNOWN
        assert watched.next_look is Look.MODELS
    assert watched.fail(Outcome.READ_TIMEOUT, look=Look.MODELS).verdict is Verdict.UNKNOWN
    assert watched.fail(Outcome.REFUSED, look=Look.MODELS).verdict is Verdict.DEAD
    assert set(watched.asked) == {Look.MODELS}


def test_r25_start_times_that_go_back_and_forth_reveal_a_proxy():
    watched = Watched()
    backends = [page(started=100.0, running=1), page(started=200.0)]
    watched.read(backends[0])
    watched.read(backends[1])
    assert (watched.verdict, watched.next_look) == (Verdict.RESTARTED, Look.METRICS)
    watched.read(backends[0])
    assert (watched.verdict, watched.next_look) == (Verdict.UNKNOWN, Look.MODELS)
    watched.see(Look.MODELS, models=1)
    watched.now_ms += 5000
    assert (watched.verdict, watched.next_look) == (Verdict.REACHABLE, Look.MODELS)
    assert Look.SHORT_ANSWER not in watched.asked


def test_r25_counters_that_go_back_twice_reveal_a_proxy_without_start_times():
    watched = Watched()
    for steps in (9000, 12, 9010):
        watched.read(page(started=None, steps=steps))
        assert watched.next_look is Look.METRICS
    watched.read(page(started=None, steps=14))
    assert (watched.verdict, watched.next_look) == (Verdict.UNKNOWN, Look.MODELS)


# The engine that says itself that it is dead (HL-11)


def test_an_engine_that_says_it_is_dead_stays_dead_until_it_says_otherwise():
    watched = Watched()
    watched.read(BUSY)
    watched.read(BUSY)
    assert (watched.health(503).verdict, watched.judgement.cause) == (Verdict.DEAD, Cause.ENGINE_DEAD)
    for _ in range(3):
        watched.read(BUSY)
        assert watched.health(503).verdict is Verdict.DEAD
    watched.fail(Outcome.READ_TIMEOUT)
    assert (watched.verdict, watched.judgement.cause) == (Verdict.DEAD, Cause.ENGINE_DEAD)
    watched.read(BUSY)
    assert watched.health(200).verdict is Verdict.RESTARTED
    watched.read(IDLE)
    assert watched.read(IDLE).verdict is Verdict.IDLE


def test_a_dead_engine_that_was_replaced_is_restarted():
    watched = Watched()
    watched.read(BUSY)
    watched.read(BUSY)
    watched.health(503)
    dead_since_ms = watched.judgement.since_ms
    watched.fail(Outcome.REFUSED)
    assert watched.judgement.since_ms > dead_since_ms, "another cause is another spell"
    assert watched.read(page(started=STARTED_LATER)).verdict is Verdict.RESTARTED


# Time


def test_a_judgement_that_nobody_confirmed_becomes_unknown():
    watched = Watched()
    judgement = watched.read(BUSY)
    assert current(judgement, SETTINGS, watched.now_ms + 20_000) is judgement
    stale = current(judgement, SETTINGS, watched.now_ms + 20_001)
    assert (stale.verdict, stale.placement) == (Verdict.UNKNOWN, Placement.WITHHELD)
    assert stale.evidence == "not looked at for 20 s; was busy: 2 running; first reading"
    assert stale.since_ms == watched.now_ms + 20_000


def test_a_withheld_judgement_does_not_go_stale():
    watched = Watched()
    hung = watched.hang(BUSY)
    assert current(hung, SETTINGS, watched.now_ms + 10**9) is hung


def test_since_is_when_the_verdict_began():
    watched = Watched()
    began = watched.read(BUSY)
    later = watched.read(page(running=2, steps=900))
    assert (later.since_ms, later.at_ms) == (began.at_ms, watched.now_ms)


def test_every_verdict_has_its_placement():
    assert set(PLACEMENT) == set(Verdict)
    assert {verdict for verdict, placement in PLACEMENT.items() if placement is Placement.PREFERRED} == {
        Verdict.IDLE,
        Verdict.BUSY,
        Verdict.REACHABLE,
    }
    watched = Watched()
    assert not watched.judgement.is_placeable
    assert watched.read(BUSY).is_placeable


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_ms": 0},
        {"waits_min": 0},
        {"answer_deadline_ms": 0},
        {"answer_every_ms": -1},
        {"hung_after_ms": 4_999},
        {"stale_after_ms": 4_999},
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, int]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(HealthSettings(), **wrong)


def test_a_new_history_looks_at_once():
    history = History.begin(5)
    assert (history.judgement.verdict, history.judgement.next.look, history.judgement.next.at_ms) == (
        Verdict.STARTING,
        Look.METRICS,
        5,
    )


@pytest.mark.parametrize(("ms", "words"), [(40, "40 ms"), (9_999, "10.0 s"), (65_200, "65 s"), (600_000, "10 min")])
def test_times_are_said_in_the_unit_that_people_use(ms: int, words: str):
    assert duration(ms) == words


def test_no_more_is_asked_of_an_engine_that_owes_an_answer_once_real_work_arrived():
    watched = Watched()
    watched.read(IDLE)
    watched.read(IDLE)
    watched.let_answer_time_out()
    watched.with_knowledge(1)
    watched.read(IDLE)
    assert (watched.verdict, watched.next_look) == (Verdict.SUSPECT, Look.HEALTH)
