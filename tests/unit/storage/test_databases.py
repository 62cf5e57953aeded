"""What a Database promises, over SQLite and (``make test-postgres``) PostgreSQL."""

import asyncio
from pathlib import Path

import pytest

from extproc.storage.migrations import SQL, migrations, read_version
from extproc.storage.opening import open_database
from extproc.storage.script import Database, Dialect, Script, StorageUnavailable


def write_row(processor_id: str) -> Script[str]:
    yield SQL("keep_alive", processor_id=processor_id, ttl_ms=1_000)
    return processor_id


async def test_processes_that_open_an_empty_database_at_once_all_find_its_tables(database_url: str):
    databases = await asyncio.gather(*(open_database(database_url) for _ in range(8)))
    assert [await database.read(read_version) for database in databases] == [max(migrations(Dialect.SQLITE))] * 8
    for database in databases:
        await database.close()


async def test_a_database_of_an_older_schema_is_brought_up_to_date(database_url: str, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as older:
        older.setattr("extproc.storage.migrations.migrations", lambda dialect: {1: migrations(dialect)[1]})
        database = await open_database(database_url)
        assert await database.read(read_version) == 1
        await database.write(lambda: write_row("proc_a"))
        await database.close()
    database = await open_database(database_url)
    assert await database.read(read_version) == max(migrations(database.dialect))
    assert await _names(database) == ["proc_a"]
    await database.close()


async def test_opening_again_keeps_what_is_there(database_url: str):
    for _ in range(2):
        database = await open_database(database_url)
        assert await database.write(lambda: write_row("proc_a")) == "proc_a"
        await database.close()


async def test_a_script_that_fails_leaves_nothing_and_harms_no_other(database_url: str):
    database = await open_database(database_url)

    def failing() -> Script[None]:
        yield from write_row("proc_failing")
        raise LookupError("of the script's own")

    results = await asyncio.gather(
        database.write(lambda: write_row("proc_before")),
        database.write(failing),
        database.write(lambda: write_row("proc_after")),
        return_exceptions=True,
    )
    assert results[0] == "proc_before"
    assert isinstance(results[1], LookupError)
    assert results[2] == "proc_after"
    assert await _names(database) == ["proc_after", "proc_before"]
    await database.close()


async def test_a_closed_database_is_unavailable(database_url: str):
    database = await open_database(database_url)
    await database.close()
    with pytest.raises(StorageUnavailable):
        await database.write(lambda: write_row("proc_a"))
    with pytest.raises(StorageUnavailable):
        await database.read(read_version)


@pytest.mark.parametrize("url", ["mysql://host/name", "", "sqlite:"])
async def test_an_address_of_no_database_is_refused(url: str):
    with pytest.raises(ValueError, match="neither a path nor"):
        await open_database(url)


async def test_a_folder_that_does_not_exist_is_unavailable(tmp_path: Path):
    with pytest.raises(StorageUnavailable, match="unable to open"):
        await open_database(str(tmp_path / "missing" / "journal.db"))


async def test_a_server_that_is_not_there_is_unavailable():
    with pytest.raises(StorageUnavailable, match="PostgreSQL"):
        await open_database("postgresql://nobody@127.0.0.1:1/nothing")


async def _names(database: Database) -> list[str]:
    def names() -> Script[list[str]]:
        rows = yield SQL("select_processors")
        return [str(row[0]) for row in rows]

    return await database.read(names)
