"""What /verdict and --json show."""

import json

from extproc.decision.health_report import encode_history, encode_judgement, encode_record
from extproc.decision.liveness import Demand, Record
from extproc.decision.looks import Outcome
from extproc.decision.verdicts import Verdict
from tests.unit.decision.watched import Watched, engine, page


def test_a_judgement_tells_times_relative_to_now():
    watched = Watched()
    watched.read(page(running=2))
    judgement = watched.read(page(running=2, steps=607))
    assert encode_judgement(judgement, watched.now_ms + 1_500) == {
        "verdict": "busy",
        "evidence": "2 running; 107 steps in 5.0 s",
        "cause": None,
        "placement": "preferred",
        "for_s": 6.5,
        "judged_s_ago": 1.5,
        "next": {"look": "metrics", "in_s": 3.5},
    }


def test_both_readings_and_what_moved_between_them_are_shown():
    watched = Watched()
    watched.read(page(running=2))
    watched.read(page(engine(running=2, steps=607), engine("1")))
    document = encode_history(watched.history, watched.now_ms)
    assert [reading["s_ago"] for reading in document["readings"]] == [5.0, 0.0]
    assert document["readings"][1]["engines"][0]["iteration_tokens_total_count"] == 607
    assert document["between"] == [{"engine": "0", "load": "2 running", "moved": "107 steps"}]
    json.dumps(document)


def test_a_history_without_readings_has_none_to_show():
    watched = Watched()
    watched.fail(Outcome.REFUSED)
    document = encode_history(watched.history, watched.now_ms)
    assert (document["verdict"], document["readings"], document["between"]) == ("starting", [], [])


def test_the_cause_of_a_proof_is_named():
    watched = Watched(expected_up=True)
    assert encode_judgement(watched.fail(Outcome.REFUSED), watched.now_ms)["cause"] == "connection_refused"


def test_the_record_keeps_its_evidence():
    demand = Demand(at_ms=1_000, since_ms=0, number=0, verdict=Verdict.HUNG, evidence="nothing moved")
    assert encode_record(Record(demands=(demand,)), 61_000) == [{"s_ago": 60.0, "verdict": "hung", "evidence": "nothing moved"}]
