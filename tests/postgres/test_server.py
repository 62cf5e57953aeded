"""What is particular to PostgreSQL: a server that goes away, deadlocks, text that it can't hold."""

import asyncio
import os

import asyncpg
import pytest

from extproc.storage.migrations import SQL
from extproc.storage.postgres import RUNS_MAX, PostgresDatabase
from extproc.storage.script import Script, StorageUnavailable


def names() -> Script[list[str]]:
    rows = yield SQL("select_processors")
    return [str(row[0]) for row in rows]


def keep_alive(*processor_ids: str) -> Script[None]:
    for processor_id in processor_ids:
        yield SQL("keep_alive", processor_id=processor_id, ttl_ms=1_000)


async def test_a_connection_that_the_server_ends_is_replaced(database_url: str):
    database = await PostgresDatabase.open(database_url)
    await database.write(lambda: keep_alive("proc_a"))
    async with database._pool.acquire() as connection:
        backend = connection.get_server_pid()
    other = await asyncpg.connect(os.environ["DELTAFENCE_TEST_POSTGRES"])
    assert await other.fetchval("SELECT pg_terminate_backend($1)", backend)
    await other.close()
    await database.write(lambda: keep_alive("proc_c"))
    assert "proc_c" in await database.read(names)
    await database.close()


async def test_a_deadlock_is_run_again(database_url: str):
    databases = [await PostgresDatabase.open(database_url) for _ in range(2)]
    for database in databases:
        await database.write(lambda: keep_alive("proc_a", "proc_b"))

    for _ in range(20):  # each time one of the two may be broken off, and has the other out of its way when it is run again
        await asyncio.gather(
            databases[0].write(lambda: keep_alive("proc_a", "proc_b")), databases[1].write(lambda: keep_alive("proc_b", "proc_a"))
        )
    for database in databases:
        await database.close()


async def test_a_script_that_always_deadlocks_is_given_up(database_url: str):
    database = await PostgresDatabase.open(database_url)
    runs = 0

    def doomed() -> Script[None]:
        nonlocal runs
        runs += 1
        yield from keep_alive("proc_a")
        raise asyncpg.DeadlockDetectedError("as PostgreSQL says it")

    with pytest.raises(StorageUnavailable, match="Deadlock"):
        await database.write(doomed)
    assert runs == RUNS_MAX
    assert await database.read(names) == []
    await database.close()


async def test_a_migration_that_never_ends_is_not_waited_for_forever(database_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("extproc.storage.postgres.OPEN_TIMEOUT_S", 0.2)
    other = await asyncpg.connect(os.environ["DELTAFENCE_TEST_POSTGRES"])
    monkeypatch.setattr("extproc.storage.postgres.MIGRATION_LOCK", 7)
    await other.execute("SELECT pg_advisory_lock(7)")
    with pytest.raises(StorageUnavailable, match="no answer in time"):
        await PostgresDatabase.open(database_url)
    await other.close()


async def test_a_reader_can_not_write(database_url: str):
    database = await PostgresDatabase.open(database_url)
    with pytest.raises(StorageUnavailable, match="read-only"):
        await database.read(lambda: keep_alive("proc_a"))
    await database.close()
