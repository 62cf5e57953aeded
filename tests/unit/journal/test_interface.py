"""The contract of a journal, over every store. ``make test-postgres`` runs it over PostgreSQL."""

import asyncio

import pytest

from extproc.journal.interface import Journal, JournalQuery, JournalUnavailable
from extproc.journal.records import OPEN, EventKind, JournalEvent


def event(
    kind: EventKind, request_id: str = "req_1", at_ms: int = 1_000, **detail: str | int | float | bool | None
) -> JournalEvent:
    attempt_id = None if kind in (EventKind.ADMITTED, EventKind.ENDED) else f"att_of_{request_id}"
    replica = "10.0.0.1:8000" if kind is EventKind.ATTEMPT_STARTED else None
    return JournalEvent(request_id=request_id, kind=kind, at_ms=at_ms, attempt_id=attempt_id, replica=replica, detail=detail)


def admitted(request_id: str = "req_1", at_ms: int = 1_000) -> JournalEvent:
    return event(EventKind.ADMITTED, request_id, at_ms, api="chat", model="m", route="chat", stream=True)


def ended(request_id: str = "req_1", outcome: str = "completed", at_ms: int = 1_000) -> JournalEvent:
    return event(EventKind.ENDED, request_id, at_ms, outcome=outcome, reason="finished", delivered_output_tokens=3)


async def test_what_was_committed_is_read_back_in_order_and_unchanged(journal: Journal):
    story = (
        admitted(),
        event(EventKind.ATTEMPT_STARTED, retry_budget=9.5, model_revision=None, number=1),
        event(EventKind.FIRST_DELTA_SENT),
        ended(),
    )
    for step in story[:2]:
        journal.append(step)
    await journal.commit(story[2])
    await journal.commit(story[3])

    assert await journal.events("req_1") == story
    facts = await journal.facts("req_1")
    assert facts is not None
    assert (facts.phase, facts.outcome, facts.first_delta_sent, facts.delivered_output_tokens) == ("ended", "completed", True, 3)
    assert [(attempt.attempt_id, attempt.replica) for attempt in facts.attempts] == [("att_of_req_1", "10.0.0.1:8000")]


async def test_what_was_only_appended_is_seen_by_the_next_reading(journal: Journal):
    journal.append(admitted())
    journal.append(event(EventKind.ATTEMPT_STARTED))
    assert [step.kind for step in await journal.events("req_1")] == [EventKind.ADMITTED, EventKind.ATTEMPT_STARTED]


async def test_an_unknown_request_has_no_facts_and_no_events(journal: Journal):
    assert await journal.facts("req_none") is None
    assert await journal.events("req_none") == ()


async def test_a_boundary_of_an_unknown_request_is_refused(journal: Journal):
    with pytest.raises(JournalUnavailable):
        await journal.commit(event(EventKind.FIRST_DELTA_SENT, "req_none"))
    assert await journal.events("req_none") == ()


async def test_requests_that_commit_together_keep_their_own_order(journal: Journal):
    async def live(request_id: str) -> None:
        journal.append(admitted(request_id))
        journal.append(event(EventKind.ATTEMPT_STARTED, request_id))
        await journal.commit(event(EventKind.FIRST_DELTA_SENT, request_id))
        await journal.commit(ended(request_id))

    request_ids = [f"req_{number:03d}" for number in range(100)]
    await asyncio.gather(*map(live, request_ids))
    for request_id in request_ids:
        assert [step.kind for step in await journal.events(request_id)] == [
            EventKind.ADMITTED,
            EventKind.ATTEMPT_STARTED,
            EventKind.FIRST_DELTA_SENT,
            EventKind.ENDED,
        ]


@pytest.mark.parametrize("text", ["\0", "\ud800", "\U0001f9ea \u2028", "'; DROP TABLE events; --", '"\\', "x" * 100_000])
async def test_any_text_in_a_detail_survives(journal: Journal, text: str):
    journal.append(admitted())
    await journal.commit(event(EventKind.ATTEMPT_FAILED, evidence=text, cause="replica_gone"))
    assert (await journal.events("req_1"))[1].detail["evidence"] == text


async def test_list_names_the_newest_first_and_filters_by_outcome_and_time(journal: Journal):
    for request_id, outcome, at_ms in (("req_a", "completed", 10), ("req_b", "interrupted", 20), ("req_c", "interrupted", 30)):
        journal.append(admitted(request_id, at_ms))
        await journal.commit(ended(request_id, outcome, at_ms))
    journal.append(admitted("req_d", 40))

    async def listed(**query: object) -> list[str]:
        found = await journal.requests(JournalQuery(**query))  # type: ignore[arg-type]  # the test's own spelling
        return [facts.request_id for facts in found]

    assert await listed() == ["req_d", "req_c", "req_b", "req_a"]
    assert await listed(outcome="interrupted") == ["req_c", "req_b"]
    assert await listed(outcome="interrupted", since_ms=25) == ["req_c"]
    assert await listed(outcome=OPEN) == ["req_d"]
    assert await listed(requests_max=1) == ["req_d"]


async def test_histories_come_in_pages_and_tell_what_still_runs(journal: Journal):
    for number in range(5):
        journal.append(admitted(f"req_{number}"))
    journal.append(ended("req_1"))

    first = await journal.histories("", 3)
    rest = await journal.histories(first[-1].request_id, 3)
    assert [history.request_id for history in (*first, *rest)] == [f"req_{number}" for number in range(5)]
    assert [history.running for history in (*first, *rest)] == [True, False, True, True, True]
    assert [len(history.events) for history in (*first, *rest)] == [1, 2, 1, 1, 1]


async def test_a_request_that_is_admitted_again_keeps_its_earlier_attempts(journal: Journal):
    journal.append(admitted())
    journal.append(event(EventKind.ATTEMPT_STARTED))
    journal.append(ended(outcome="failed"))
    journal.append(admitted())
    facts = await journal.facts("req_1")
    assert facts is not None
    assert (facts.phase, facts.outcome, len(facts.attempts)) == ("admitted", None, 1)
