"""A database that falls silent over a boundary may have stored it, or may store it yet (R3, R4, R9)."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from extproc.decision.idempotency import ClaimOutcome
from extproc.journal.availability import OptionalJournal
from extproc.journal.durable import DurableJournal
from extproc.journal.idempotency import DurableKeys, KeyClaim
from extproc.journal.interface import CommitInDoubt, JournalUnavailable
from extproc.journal.records import EventKind, JournalEvent
from extproc.journal.verify import verify
from extproc.storage.script import Database, Dialect, Result, ScriptFactory, StorageUnavailable

CLAIM = KeyClaim(key_hash=b"key", fingerprint=b"body", request_id="req_1", ttl_ms=3_600_000)


def event(kind: EventKind, attempt_id: str | None = None, **detail: str | int | float | bool | None) -> JournalEvent:
    replica = None if attempt_id is None else "10.0.0.1:8000"
    return JournalEvent(request_id="req_1", kind=kind, at_ms=1_000, attempt_id=attempt_id, replica=replica, detail=detail)


ADMITTED = event(EventKind.ADMITTED, api="chat", model="m", stream=True)
STARTED = event(EventKind.ATTEMPT_STARTED, "att_1", number=1, retry_budget=1.0)
DELTA = event(EventKind.FIRST_DELTA_SENT, "att_1")
REFUSED = event(EventKind.ENDED, outcome="failed", reason="journal_unavailable", error_code="journal_unavailable")
COMPLETED = event(EventKind.ENDED, outcome="completed", reason="finished", delivered_output_tokens=3)


class Silent:
    """A database that can fall silent, before or after it has stored what it was given, or come to it only when it is back."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.answers = True
        self.stores = "never"
        self.late: list[Callable[[], object]] = []

    @property
    def dialect(self) -> Dialect:
        return self.database.dialect

    async def write(self, script: ScriptFactory[Result], *, one_statement: bool = False) -> Result:
        if self.answers:
            while self.late:
                await self.database.write(self.late.pop(0))  # type: ignore[arg-type]
            return await self.database.write(script, one_statement=one_statement)
        if self.stores == "at once":
            await self.database.write(script)
        elif self.stores == "later":
            self.late.append(script)
        raise StorageUnavailable("no answer in time", perhaps_stored=True)

    async def read(self, script: ScriptFactory[Result]) -> Result:
        return await self.database.read(script)

    async def close(self) -> None:
        await self.database.close()


@pytest.fixture(params=["at once", "later", "never"])
async def silent(request: pytest.FixtureRequest, start_process, monkeypatch: pytest.MonkeyPatch):
    """A database that falls silent, a journal over it, and its keys; a keyed request is about to cross its boundary."""
    monkeypatch.setattr("extproc.journal.durable.RETRY_S", 0.0)
    process = await start_process()
    database = Silent(process.database)
    database.stores = request.param
    journal = DurableJournal(database, process.owner)
    keys = DurableKeys(database, process.owner, journal)
    assert (await keys.claim(CLAIM)).outcome is ClaimOutcome.NEW
    for happened in (ADMITTED, STARTED):
        journal.append(happened)
    await journal.flush()
    yield database, journal, keys
    await journal.close()


async def back(database: Silent, journal: DurableJournal) -> None:
    database.answers = True
    while not journal.available:
        await asyncio.sleep(0)
    await journal.flush()


async def test_what_may_be_stored_is_stored_once_and_before_the_end(silent):
    database, journal, _ = silent
    database.answers = False
    with pytest.raises(CommitInDoubt, match="not known"):
        await journal.commit(DELTA)
    journal.append(REFUSED)
    await back(database, journal)
    (history,) = await journal.histories("", 10)
    assert [one.kind for one in history.events] == ["admitted", "attempt_started", "first_delta_sent", "ended"]
    assert verify(history, 2_000) == ()


async def test_a_repeat_of_its_key_is_never_run_as_though_nothing_could_have_been_delivered(silent):
    database, journal, keys = silent
    database.answers = False
    with pytest.raises(CommitInDoubt):
        await journal.commit(DELTA)
    journal.append(REFUSED)
    await back(database, journal)
    claimed = await keys.claim(CLAIM)
    assert (claimed.outcome, claimed.facts.reason) == (ClaimOutcome.PARTIAL, "journal_unavailable")


async def test_a_commit_that_was_still_waiting_is_known_not_to_be_stored(silent):
    """It was never given to the database; the one before it was."""
    database, journal, keys = silent
    database.answers = False
    before = asyncio.create_task(journal.commit(event(EventKind.RESPONSE_STARTED, "att_1", status=200)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting = asyncio.create_task(journal.commit(DELTA))
    results = await asyncio.gather(before, waiting, return_exceptions=True)
    assert [type(result) for result in results] == [CommitInDoubt, JournalUnavailable]
    journal.append(REFUSED)
    await back(database, journal)
    facts = await journal.facts("req_1")
    assert (facts.outcome, facts.first_delta_sent) == ("failed", False)
    assert (await keys.claim(CLAIM)).outcome is ClaimOutcome.NEW


async def test_serving_without_journal_records_it_once(silent, caplog: pytest.LogCaptureFixture):
    database, durable, _ = silent
    unrecorded: list[None] = []
    journal = OptionalJournal(durable, lambda: unrecorded.append(None))
    database.answers = False
    with caplog.at_level(logging.ERROR):
        await journal.commit(DELTA)
    assert (len(unrecorded), caplog.text.count("SERVING WITHOUT JOURNAL")) == (1, 1)
    journal.append(COMPLETED)
    await back(database, durable)
    (history,) = await journal.histories("", 10)
    assert [one.kind for one in history.events].count(EventKind.FIRST_DELTA_SENT) == 1
    assert verify(history, 2_000) == ()


async def test_what_was_in_doubt_is_marked_where_it_was_stored_afterwards(start_process, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("extproc.journal.durable.RETRY_S", 0.0)
    process = await start_process()
    database = Silent(process.database)
    journal = DurableJournal(database, process.owner)
    journal.append(ADMITTED)
    await journal.flush()
    database.answers = False
    with pytest.raises(CommitInDoubt):
        await journal.commit(DELTA)
    await back(database, journal)
    assert [one.detail.get("recorded") for one in await journal.events("req_1")] == [None, "in_doubt"]
