"""Everything durable of one processor process: opened together, tidied in the background, closed in the right order."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, Self

from extproc.journal.availability import OptionalJournal, WhenUnavailable
from extproc.journal.durable import DurableJournal
from extproc.journal.housekeeping import Housekeeping, Retention
from extproc.journal.idempotency import TTL_MS as KEY_TTL_MS
from extproc.journal.idempotency import DurableKeys, IdempotencyKeys
from extproc.journal.interface import Journal
from extproc.journal.memory import MemoryJournal
from extproc.journal.memory_keys import MemoryKeys
from extproc.journal.texts import DurableTexts, NoTexts, Texts
from extproc.storage.opening import open_database
from extproc.storage.owner import TTL_MS, Owner
from extproc.storage.script import Database, StorageUnavailable
from extproc.tools.interface import LedgerUnavailable
from extproc.tools.ledger import DurableLedger

HARD_LIMIT: Final = 2
"""A SQLite file may grow to so many times the retention's bytes, free pages and write-ahead log included, before it counts as
a full disk: a limit of our own comes before the disk's, which others share."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """``url``: None keeps the journal in memory, for this process's lifetime, and no tool ledger."""

    url: str | None = None
    when_unavailable: WhenUnavailable = WhenUnavailable.REFUSE
    retention: Retention = field(default_factory=Retention)
    owner_ttl_ms: int = TTL_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """``secret`` hashes keys and is the same in all gateways that share a database."""

    secret: bytes = b""
    ttl_ms: int = KEY_TTL_MS
    caller_header: str = "authorization"
    """Tells callers apart: a key belongs to its caller."""


class Stores:
    """One process's journal, keys and ledger. ``ledger`` is None without a database."""

    def __init__(
        self,
        journal: Journal,
        keyed_journal: Journal,
        keys: IdempotencyKeys,
        ledger: DurableLedger | None = None,
        texts: Texts | None = None,
    ) -> None:
        self.journal = journal
        """May do without its database, where the operator chose that; ``keyed_journal`` never does."""
        self.keyed_journal = keyed_journal
        self.keys = keys
        self.ledger = ledger
        self.texts: Texts = texts or NoTexts()
        self._closing = AsyncExitStack()
        self._background: list[asyncio.Task[None]] = []

    @classmethod
    def in_memory(cls) -> Self:
        """Without a database."""
        journal = MemoryJournal()
        return cls(journal, journal, MemoryKeys(journal, lambda: time.monotonic_ns() // 1_000_000))

    @classmethod
    async def open(cls, settings: StoreSettings, processor_id: str, on_unrecorded: Callable[[], None]) -> Self:
        """Open what the settings name, and begin to keep it tidy. ``processor_id`` is new for every process, never reused.

        Raises StorageUnavailable, SchemaTooNew, ValueError.
        """
        if settings.url is None:
            return cls.in_memory()
        database = await open_database(settings.url, HARD_LIMIT * settings.retention.bytes_max)
        try:
            return await cls._over(database, settings, processor_id, on_unrecorded)
        except BaseException:
            await database.close()
            raise

    @classmethod
    async def _over(
        cls, database: Database, settings: StoreSettings, processor_id: str, on_unrecorded: Callable[[], None]
    ) -> Self:
        owner = Owner(database, processor_id, settings.owner_ttl_ms)
        await owner.announce()
        journal = DurableJournal(database, owner)
        keys = DurableKeys(database, owner, journal)
        optional = settings.when_unavailable is WhenUnavailable.SERVE_WITHOUT_JOURNAL
        chosen = OptionalJournal(journal, on_unrecorded) if optional else journal
        texts = DurableTexts(database, owner, journal)
        stores = cls(chosen, journal, keys, DurableLedger(database, owner), texts)
        stores._closing.push_async_callback(database.close)
        stores._closing.push_async_callback(_leave, owner)
        stores._closing.push_async_callback(journal.close)
        stores._closing.push_async_callback(keys.close)
        stores._closing.push_async_callback(texts.close)
        housekeeping = Housekeeping(database, owner, settings.retention)
        stores._background = [
            asyncio.create_task(owner.run_renewals(), name="renew this process's name"),
            asyncio.create_task(housekeeping.run(), name="journal housekeeping"),
            asyncio.create_task(stores._run_ledger_housekeeping(settings.retention.interval_s), name="ledger housekeeping"),
        ]
        return stores

    async def tool_call_recorded(self, request_id: str) -> bool:
        """For the tool gate (R12). Where the ledger can't be asked, the answer that lets no action happen twice."""
        if self.ledger is None:
            return False
        try:
            return await self.ledger.calls_of(request_id) > 0
        except LedgerUnavailable as error:
            _log.warning("the tool gate stays closed for %s: %s", request_id, error)
            return True

    async def close(self) -> None:
        """Store what was appended, say that this process has left nothing, let go of the database."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._closing.aclose()

    async def _run_ledger_housekeeping(self, interval_s: float) -> None:
        assert self.ledger is not None
        while True:
            try:
                for call in await self.ledger.tidy():
                    _log.warning("the outcome of %s is unknown; settle it with: deltafence tools settle", call)
            except LedgerUnavailable as error:
                _log.warning("the ledger's housekeeping has to wait: %s", error)
            await asyncio.sleep(interval_s)


async def _leave(owner: Owner) -> None:
    try:
        await owner.leave()
    except StorageUnavailable as error:
        _log.warning("this process's name stays in the database until it expires: %s", error)
