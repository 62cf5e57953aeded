"""The request table, every phase against every event, and what must hold along every path (R2, R3, R10, R14)."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.contract.errors import ErrorCode
from extproc.decision.causes import CAUSES, Cause, Failure, Fencing
from extproc.decision.effects import (
    AnswerError,
    CancelAttempt,
    DeliverHeld,
    DoubtReplica,
    Effect,
    FenceAttempt,
    FinishStream,
    InterruptStream,
    Outcome,
    PassAnswer,
    RecordBoundary,
    RecordOutcome,
    RecordRefusal,
    StartAttempt,
)
from extproc.decision.events import (
    EVENT_TYPES,
    AnswerFinished,
    AttemptFailed,
    BoundaryNotRecorded,
    BoundaryRecorded,
    ClientLeft,
    Deadline,
    DeadlinePassed,
    DrainLimitReached,
    Event,
    FenceSettled,
    FirstDeltaArrived,
    Placed,
    RequestRefused,
)
from extproc.decision.gates import Gate, GateFacts
from extproc.decision.policy import Policy
from extproc.decision.replay_cost import ReplayCost
from extproc.decision.request import TABLE, InvariantBroken, Phase, RequestState, step

POLICY = Policy()
FAILURE = Failure(cause=Cause.REPLICA_GONE, evidence="connection closed")
OPEN_GATES = GateFacts(
    fenced=True,
    budget_available=True,
    replay_cost=ReplayCost(prompt_tokens=10),
    client_deadline_left_ms=60_000,
    tool_call_recorded=False,
    candidate=True,
)
SAMPLES: dict[type[Event], Event] = {
    Placed: Placed(candidate=True),
    FirstDeltaArrived: FirstDeltaArrived(),
    BoundaryRecorded: BoundaryRecorded(),
    BoundaryNotRecorded: BoundaryNotRecorded(detail="disk full"),
    AnswerFinished: AnswerFinished(),
    RequestRefused: RequestRefused(status=400),
    AttemptFailed: AttemptFailed(failure=FAILURE),
    FenceSettled: FenceSettled(facts=OPEN_GATES),
    ClientLeft: ClientLeft(),
    DeadlinePassed: DeadlinePassed(deadline=Deadline.TOTAL),
    DrainLimitReached: DrainLimitReached(),
}
STATES = {
    Phase.ADMITTED: RequestState(),
    Phase.PREFILL: RequestState(phase=Phase.PREFILL, attempts=1),
    Phase.FENCING: RequestState(phase=Phase.FENCING, attempts=1, failure=FAILURE),
    Phase.DECODE: RequestState(phase=Phase.DECODE, attempts=1, first_delta_sent=True),
    Phase.ENDED: RequestState(phase=Phase.ENDED, attempts=1, outcome=Outcome.COMPLETED, first_delta_sent=True),
}
A, P, F, D, E = Phase.ADMITTED, Phase.PREFILL, Phase.FENCING, Phase.DECODE, Phase.ENDED
EXPECTED: dict[tuple[Phase, type[Event]], tuple[Phase, list[type[Effect]]]] = {
    (A, Placed): (P, [StartAttempt]),
    (A, ClientLeft): (E, [RecordOutcome]),
    (A, DeadlinePassed): (E, [RecordOutcome, AnswerError]),
    (A, DrainLimitReached): (E, [RecordOutcome, AnswerError]),
    (P, FirstDeltaArrived): (P, [RecordBoundary]),
    (P, BoundaryRecorded): (D, [DeliverHeld]),
    (P, BoundaryNotRecorded): (E, [CancelAttempt, RecordOutcome, AnswerError]),
    (P, RequestRefused): (E, [RecordOutcome, PassAnswer]),
    (P, AttemptFailed): (F, [DoubtReplica, FenceAttempt]),
    (P, ClientLeft): (E, [CancelAttempt, RecordOutcome]),
    (P, DeadlinePassed): (E, [CancelAttempt, RecordOutcome, AnswerError]),
    (P, DrainLimitReached): (E, [CancelAttempt, RecordOutcome, AnswerError]),
    (F, FenceSettled): (P, [StartAttempt]),
    (F, ClientLeft): (E, [CancelAttempt, RecordOutcome]),
    (F, DeadlinePassed): (E, [CancelAttempt, RecordOutcome, AnswerError]),
    (F, DrainLimitReached): (E, [CancelAttempt, RecordOutcome, AnswerError]),
    (D, AnswerFinished): (E, [RecordOutcome, FinishStream]),
    (D, AttemptFailed): (E, [DoubtReplica, CancelAttempt, RecordOutcome, InterruptStream]),
    (D, ClientLeft): (E, [CancelAttempt, RecordOutcome]),
    (D, DeadlinePassed): (E, [CancelAttempt, RecordOutcome, InterruptStream]),
    (D, DrainLimitReached): (E, [CancelAttempt, RecordOutcome, InterruptStream]),
    **{(E, kind): (E, []) for kind in EVENT_TYPES},
}


def test_samples_and_states_cover_everything() -> None:
    assert set(SAMPLES) == set(EVENT_TYPES)
    assert set(STATES) == set(TABLE) == set(Phase)


@pytest.mark.parametrize(
    ("phase", "kind"), list(product(Phase, EVENT_TYPES)), ids=lambda value: getattr(value, "__name__", str(value))
)
def test_every_phase_answers_every_event_as_the_table_says(phase: Phase, kind: type[Event]) -> None:
    expected = EXPECTED.get((phase, kind))
    if expected is None:
        with pytest.raises(InvariantBroken, match=rf"{kind.__name__} in phase {phase}; legal here: .*ClientLeft"):
            step(STATES[phase], SAMPLES[kind], POLICY)
        return
    state, effects = step(STATES[phase], SAMPLES[kind], POLICY)
    assert (state.phase, [type(effect) for effect in effects]) == expected


def test_nothing_leads_out_of_decode_but_the_end() -> None:
    for kind in TABLE[Phase.DECODE]:
        for failure in (Failure(cause=cause, evidence="x") for cause in Cause):
            event = AttemptFailed(failure=failure) if kind is AttemptFailed else SAMPLES[kind]
            state, effects = step(STATES[Phase.DECODE], event, Policy(max_attempts=10))
            assert state.phase is Phase.ENDED
            assert not any(isinstance(effect, StartAttempt | FenceAttempt) for effect in effects)


def test_first_delta_deadline_that_fired_at_the_boundary_changes_nothing() -> None:
    late = DeadlinePassed(deadline=Deadline.FIRST_DELTA)
    assert step(STATES[Phase.DECODE], late, POLICY) == (STATES[Phase.DECODE], ())


@pytest.mark.parametrize(
    ("placed", "code"),
    [
        (Placed(candidate=False), ErrorCode.NO_HEALTHY_REPLICA),
        (Placed(candidate=True, draining=True), ErrorCode.DRAINING),
    ],
)
def test_a_request_that_cannot_be_placed_is_answered(placed: Placed, code: ErrorCode) -> None:
    state, effects = step(RequestState(), placed, POLICY)
    assert state.outcome is Outcome.FAILED
    assert isinstance(effects[-1], AnswerError)
    assert effects[-1].code is code


def test_a_refused_repeat_names_its_gate_before_the_outcome_is_recorded() -> None:
    state, effects = step(STATES[Phase.FENCING], FenceSettled(facts=replace(OPEN_GATES, budget_available=False)), POLICY)
    assert state.outcome is Outcome.FAILED
    assert [type(effect) for effect in effects] == [RecordRefusal, RecordOutcome, AnswerError]
    assert isinstance(effects[0], RecordRefusal)
    assert (effects[0].gate, effects[0].failure) == (Gate.RETRY_BUDGET, STATES[Phase.FENCING].failure)
    assert effects[0].attempts == STATES[Phase.FENCING].attempts


@pytest.mark.parametrize("cause", list(Cause))
def test_each_cause_is_fenced_as_its_row_says(cause: Cause) -> None:
    failure = Failure(cause=cause, evidence="seen")
    state, effects = step(STATES[Phase.PREFILL], AttemptFailed(failure=failure), POLICY)
    assert effects[-1] == FenceAttempt(fencing=CAUSES[cause].fencing, failure=failure)
    assert state.failure is failure


@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.DECODE])
@pytest.mark.parametrize("cause", list(Cause))
def test_a_lost_replica_is_doubted_before_its_attempt_is_let_go_and_one_that_said_no_is_not(phase: Phase, cause: Cause) -> None:
    _, effects = step(STATES[phase], AttemptFailed(failure=Failure(cause=cause, evidence="seen")), POLICY)
    is_lost = cause in (Cause.NEVER_STARTED, Cause.REPLICA_GONE, Cause.UNCERTAIN)
    assert [place for place, effect in enumerate(effects) if isinstance(effect, DoubtReplica)] == [0] * is_lost


def test_only_what_never_ran_or_ended_by_itself_needs_no_fence() -> None:
    unfenced = {cause for cause, row in CAUSES.items() if row.fencing is Fencing.NOT_NEEDED}
    assert unfenced == {Cause.NEVER_STARTED, Cause.ENGINE_ERROR, Cause.OVERLOAD, Cause.RESPONSE_TOO_LARGE}


def test_interruption_carries_the_cause_and_its_evidence() -> None:
    said = {"message": "boom", "type": "InternalServerError", "code": 500}
    failure = Failure(cause=Cause.ENGINE_ERROR, evidence="in-band error", upstream_error=said)
    state, effects = step(STATES[Phase.DECODE], AttemptFailed(failure=failure), POLICY)
    assert state.outcome is Outcome.INTERRUPTED
    assert effects[-1] == InterruptStream(reason="engine_error", detail="in-band error", upstream_error=said)
    assert effects[-2] == RecordOutcome(
        outcome=Outcome.INTERRUPTED, reason="engine_error", error_code=ErrorCode.UPSTREAM_DECODE_INTERRUPTED
    )


events = st.one_of(
    st.builds(Placed, candidate=st.booleans(), draining=st.booleans()),
    st.sampled_from([event for kind, event in SAMPLES.items() if kind not in (Placed, AttemptFailed, FenceSettled)]),
    st.builds(AttemptFailed, failure=st.builds(Failure, cause=st.sampled_from(Cause), evidence=st.just("seen"))),
    st.builds(
        FenceSettled,
        facts=st.builds(
            GateFacts,
            fenced=st.booleans(),
            budget_available=st.booleans(),
            replay_cost=st.builds(ReplayCost, prompt_tokens=st.integers(0, 300_000)),
            client_deadline_left_ms=st.just(1_000),
            tool_call_recorded=st.booleans(),
            candidate=st.booleans(),
            draining=st.booleans(),
        ),
    ),
)


@given(st.lists(events, max_size=30), st.integers(1, 4))
def test_no_path_repeats_after_the_boundary_or_answers_twice(history: list[Event], max_attempts: int) -> None:
    policy = Policy(max_attempts=max_attempts)
    state = RequestState()
    done: list[Effect] = []
    for event in history:
        if type(event) not in TABLE[state.phase]:
            continue
        state, effects = step(state, event, policy)
        done.extend(effects)
    started = [effect.number for effect in done if isinstance(effect, StartAttempt)]
    assert started == list(range(1, len(started) + 1))
    assert len(started) <= max_attempts
    deliveries = [index for index, effect in enumerate(done) if isinstance(effect, DeliverHeld)]
    assert len(deliveries) <= 1
    if deliveries:
        assert not any(isinstance(effect, StartAttempt | AnswerError) for effect in done[deliveries[0] :])
    ends = [effect for effect in done if isinstance(effect, FinishStream | PassAnswer | AnswerError | InterruptStream)]
    assert len(ends) <= 1
    assert len([effect for effect in done if isinstance(effect, RecordOutcome)]) == (state.phase is Phase.ENDED)
    if ends:
        assert done[-1] is ends[0]
        assert isinstance(done[-2], RecordOutcome)
