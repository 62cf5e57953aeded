"""The durable part of a process: opened, tidied, closed."""

import time
from pathlib import Path

import pytest

from extproc.app.stores import Stores, StoreSettings
from extproc.decision.idempotency import ClaimOutcome
from extproc.journal.availability import OptionalJournal, WhenUnavailable
from extproc.journal.idempotency import KeyClaim
from extproc.journal.records import EventKind, JournalEvent
from extproc.storage.opening import open_database
from extproc.storage.script import StorageUnavailable
from extproc.tools.interface import ToolCall

CALL = ToolCall(key_hash=b"1", call_key="mail/req_1:call", tool="mail", request_id="req_1", fingerprint=b"f", keep_ms=1)


async def open_stores(url: str | None, name: str = "proc_a", **settings: object) -> Stores:
    return await Stores.open(StoreSettings(url=url, **settings), name, lambda: None)  # type: ignore[arg-type]  # the test's own spelling


async def test_without_a_database_everything_is_in_memory():
    stores = await open_stores(None)
    claim = KeyClaim(key_hash=b"k", fingerprint=b"f", request_id="req_1")
    assert (await stores.keys.claim(claim)).outcome is ClaimOutcome.NEW
    assert stores.ledger is None
    assert not await stores.tool_call_recorded("req_1")
    await stores.close()


async def test_what_was_appended_survives_the_process(database_url: str):
    stores = await open_stores(database_url)
    now_ms = time.time_ns() // 1_000_000  # an older request would be tidied away
    admitted = JournalEvent(request_id="req_1", kind=EventKind.ADMITTED, at_ms=now_ms, detail={"api": "chat"})
    stores.journal.append(admitted)
    await stores.close()
    again = await open_stores(database_url, "proc_b")
    events = await again.journal.events("req_1")  # its end may follow: housekeeping has ended what the first process left
    assert events[0] == admitted
    await again.close()


async def test_a_process_that_closed_is_not_waited_for(database_url: str):
    first = await open_stores(database_url)
    await first.keys.claim(KeyClaim(key_hash=b"k", fingerprint=b"f", request_id="req_1"))
    await first.close()
    second = await open_stores(database_url, "proc_b")
    again = await second.keys.claim(KeyClaim(key_hash=b"k", fingerprint=b"f", request_id="req_2"))
    assert again.outcome is ClaimOutcome.NEW
    await second.close()


async def test_the_tool_gate_hears_of_recorded_calls_and_stays_closed_without_a_ledger(database_url: str):
    stores = await open_stores(database_url)
    assert stores.ledger is not None
    assert not await stores.tool_call_recorded("req_1")
    await stores.ledger.begin(CALL)
    assert await stores.tool_call_recorded("req_1")
    await stores.close()
    assert await stores.tool_call_recorded("req_2")


@pytest.mark.parametrize("choice", WhenUnavailable)
async def test_the_operators_choice_decides_what_a_lost_database_means(database_url: str, choice: WhenUnavailable):
    stores = await open_stores(database_url, when_unavailable=choice)
    assert isinstance(stores.journal, OptionalJournal) is (choice is WhenUnavailable.SERVE_WITHOUT_JOURNAL)
    await stores.close()


async def test_a_database_that_can_not_be_opened_ends_the_start(tmp_path: Path):
    with pytest.raises(StorageUnavailable):
        await open_stores(str(tmp_path / "missing" / "journal.db"))


async def test_the_database_is_closed_with_the_stores(database_url: str):
    stores = await open_stores(database_url)
    await stores.close()
    database = await open_database(database_url)
    await database.close()
