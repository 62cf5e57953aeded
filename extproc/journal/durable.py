"""The journal over a database: write-ahead with group commit.

Events wait in memory until the next flush. A commit asks for one at once; what was only appended waits up to ``LINGER_S`` for
company. One flush runs at a time and takes everything that waits, of all requests, as one transaction: the slower the disk,
the larger the groups, and the boundary of a thousand streams costs a few transactions instead of a thousand.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from extproc.journal import transactions
from extproc.journal.interface import (
    NOTHING_WAITS,
    Backlog,
    CommitInDoubt,
    History,
    JournalQuery,
    JournalUnavailable,
    RequestTakenOver,
)
from extproc.journal.records import IN_DOUBT, RECORDED, JournalEvent, RequestFacts, fold_all
from extproc.journal.transactions import NumberedEvent
from extproc.storage.owner import Owner
from extproc.storage.script import Database, Result, ScriptFactory, StorageUnavailable

LINGER_S: Final = 0.02
"""How long an event that nobody waits for may wait for others; so much of a request's story a killed process may lose."""
BATCH_MAX: Final = 1_000
WAITING_MAX: Final = 50_000
"""Events kept in memory while the database is away, about 500 bytes each; beyond it the oldest are given up."""
RETRY_S: Final = 1.0
"""Between two tries while the database is away; in between commits fail at once instead of each waiting for its own timeout."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    item: NumberedEvent
    committed: "asyncio.Future[None] | None"

    def in_doubt(self) -> "_Waiting":
        """To be stored under its old number, so once at most, and waited for by nobody."""
        event = self.item.event
        marked = replace(event, detail={**event.detail, RECORDED: IN_DOUBT})
        return _Waiting(replace(self.item, event=marked), None)


class DurableJournal:
    """The Journal interface over a Database. Use it from one event loop; the database is closed by whoever opened it."""

    def __init__(self, database: Database, owner: Owner) -> None:
        self._database = database
        self._owner = owner
        self._waiting: deque[_Waiting] = deque()
        self._storing: Sequence[_Waiting] = ()
        """The batch that the database has been given and has not answered yet."""
        self._flushed: list[tuple[int, asyncio.Future[None]]] = []
        """Who waits until an event's number is stored, in the order of the numbers."""
        self._flusher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._down: str | None = None
        """Why the last write failed; None while the database takes writes."""
        self._given_up = 0

    @property
    def available(self) -> bool:
        return self._down is None

    @property
    def backlog(self) -> Backlog:
        storing, waiting = self._storing, len(self._waiting)
        oldest = storing[0] if storing else next(iter(self._waiting.copy()), None)
        if oldest is None:
            return NOTHING_WAITS
        return Backlog(events=len(storing) + waiting, oldest_at_ms=oldest.item.event.at_ms)

    def append(self, event: JournalEvent) -> None:
        self._wait(event, None)
        self._flush_later(LINGER_S)

    async def commit(self, event: JournalEvent) -> None:
        if self._down is not None:
            raise JournalUnavailable(self._down)
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait(event, committed)
        self._flush_now()
        await committed

    async def flush(self) -> None:
        """Store everything appended so far. What comes later is not waited for: under load there is always more. Raises
        JournalUnavailable."""
        last = self._waiting[-1] if self._waiting else next(iter(self._storing[-1:]), None)
        if last is None:
            return
        if self._down is not None:
            raise JournalUnavailable(self._down)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushed.append((last.item.number, stored))
        self._flush_now()
        await stored

    async def facts(self, request_id: str) -> RequestFacts | None:
        return fold_all(await self.events(request_id))

    async def events(self, request_id: str) -> tuple[JournalEvent, ...]:
        found = await self._read(lambda: transactions.select_events([request_id]))
        return found.get(request_id, ())

    async def requests(self, query: JournalQuery) -> tuple[RequestFacts, ...]:
        return await self._read(lambda: transactions.select_facts(query))

    async def histories(self, after: str, requests_max: int) -> Sequence[History]:
        return await self._read(lambda: transactions.select_histories(after, requests_max))

    async def close(self) -> None:
        try:
            await self.flush()
        except JournalUnavailable as error:
            _log.error("closing the journal with %d events not stored: %s", len(self._waiting), error)
        if self._timer is not None:
            self._timer.cancel()

    async def _read(self, script: ScriptFactory[Result]) -> Result:
        await self.flush()
        try:
            return await self._database.read(script)
        except StorageUnavailable as error:
            raise JournalUnavailable(str(error)) from error

    def _wait(self, event: JournalEvent, committed: "asyncio.Future[None] | None") -> None:
        self._waiting.append(_Waiting(NumberedEvent(self._owner.next_number(), event), committed))
        if len(self._waiting) > WAITING_MAX:
            given_up = self._waiting.popleft()
            if given_up.committed is not None and not given_up.committed.done():
                given_up.committed.set_exception(JournalUnavailable("too many events wait for the database"))
            if self._given_up == 0:
                _log.error("the journal gives up its oldest events: more than %d wait for the database", WAITING_MAX)
            self._given_up += 1

    def _flush_later(self, delay_s: float) -> None:
        if self._timer is None and self._flusher is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._flush_now)

    def _flush_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush_all(), name="journal-flush")

    async def _flush_all(self) -> None:
        try:
            while self._waiting or self._down is not None:
                batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
                if not await self._store(batch):
                    break
        finally:
            self._flusher = None
        if self._down is not None:
            self._flush_later(RETRY_S)

    async def _store(self, batch: Sequence[_Waiting]) -> bool:
        """Whether the database took it. An empty batch asks whether the database is back."""
        items = [waiting.item for waiting in batch]
        self._storing = batch
        try:
            if not items:
                await self._owner.announce()
            script = partial(transactions.store_events, self._owner, items)
            refused = await self._database.write(script, one_statement=True)
        except StorageUnavailable as error:
            self._went_down(error, batch)
            return False
        finally:
            self._storing = ()
        if self._down is not None:
            _log.warning("the journal's database is back; %d events were given up meanwhile", self._given_up)
            self._down, self._given_up = None, 0
        for waiting in batch:
            _answer(waiting, refused)
        self._answer_flushes(batch)
        return True

    def _answer_flushes(self, batch: Sequence[_Waiting]) -> None:
        """Numbers grow along the queue, and what was given up lies before what was stored."""
        while batch and self._flushed and self._flushed[0][0] <= batch[-1].item.number:
            _, stored = self._flushed.pop(0)
            if not stored.done():
                stored.set_result(None)

    def _went_down(self, error: StorageUnavailable, batch: Sequence[_Waiting]) -> None:
        """Committed events are dropped, as their callers are told, but for those that may be stored; the others are tried again,
        in their old order."""
        why = str(error)
        if self._down is None:
            _log.error("the journal's database takes no writes: %s", why)
        self._down = why
        if error.perhaps_stored:
            _fail(batch, CommitInDoubt(f"whether it is stored is not known: {why}"))
            batch = [waiting if waiting.committed is None else waiting.in_doubt() for waiting in batch]
        else:
            _fail(batch, JournalUnavailable(why))
        _fail(self._waiting, JournalUnavailable(why))
        for _, stored in self._flushed:
            if not stored.done():
                stored.set_exception(JournalUnavailable(why))
        self._flushed.clear()
        self._waiting = deque(waiting for waiting in (*batch, *self._waiting) if waiting.committed is None)


def _fail(events: Iterable[_Waiting], error: JournalUnavailable) -> None:
    for waiting in events:
        if waiting.committed is not None and not waiting.committed.done():
            waiting.committed.set_exception(error)


def _answer(waiting: _Waiting, refused: frozenset[str]) -> None:
    request_id = waiting.item.event.request_id
    if request_id in refused:
        _log.warning("%s of %s was not stored: the request is not this processor's", waiting.item.event.kind, request_id)
    if waiting.committed is None or waiting.committed.done():
        return
    if request_id in refused:
        waiting.committed.set_exception(RequestTakenOver(f"request {request_id} belongs to another processor"))
    else:
        waiting.committed.set_result(None)
