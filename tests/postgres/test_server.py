"""What is particular to PostgreSQL: a server that goes away, deadlocks, text that it can't hold."""

import asyncio
import os

import asyncpg
import pytest

from extproc.storage.migrations import SQL
from extproc.storage.postgres import RUNS_MAX, PostgresDatabase
from extproc.storage.script import Script, ScriptFactory, StorageUnavailable


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


async def test_only_a_server_that_fell_silent_or_left_over_a_transaction_may_have_stored_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("extproc.storage.postgres.TRANSACTION_TIMEOUT_S", 0.3)
    database = await PostgresDatabase.open(database_url)
    await database.write(lambda: keep_alive("proc_a"))

    def refused() -> Script[None]:
        yield from keep_alive("proc_b")
        raise asyncpg.DiskFullError("as PostgreSQL says it")

    def lost() -> Script[None]:
        yield from keep_alive("proc_b")
        raise ConnectionResetError("as asyncpg says it")

    async def perhaps_stored(*, one_statement: bool, script: ScriptFactory[None]) -> bool:
        with pytest.raises(StorageUnavailable) as caught:
            await database.write(script, one_statement=one_statement)
        return caught.value.perhaps_stored

    for one_statement in (True, False):
        assert not await perhaps_stored(one_statement=one_statement, script=refused)
        assert await perhaps_stored(one_statement=one_statement, script=lost)
    server, _, schema = database_url.partition("?search_path=")
    other = await asyncpg.connect(server, server_settings={"search_path": schema})
    async with other.transaction():  # holds the row back for longer than anybody waits
        await other.execute("SELECT * FROM processors WHERE processor_id = 'proc_a' FOR UPDATE")
        for one_statement in (True, False):
            assert await perhaps_stored(one_statement=one_statement, script=lambda: keep_alive("proc_a"))
    await other.close()
    await database.close()
    assert not await perhaps_stored(one_statement=True, script=lambda: keep_alive("proc_a")), "it was never sent"
