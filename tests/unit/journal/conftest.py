"""Journals to test: in memory, and over a database with one or two processes on it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from extproc.journal.durable import DurableJournal
from extproc.journal.interface import Journal
from extproc.journal.memory import MemoryJournal
from extproc.storage.opening import open_database
from extproc.storage.owner import Owner
from extproc.storage.script import Database


@dataclass(frozen=True, slots=True)
class Process:
    """What one processor has on a shared database."""

    database: Database
    owner: Owner
    journal: DurableJournal


StartProcess = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start_process(database_url: str) -> AsyncIterator[StartProcess]:
    """Makes a process on the test's database; ``ttl_ms=0`` makes one that counts as dead from the start."""
    async with AsyncExitStack() as stack:

        async def start(processor_id: str = "proc_a", ttl_ms: int = 60_000) -> Process:
            database = await open_database(database_url)
            stack.push_async_callback(database.close)
            owner = Owner(database, processor_id, ttl_ms)
            await owner.announce()
            journal = DurableJournal(database, owner)
            stack.push_async_callback(journal.close)
            return Process(database, owner, journal)

        yield start


@pytest.fixture(params=["memory", "database"])
async def journal(request: pytest.FixtureRequest, start_process: StartProcess) -> Journal:
    """Every kind of journal in turn."""
    if request.param == "memory":
        return MemoryJournal()
    return (await start_process()).journal
