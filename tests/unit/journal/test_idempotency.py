"""Claims to keys, over every store, and what crashes leave of them."""

import asyncio

import pytest

from extproc.decision.idempotency import ClaimOutcome
from extproc.journal.housekeeping import Housekeeping, Retention
from extproc.journal.idempotency import DurableKeys, KeyClaim, StoredAnswer
from extproc.journal.interface import RequestTakenOver
from extproc.journal.memory import MemoryJournal
from extproc.journal.memory_keys import MemoryKeys
from extproc.journal.records import PROCESSOR_LOST, EventKind, JournalEvent
from extproc.journal.verify import verify

KEEP_ALL = Retention(age_ms_max=10**14)


def claim(key: str = "key", body: str = "body", request_id: str = "req_1", ttl_ms: int = 3_600_000) -> KeyClaim:
    return KeyClaim(key_hash=key.encode(), fingerprint=body.encode(), request_id=request_id, ttl_ms=ttl_ms)


def event(kind: EventKind, request_id: str = "req_1", attempt: int | None = None, **detail: object) -> JournalEvent:
    attempt_id = None if attempt is None else f"att_{attempt}"
    replica = None if attempt is None else f"replica_{attempt}"
    return JournalEvent(request_id=request_id, kind=kind, at_ms=1, attempt_id=attempt_id, replica=replica, detail=detail)  # type: ignore[arg-type]


def admitted(request_id: str = "req_1") -> JournalEvent:
    return event(EventKind.ADMITTED, request_id, api="chat", model="m", stream=True)


def started(request_id: str = "req_1") -> JournalEvent:
    return event(EventKind.ATTEMPT_STARTED, request_id, 1, number=1, retry_budget=1.0)


def ended(outcome: str, request_id: str = "req_1", tokens: int = 0) -> JournalEvent:
    return event(EventKind.ENDED, request_id, outcome=outcome, reason="a reason", delivered_output_tokens=tokens)


DELTA = event(EventKind.FIRST_DELTA_SENT, "req_1", 1)


@pytest.fixture(params=["memory", "database"])
async def store(request: pytest.FixtureRequest, start_process):
    """A journal and its keys."""
    if request.param == "memory":
        journal = MemoryJournal()
        return journal, MemoryKeys(journal, lambda: 1_000)
    process = await start_process()
    return process.journal, DurableKeys(process.database, process.owner, process.journal)


async def test_a_fresh_key_is_new_and_names_the_fresh_request(store):
    _, keys = store
    claimed = await keys.claim(claim())
    assert (claimed.outcome, claimed.request_id, claimed.run) == (ClaimOutcome.NEW, "req_1", 1)


async def test_a_second_claim_finds_the_first_in_progress_before_and_after_its_admission(store):
    journal, keys = store
    await keys.claim(claim())
    assert (await keys.claim(claim(request_id="req_2"))).outcome is ClaimOutcome.IN_PROGRESS
    journal.append(admitted())
    again = await keys.claim(claim(request_id="req_2"))
    assert (again.outcome, again.request_id) == (ClaimOutcome.IN_PROGRESS, "req_1")


async def test_a_process_whose_own_name_expired_does_not_run_its_running_request_again(start_process):
    late = await start_process("proc_late", ttl_ms=0)
    keys = DurableKeys(late.database, late.owner, late.journal)
    await keys.claim(claim())
    late.journal.append(admitted())
    assert (await keys.claim(claim(request_id="req_2"))).outcome is ClaimOutcome.IN_PROGRESS


async def test_another_body_under_the_key_is_reuse(store):
    _, keys = store
    await keys.claim(claim())
    assert (await keys.claim(claim(body="other"))).outcome is ClaimOutcome.KEY_REUSED


async def test_other_keys_are_other_requests(store):
    _, keys = store
    await keys.claim(claim())
    assert (await keys.claim(claim("key 2", request_id="req_2"))).outcome is ClaimOutcome.NEW


async def test_after_completion_the_facts_come_back_and_the_answer_where_one_is_stored(store):
    journal, keys = store
    await keys.claim(claim())
    for item in (admitted(), started()):
        journal.append(item)
    await journal.commit(DELTA)
    answer = StoredAnswer(status=200, headers=(("content-type", "text/event-stream"), ("x", "\xff")), body=b"data: \x00\xff\n\n")
    await keys.store_answer("req_1", answer)
    journal.append(ended("completed", tokens=7))
    again = await keys.claim(claim(request_id="req_2"))
    assert (again.outcome, again.request_id, again.answer) == (ClaimOutcome.COMPLETED, "req_1", answer)
    assert again.facts is not None
    assert again.facts.delivered_output_tokens == 7


async def test_after_completion_without_a_stored_answer_there_are_only_facts(store):
    journal, keys = store
    await keys.claim(claim())
    journal.append(admitted())
    await journal.commit(DELTA)
    journal.append(ended("completed", tokens=7))
    again = await keys.claim(claim())
    assert (again.outcome, again.answer) == (ClaimOutcome.COMPLETED, None)


@pytest.mark.parametrize("outcome", ["interrupted", "cancelled"])
async def test_after_a_partial_delivery_the_facts_say_so_for_good(store, outcome: str):
    journal, keys = store
    await keys.claim(claim())
    journal.append(admitted())
    await journal.commit(DELTA)
    journal.append(ended(outcome, tokens=3))
    for _ in range(2):
        again = await keys.claim(claim(request_id="req_2"))
        assert again.outcome is ClaimOutcome.PARTIAL
        assert again.facts is not None
        assert (again.facts.request_id, again.facts.delivered_output_tokens) == ("req_1", 3)


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_a_request_that_delivered_nothing_frees_its_key_and_keeps_its_id(store, outcome: str):
    journal, keys = store
    await keys.claim(claim())
    for item in (admitted(), started(), ended(outcome)):
        journal.append(item)
    again = await keys.claim(claim(request_id="req_2"))
    assert (again.outcome, again.request_id, again.run) == (ClaimOutcome.NEW, "req_1", 2)
    assert (await keys.claim(claim(request_id="req_3"))).outcome is ClaimOutcome.IN_PROGRESS
    journal.append(admitted())
    await journal.commit(DELTA)
    journal.append(ended("interrupted"))
    assert (await keys.claim(claim(request_id="req_3"))).outcome is ClaimOutcome.PARTIAL


async def test_of_many_claims_at_once_one_is_new(store):
    _, keys = store
    claims = [claim(request_id=f"req_{number}") for number in range(50)]
    outcomes = [claimed.outcome for claimed in await asyncio.gather(*map(keys.claim, claims))]
    assert outcomes.count(ClaimOutcome.NEW) == 1
    assert outcomes.count(ClaimOutcome.IN_PROGRESS) == 49


async def test_an_expired_key_is_free_for_any_request(store):
    _, keys = store
    await keys.claim(claim(ttl_ms=0))
    again = await keys.claim(claim(body="other", request_id="req_2"))
    assert (again.outcome, again.request_id, again.run) == (ClaimOutcome.NEW, "req_2", 1)


# --- two processors on one database ----------------------------------------------------------------------------------------


async def keys_of(process) -> DurableKeys:
    return DurableKeys(process.database, process.owner, process.journal)


async def test_a_key_taken_through_one_processor_is_taken_for_the_other(start_process):
    first, second = await start_process("proc_a"), await start_process("proc_b")
    await (await keys_of(first)).claim(claim())
    assert (await (await keys_of(second)).claim(claim(request_id="req_2"))).outcome is ClaimOutcome.IN_PROGRESS


async def test_a_request_whose_processor_died_before_the_boundary_frees_its_key(start_process):
    dead, alive = await start_process("proc_dead", ttl_ms=0), await start_process("proc_alive")
    await (await keys_of(dead)).claim(claim())
    for item in (admitted(), started()):
        dead.journal.append(item)
    await dead.journal.flush()

    again = await (await keys_of(alive)).claim(claim(request_id="req_2"))
    assert (again.outcome, again.request_id, again.run) == (ClaimOutcome.NEW, "req_1", 2)
    assert again.facts is not None
    assert again.facts.reason == PROCESSOR_LOST


async def test_a_request_whose_processor_died_after_the_boundary_is_partial(start_process):
    dead, alive = await start_process("proc_dead", ttl_ms=0), await start_process("proc_alive")
    await (await keys_of(dead)).claim(claim())
    dead.journal.append(admitted())
    dead.journal.append(started())
    await dead.journal.commit(DELTA)

    again = await (await keys_of(alive)).claim(claim(request_id="req_2"))
    assert again.outcome is ClaimOutcome.PARTIAL
    assert again.facts is not None
    assert (again.facts.outcome, again.facts.reason) == ("interrupted", PROCESSOR_LOST)
    (history,) = await alive.journal.histories("", 10)
    assert verify(history, 2) == ()


async def test_a_request_whose_processor_died_right_after_the_claim_frees_its_key(start_process):
    dead, alive = await start_process("proc_dead", ttl_ms=0), await start_process("proc_alive")
    await (await keys_of(dead)).claim(claim())
    again = await (await keys_of(alive)).claim(claim(request_id="req_2"))
    assert (again.outcome, again.request_id, again.run) == (ClaimOutcome.NEW, "req_1", 1)


async def test_after_a_take_over_only_the_new_run_may_deliver(start_process):
    """The first processor was asleep, not dead: it wakes up with a first delta in its hands."""
    asleep, alive = await start_process("proc_asleep", ttl_ms=0), await start_process("proc_alive")
    await (await keys_of(asleep)).claim(claim())
    asleep.journal.append(admitted())
    asleep.journal.append(started())
    await asleep.journal.flush()
    await (await keys_of(alive)).claim(claim())
    alive.journal.append(admitted())

    await asleep.owner.announce()
    with pytest.raises(RequestTakenOver):
        await asleep.journal.commit(DELTA)
    with pytest.raises(RequestTakenOver):
        await (await keys_of(asleep)).store_answer("req_1", StoredAnswer(status=200, headers=(), body=b""))
    alive.journal.append(started())
    await alive.journal.commit(DELTA)
    facts = await alive.journal.facts("req_1")
    assert facts is not None
    assert facts.first_delta_sent


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("earlier_runs", [0, 1])
async def test_a_claim_whose_client_left_meanwhile_is_given_back(start_process, turns: int, earlier_runs: int):
    process = await start_process()
    keys = await keys_of(process)
    if earlier_runs:
        await keys.claim(claim())
        process.journal.append(admitted())
        process.journal.append(ended("failed"))
    leaving = asyncio.ensure_future(keys.claim(claim()))
    for _ in range(turns):
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await keys.close()
    again = await keys.claim(claim())
    assert (again.outcome, again.run) == (ClaimOutcome.NEW, earlier_runs + 1)


async def test_a_live_keys_request_outlives_every_retention(start_process):
    process = await start_process()
    keys = await keys_of(process)
    await keys.claim(claim())
    process.journal.append(admitted())
    await process.journal.commit(DELTA)
    process.journal.append(ended("interrupted", tokens=3))
    await process.journal.flush()
    await Housekeeping(process.database, process.owner, Retention(age_ms_max=1, bytes_max=1)).tidy()
    assert (await keys.claim(claim())).outcome is ClaimOutcome.PARTIAL


async def test_an_expired_keys_request_is_deleted_with_its_answer(start_process):
    process = await start_process()
    keys = await keys_of(process)
    await keys.claim(claim(ttl_ms=0))
    process.journal.append(admitted())
    await process.journal.commit(DELTA)
    await keys.store_answer("req_1", StoredAnswer(status=200, headers=(), body=b"answer"))
    process.journal.append(ended("completed"))
    await process.journal.flush()
    await Housekeeping(process.database, process.owner, Retention(bytes_max=1, age_ms_max=10**14)).tidy()
    assert await process.journal.events("req_1") == ()
    assert (await keys.claim(claim(request_id="req_2"))).request_id == "req_2"
