"""Whatever is observed in whatever order, some things never happen."""

import json
from collections.abc import Iterator

from hypothesis import event, given, settings
from hypothesis import strategies as st

from extproc.decision.exposition import Page
from extproc.decision.findings import History
from extproc.decision.health import current, judge
from extproc.decision.health_report import encode_history
from extproc.decision.looks import Look, Observation, Outcome
from extproc.decision.verdicts import Cause, Judgement, Knowledge, Placement, Verdict
from tests.unit.decision.watched import SETTINGS, engine, page

ENGINES = st.lists(
    st.builds(
        lambda label, running, waiting, steps, kv, awake: engine(
            label, running=running, waiting=waiting, steps=steps, kv_cache_use=kv, awake=awake
        ),
        label=st.sampled_from("01"),
        running=st.sampled_from([0, 0, 1, None]),
        waiting=st.sampled_from([0, 0, 3]),
        steps=st.sampled_from([500, 500, 500, 501, None]),
        kv=st.sampled_from([0.0, 0.0, 0.1, None]),
        awake=st.sampled_from([1, 1, 1, 0, None]),
    ),
    max_size=2,
    unique_by=lambda reading: reading.engine,
)
PAGES = st.builds(
    lambda engines, started: Page(started_at_s=started, engines=tuple(engines)), ENGINES, st.sampled_from([1.0, 1.0, 2.0, None])
)
STILL = st.sampled_from([page(running=1, started=1.0), page(started=1.0), page(running=1, started=None), page(started=None)])
FAILURES = st.sampled_from(sorted(set(Outcome) - {Outcome.ANSWERED}))
STATUSES = st.sampled_from([200, 200, 200, 302, 404, 429, 500, 503])
KNOWLEDGE = st.none() | st.builds(
    Knowledge, attempts_in_flight=st.integers(0, 2), last_output_at_ms=st.none() | st.integers(0, 3_000_000)
)


@st.composite
def observations(draw: st.DrawFn, look: Look) -> Observation:
    if draw(st.integers(0, 5)) == 0:
        return Observation(look=look, outcome=draw(FAILURES), took_ms=draw(st.integers(0, 10_000)))
    status = draw(STATUSES)
    ok = status == 200
    return Observation(
        look=look,
        outcome=Outcome.ANSWERED,
        status=status,
        page=draw(STILL | STILL | STILL | PAGES) if ok and look is Look.METRICS else None,
        models=draw(st.none() | st.integers(0, 3)) if ok and look is Look.MODELS else None,
        paused=draw(st.none() | st.booleans()) if ok and look is Look.PAUSED else None,
    )


def play(data: st.DataObject, *, is_proxy: bool) -> Iterator[tuple[History, Observation, History, Judgement, int]]:
    """Take the looks that are asked for, and now and then one that is not."""
    now_ms = 1_000_000
    history = History.begin(now_ms, is_proxy=is_proxy, expected_up=data.draw(st.booleans()))
    for _ in range(data.draw(st.integers(1, 60))):
        now_ms = max(now_ms + data.draw(st.sampled_from([0, 0, 5_000, 40_000])), history.judgement.next.at_ms)
        observation = data.draw(observations(history.judgement.next.look))
        before = history
        history, judgement = judge(history, observation, SETTINGS, now_ms, data.draw(KNOWLEDGE))
        yield before, observation, history, judgement, now_ms


@given(st.data(), st.booleans())
@settings(max_examples=120, deadline=None)
def test_what_never_happens(data: st.DataObject, is_proxy: bool):
    for before, observation, history, judgement, now_ms in play(data, is_proxy=is_proxy):
        was = before.judgement
        event(judgement.verdict)
        assert judgement is history.judgement
        assert judgement.evidence
        assert judgement.at_ms <= now_ms <= judgement.next.at_ms
        assert judgement.since_ms <= now_ms
        assert (judgement.cause is not None) == (judgement.verdict in (Verdict.HUNG, Verdict.DEAD))
        if judgement.next.look is Look.SHORT_ANSWER:
            assert observation.look is Look.METRICS, "only a reading of just now shows that it is idle"
            assert observation.page is not None
            assert observation.page.in_flight == 0
        if history.is_proxy:
            assert judgement.next.look is Look.MODELS
            assert judgement.verdict is not Verdict.HUNG
        if judgement.verdict is Verdict.HUNG and was.verdict is not Verdict.HUNG:
            assert observation.look is Look.PAUSED
            assert before.proof is not None
            assert before.proof.track.proof_waits >= SETTINGS.waits_min
        if judgement.verdict in (Verdict.HUNG, Verdict.DEAD, Verdict.STARTING, Verdict.PAUSED, Verdict.RESTARTED):
            assert judgement.placement is Placement.WITHHELD
        if judgement.cause is Cause.CONNECTION_REFUSED and was.cause is not Cause.CONNECTION_REFUSED:
            assert observation.outcome is Outcome.REFUSED
        if before.has_answered:
            assert judgement.verdict is not Verdict.STARTING
        assert current(judgement, SETTINGS, now_ms).placement is judgement.placement or now_ms - judgement.at_ms > 20_000
        json.dumps(encode_history(history, now_ms))
