"""Texts of requests: kept only by their owner, replaced by a further run, gone with their request."""

import logging

from extproc.journal.housekeeping import Housekeeping, Retention
from extproc.journal.records import EventKind, JournalEvent
from extproc.journal.texts import TEXT_BYTES_MAX, DurableTexts, RequestText, select_text
from extproc.storage.script import StorageUnavailable


def admitted(request_id: str = "req_1") -> JournalEvent:
    return JournalEvent(request_id=request_id, kind=EventKind.ADMITTED, at_ms=1, detail={"api": "chat"})


def ended(request_id: str = "req_1") -> JournalEvent:
    return JournalEvent(request_id=request_id, kind=EventKind.ENDED, at_ms=2, detail={"outcome": "failed"})


async def test_a_text_is_stored_behind_its_requests_events_and_replaced_by_a_further_runs(start_process):
    process = await start_process()
    texts = DurableTexts(process.database, process.owner, process.journal)
    process.journal.append(admitted())
    for answer in (b"no\0pe", b"data: Hi\n\n"):
        texts.keep("req_1", RequestText(request=b"{}", answer=answer))
        await texts.close()
    found = await process.database.read(lambda: select_text("req_1"))
    assert found == RequestText(request=b"{}", answer=b"data: Hi\n\n")
    assert await process.database.read(lambda: select_text("req_2")) is None


async def test_a_long_text_is_cut(start_process):
    process = await start_process()
    texts = DurableTexts(process.database, process.owner, process.journal)
    process.journal.append(admitted())
    texts.keep("req_1", RequestText(request=b"x" * (TEXT_BYTES_MAX + 1), answer=b""))
    await texts.close()
    found = await process.database.read(lambda: select_text("req_1"))
    assert found is not None
    assert len(found.request) == TEXT_BYTES_MAX


async def test_a_text_goes_with_its_request(start_process):
    process = await start_process()
    texts = DurableTexts(process.database, process.owner, process.journal)
    process.journal.append(admitted())
    texts.keep("req_1", RequestText(request=b"{}", answer=b""))
    await texts.close()
    process.journal.append(ended())
    await process.journal.flush()
    await Housekeeping(process.database, process.owner, Retention(age_ms_max=1)).tidy()
    assert await process.journal.events("req_1") == ()
    assert await process.database.read(lambda: select_text("req_1")) is None


async def test_a_text_that_can_not_be_stored_is_lost_aloud(start_process, monkeypatch, caplog):
    process = await start_process()
    texts = DurableTexts(process.database, process.owner, process.journal)
    with caplog.at_level(logging.WARNING):
        texts.keep("req_of_another", RequestText(request=b"secret", answer=b"secret"))
        await texts.close()
        assert "the request is not this processor's" in caplog.text

        async def full(*_: object, **__: object) -> None:
            raise StorageUnavailable("disk full")

        monkeypatch.setattr(type(process.database), "write", full)
        texts.keep("req_1", RequestText(request=b"secret", answer=b"secret"))
        await texts.close()
    assert "the text of req_1 is not kept: disk full" in caplog.text
    assert "secret" not in caplog.text
