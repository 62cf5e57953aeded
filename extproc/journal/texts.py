"""What was asked and what was answered, for routes whose policy says ``journal.store_text``.

Written when a request has ended, off everybody's path: a text that can't be stored is lost, with a line in the log, and delays
nothing. Only ``deltafence journal show --text`` reads it.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from extproc.journal.durable import DurableJournal
from extproc.journal.interface import JournalUnavailable
from extproc.journal.transactions import SQL
from extproc.storage.owner import Owner
from extproc.storage.script import Database, Script, StorageUnavailable

TEXT_BYTES_MAX: Final = 1 << 20
"""Of a request and of an answer; what is longer is cut there."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestText:
    """Bodies as they came from the client and went to it, the terminal event included."""

    request: bytes
    answer: bytes


class Texts(Protocol):
    """Where texts are kept."""

    def keep(self, request_id: str, text: RequestText) -> None:
        """Store a text, or replace that of an earlier run. Does not wait and never raises."""


class NoTexts:
    """Without a database no text is kept."""

    def keep(self, request_id: str, text: RequestText) -> None:
        pass


class DurableTexts:
    """Texts in the journal's database. Use it from one event loop."""

    def __init__(self, database: Database, owner: Owner, journal: DurableJournal) -> None:
        self._database = database
        self._owner = owner
        self._journal = journal
        self._storing: set[asyncio.Task[None]] = set()

    def keep(self, request_id: str, text: RequestText) -> None:
        task = asyncio.create_task(self._store(request_id, text), name=f"store the text of {request_id}")
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def close(self) -> None:
        """Wait for what is being stored."""
        await asyncio.gather(*self._storing)

    async def _store(self, request_id: str, text: RequestText) -> None:
        try:
            await self._journal.flush()
            stored = await self._database.write(partial(insert_text, self._owner, request_id, text))
        except (JournalUnavailable, StorageUnavailable) as error:
            _log.error("the text of %s is not kept: %s", request_id, error)
            return
        if not stored:
            _log.warning("the text of %s is not kept: the request is not this processor's", request_id)


def insert_text(owner: Owner, request_id: str, text: RequestText) -> Script[bool]:
    """Whether the request is this processor's, and its text is stored."""
    request, answer = text.request[:TEXT_BYTES_MAX], text.answer[:TEXT_BYTES_MAX]
    stored_bytes = len(request) + len(answer)
    owned = yield SQL("add_stored_bytes", owner=owner.processor_id, request_id=request_id, stored_bytes=stored_bytes)
    if owned:
        yield SQL("insert_text", request_id=request_id, request=request, answer=answer)
    return bool(owned)


def select_text(request_id: str) -> Script[RequestText | None]:
    """A request's text; None where it is not kept."""
    rows = yield SQL("select_text", request_id=request_id)
    return RequestText(request=bytes(rows[0][0]), answer=bytes(rows[0][1])) if rows else None
