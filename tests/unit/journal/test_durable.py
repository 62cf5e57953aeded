"""The durable journal's own promises: take-over, availability, housekeeping."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from extproc.journal.availability import OptionalJournal
from extproc.journal.durable import DurableJournal
from extproc.journal.housekeeping import Housekeeping, Retention
from extproc.journal.interface import JournalQuery, JournalUnavailable, RequestTakenOver
from extproc.journal.records import PROCESSOR_LOST, EventKind, JournalEvent
from extproc.storage.owner import Owner
from extproc.storage.script import Database, Dialect, Result, ScriptFactory, StorageUnavailable

KEEP_ALL = Retention(age_ms_max=10**14)
"""The tests' events are from 1970."""


def admitted(request_id: str = "req_1", at_ms: int = 1_000) -> JournalEvent:
    detail = {"api": "chat", "model": "m", "route": "chat", "stream": True}
    return JournalEvent(request_id=request_id, kind=EventKind.ADMITTED, at_ms=at_ms, detail=detail)


def first_delta(request_id: str = "req_1") -> JournalEvent:
    return JournalEvent(request_id=request_id, kind=EventKind.FIRST_DELTA_SENT, at_ms=2_000, attempt_id="att_1")


def ended(request_id: str = "req_1") -> JournalEvent:
    return JournalEvent(request_id=request_id, kind=EventKind.ENDED, at_ms=3_000, detail={"outcome": "completed"})


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run; the test's own timeout is the limit."""
    while not condition():
        await asyncio.sleep(0)


class Switch:
    """A database that can be taken away and given back."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.broken = False

    @property
    def dialect(self) -> Dialect:
        return self.database.dialect

    async def write(self, script: ScriptFactory[Result], *, one_statement: bool = False) -> Result:
        if self.broken:
            raise StorageUnavailable("switched off")
        return await self.database.write(script, one_statement=one_statement)

    async def read(self, script: ScriptFactory[Result]) -> Result:
        if self.broken:
            raise StorageUnavailable("switched off")
        return await self.database.read(script)

    async def close(self) -> None:
        await self.database.close()


async def test_lost_requests_are_ended_by_another_processor_with_the_truth(start_process):
    dead = await start_process("proc_dead", ttl_ms=0)
    dead.journal.append(admitted("req_before"))
    dead.journal.append(admitted("req_after"))
    await dead.journal.commit(first_delta("req_after"))
    alive = await start_process("proc_alive")
    alive.journal.append(admitted("req_mine"))
    await alive.journal.flush()

    await Housekeeping(alive.database, alive.owner, KEEP_ALL).tidy()

    before, after, mine = [await alive.journal.facts(f"req_{name}") for name in ("before", "after", "mine")]
    assert (before.outcome, before.reason, before.first_delta_sent) == ("failed", PROCESSOR_LOST, False)
    assert (after.outcome, after.reason, after.delivered_output_tokens_source) == ("interrupted", PROCESSOR_LOST, "unknown")
    assert mine.outcome is None


async def test_a_processor_that_was_only_asleep_can_not_cross_the_boundary_of_a_request_it_lost(start_process):
    asleep = await start_process("proc_asleep", ttl_ms=0)
    asleep.journal.append(admitted())
    await asleep.journal.flush()
    alive = await start_process("proc_alive")
    await Housekeeping(alive.database, alive.owner, KEEP_ALL).tidy()

    await asleep.owner.announce()
    with pytest.raises(RequestTakenOver):
        await asleep.journal.commit(first_delta())
    asleep.journal.append(ended())
    await asleep.journal.flush()

    assert [event.kind for event in await alive.journal.events("req_1")] == [EventKind.ADMITTED, EventKind.ENDED]
    assert asleep.journal.available


async def test_a_process_whose_own_name_expired_takes_nothing_from_itself(start_process):
    """A database that was away, or a process that stood still, keeps the name from being renewed; its requests run on."""
    late = await start_process("proc_late", ttl_ms=0)
    late.journal.append(admitted())
    await late.journal.flush()
    await Housekeeping(late.database, late.owner, KEEP_ALL).tidy()
    assert (await late.journal.facts("req_1")).outcome is None
    await late.journal.commit(first_delta())


class Busy:
    """A database that gets one more event with every write: as under load, where something always waits."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.dialect = database.dialect
        self.journal: DurableJournal
        self.writes = 0

    async def write(self, script: ScriptFactory[Result], *, one_statement: bool = False) -> Result:
        self.writes += 1
        assert self.writes < 10, "nobody waits for what came later"
        self.journal.append(admitted(f"req_later_{self.writes}"))
        return await self.database.write(script, one_statement=one_statement)

    async def read(self, script: ScriptFactory[Result]) -> Result:
        return await self.database.read(script)

    async def close(self) -> None:
        await self.database.close()


async def test_a_flush_waits_for_what_was_there_and_not_for_what_comes_under_load(start_process):
    process = await start_process()
    busy = Busy(process.database)
    busy.journal = journal = DurableJournal(busy, process.owner)
    journal.append(admitted())
    await journal.flush()
    assert busy.writes <= 2
    busy.write = process.database.write
    await journal.flush()
    assert (await process.journal.facts("req_1")).phase == "admitted"


async def test_a_flush_while_a_batch_is_being_stored_waits_for_that_batch(start_process):
    process = await start_process()
    journal = process.journal
    committing = asyncio.create_task(journal.commit(admitted()))
    await until(lambda: journal.backlog.events == 1 and not journal._waiting)
    await journal.flush()
    assert (await process.journal.facts("req_1")).phase == "admitted"
    await committing


async def test_a_refused_request_does_not_refuse_the_others_of_its_batch(start_process):
    asleep = await start_process("proc_asleep", ttl_ms=0)
    asleep.journal.append(admitted("req_lost"))
    await asleep.journal.flush()
    alive = await start_process("proc_alive")
    await Housekeeping(alive.database, alive.owner, KEEP_ALL).tidy()

    asleep.journal.append(admitted("req_kept"))
    results = await asyncio.gather(
        asleep.journal.commit(first_delta("req_lost")), asleep.journal.commit(first_delta("req_kept")), return_exceptions=True
    )
    assert isinstance(results[0], RequestTakenOver)
    assert results[1] is None


async def test_a_lost_database_refuses_commits_keeps_the_rest_and_stores_it_later(start_process, monkeypatch, caplog):
    monkeypatch.setattr("extproc.journal.durable.RETRY_S", 0.0)
    process = await start_process()
    switch = Switch(process.database)
    journal = DurableJournal(switch, process.owner)
    journal.append(admitted())
    await journal.flush()

    switch.broken = True
    with pytest.raises(JournalUnavailable, match="switched off"):
        await journal.commit(first_delta())
    assert not journal.available
    with pytest.raises(JournalUnavailable):
        await journal.facts("req_1")
    journal.append(ended())
    switch.broken = False
    await until(lambda: journal.available)

    assert [event.kind for event in await journal.events("req_1")] == [EventKind.ADMITTED, EventKind.ENDED]
    assert "takes no writes: switched off" in caplog.text
    assert "is back" in caplog.text


async def test_an_idle_journal_notices_by_itself_that_the_database_is_back(start_process, monkeypatch):
    monkeypatch.setattr("extproc.journal.durable.RETRY_S", 0.0)
    process = await start_process()
    switch = Switch(process.database)
    journal = DurableJournal(switch, Owner(switch, "proc_a"))
    switch.broken = True
    with pytest.raises(JournalUnavailable):
        await journal.commit(admitted())
    await asyncio.sleep(0)
    assert not journal.available
    switch.broken = False
    await until(lambda: journal.available)


async def test_events_beyond_the_limit_are_given_up_oldest_first(start_process, monkeypatch, caplog):
    monkeypatch.setattr("extproc.journal.durable.WAITING_MAX", 2)
    process = await start_process()
    switch = Switch(process.database)
    journal = DurableJournal(switch, process.owner)
    for number in range(4):
        journal.append(admitted(f"req_{number}", at_ms=number))
    found = await journal.requests(JournalQuery())
    assert [facts.request_id for facts in found] == ["req_3", "req_2"]
    assert "gives up its oldest events" in caplog.text


async def test_serving_without_journal_is_loud_counted_and_stored_late(start_process, monkeypatch, caplog):
    monkeypatch.setattr("extproc.journal.durable.RETRY_S", 0.0)
    process = await start_process()
    switch = Switch(process.database)
    unrecorded: list[None] = []
    durable = DurableJournal(switch, process.owner)
    journal = OptionalJournal(durable, lambda: unrecorded.append(None))
    switch.broken = True
    with caplog.at_level(logging.ERROR):
        await journal.commit(admitted())
        await journal.commit(first_delta())
    assert len(unrecorded) == 2
    assert caplog.text.count("SERVING WITHOUT JOURNAL") == 2
    assert journal.available
    switch.broken = False
    await until(lambda: durable.available)
    events = await journal.events("req_1")
    assert [(event.kind, event.detail.get("recorded")) for event in events] == [
        ("admitted", "late"),
        ("first_delta_sent", "late"),
    ]


async def test_serving_without_journal_still_refuses_a_request_that_was_taken_over(start_process):
    asleep = await start_process("proc_asleep", ttl_ms=0)
    asleep.journal.append(admitted())
    await asleep.journal.flush()
    alive = await start_process("proc_alive")
    await Housekeeping(alive.database, alive.owner, KEEP_ALL).tidy()
    with pytest.raises(RequestTakenOver):
        await OptionalJournal(asleep.journal, lambda: None).commit(first_delta())


async def test_closing_stores_what_was_appended(start_process):
    first = await start_process("proc_a")
    first.journal.append(admitted())
    await first.journal.close()
    second = await start_process("proc_b")
    assert len(await second.journal.events("req_1")) == 1


async def store_ended(process, request_ids: list[str], at_ms: int = 1_000) -> None:
    for request_id in request_ids:
        process.journal.append(admitted(request_id, at_ms))
        process.journal.append(ended(request_id))
    await process.journal.flush()


async def test_aged_requests_are_deleted_and_open_ones_are_not(start_process):
    process = await start_process()
    await store_ended(process, ["req_old_1", "req_old_2"], at_ms=1_000)
    process.journal.append(admitted("req_old_open", at_ms=1_000))
    now_ms = 2_000_000_000_000 * 2
    await store_ended(process, ["req_new"], at_ms=now_ms)

    await Housekeeping(process.database, process.owner, Retention(age_ms_max=3_600_000)).tidy()

    kept = await process.journal.histories("", 10)
    assert [history.request_id for history in kept] == ["req_new", "req_old_open"]
    assert await process.journal.events("req_old_1") == ()


async def test_above_the_size_limit_the_oldest_go_first(start_process):
    process = await start_process()
    for number in range(10):
        await store_ended(process, [f"req_{number}"], at_ms=1_000 + number)
    retention = Retention(bytes_max=2_000, age_ms_max=10**14)

    await Housekeeping(process.database, process.owner, retention).tidy()

    kept = [history.request_id for history in await process.journal.histories("", 20)]
    assert kept == [f"req_{number}" for number in range(10 - len(kept), 10)]
    assert 0 < len(kept) < 10


async def test_two_housekeepers_end_a_lost_request_once(start_process):
    dead = await start_process("proc_dead", ttl_ms=0)
    for number in range(20):
        dead.journal.append(admitted(f"req_{number}"))
    await dead.journal.flush()
    keepers = [await start_process(f"proc_{name}") for name in "ab"]
    await asyncio.gather(*(Housekeeping(keeper.database, keeper.owner, KEEP_ALL).tidy() for keeper in keepers))
    for number in range(20):
        events = await keepers[0].journal.events(f"req_{number}")
        assert [event.kind for event in events] == [EventKind.ADMITTED, EventKind.ENDED]


async def test_a_batch_that_is_sent_twice_is_stored_once(start_process):
    """What happens after PostgreSQL stored a batch and its acknowledgement was lost."""
    from extproc.journal.transactions import NumberedEvent, store_events

    process = await start_process()
    batch = [NumberedEvent(number, event) for number, event in enumerate((admitted(), ended()), start=1_000)]
    for _ in range(2):
        await process.database.write(lambda: store_events(process.owner, batch))
    assert len(await process.journal.events("req_1")) == 2


async def test_a_name_that_is_kept_alive_is_not_taken_over(start_process):
    owner_process = await start_process("proc_kept", ttl_ms=0)
    renewing = Owner(owner_process.database, "proc_kept", ttl_ms=60_000)
    owner_process.journal.append(admitted())
    await owner_process.journal.flush()
    await renewing.announce()
    other = await start_process("proc_other")
    await Housekeeping(other.database, other.owner, KEEP_ALL).tidy()
    facts = await other.journal.facts("req_1")
    assert facts is not None
    assert facts.outcome is None
