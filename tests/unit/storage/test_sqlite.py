"""What is particular to SQLite: group commit, a full disk, other processes on the file."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from extproc.storage.migrations import SQL
from extproc.storage.script import Script, StorageUnavailable
from extproc.storage.sqlite import SqliteDatabase, use_wal


def keep_alive(processor_id: str) -> Script[None]:
    yield SQL("keep_alive", processor_id=processor_id, ttl_ms=1_000)


def names() -> Script[list[str]]:
    rows = yield SQL("select_processors")
    return [str(row[0]) for row in rows]


async def test_writes_that_wait_together_share_one_transaction(tmp_path: Path):
    database = await SqliteDatabase.open(tmp_path / "journal.db")
    with sqlite3.connect(tmp_path / "journal.db", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")  # holds the first group back while the others gather
        first = asyncio.ensure_future(database.write(lambda: keep_alive("proc_first")))
        rest = [asyncio.ensure_future(database.write(lambda n=n: keep_alive(f"proc_{n:03d}"))) for n in range(100)]
        await asyncio.sleep(0)
        before = other.execute("PRAGMA data_version").fetchone()[0]
        other.execute("COMMIT")
        await asyncio.gather(first, *rest)
        after = other.execute("PRAGMA data_version").fetchone()[0]
    other.close()
    # data_version moves once per look, however many commits there were, so the number of commits is read from the WAL's frames:
    # a hundred single commits would leave at least a hundred.
    assert after != before
    frames = ((tmp_path / "journal.db-wal").stat().st_size - 32) // (4096 + 24)
    assert len(await database.read(names)) == 101
    assert frames < 50
    await database.close()


async def test_no_connection_needs_a_place_for_temporary_files(tmp_path: Path):
    """A container's read-only file system has none, and SQLite would spill a large savepoint there."""
    database = await SqliteDatabase.open(tmp_path / "journal.db")
    connection = database._connect()
    assert connection.execute("PRAGMA temp_store").fetchone() == (2,)
    connection.close()
    await database.close()


async def test_a_full_disk_is_unavailable_and_stores_nothing_of_the_group(tmp_path: Path):
    database = await SqliteDatabase.open(tmp_path / "journal.db")
    await database.close()
    size = (tmp_path / "journal.db").stat().st_size
    database = await SqliteDatabase.open(tmp_path / "journal.db", bytes_max=size)

    def fill() -> Script[None]:
        for number in range(1_000):
            yield SQL("keep_alive", processor_id=f"proc_{number}_" + "x" * 100, ttl_ms=1_000)

    with pytest.raises(StorageUnavailable, match="SQLITE_FULL"):
        await database.write(fill)
    assert await database.read(names) == []
    await database.write(lambda: keep_alive("proc_small"))
    assert await database.read(names) == ["proc_small"]
    await database.close()


async def test_readers_do_not_wait_for_a_writer_in_another_process(tmp_path: Path):
    database = await SqliteDatabase.open(tmp_path / "journal.db")
    await database.write(lambda: keep_alive("proc_a"))
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("DELETE FROM processors")
    assert await database.read(names) == ["proc_a"]
    other.execute("COMMIT")
    other.close()
    assert await database.read(names) == []
    await database.close()


async def test_a_write_whose_caller_gave_up_is_carried_out(tmp_path: Path):
    database = await SqliteDatabase.open(tmp_path / "journal.db")
    abandoned = asyncio.ensure_future(database.write(lambda: keep_alive("proc_a")))
    await asyncio.sleep(0)
    abandoned.cancel()
    await database.write(lambda: keep_alive("proc_b"))
    assert await database.read(names) == ["proc_a", "proc_b"]
    await database.close()


async def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path):
    (tmp_path / "journal.db").write_bytes(b"not a database, and long enough to be looked at" * 100)
    with pytest.raises(StorageUnavailable, match="not a database"):
        await SqliteDatabase.open(tmp_path / "journal.db")


@pytest.mark.parametrize(
    ("code", "perhaps_stored"),
    [(sqlite3.SQLITE_IOERR_FSYNC, True), (sqlite3.SQLITE_IOERR_WRITE, False), (sqlite3.SQLITE_FULL, False), (None, False)],
)
async def test_only_what_was_written_and_not_synced_may_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, perhaps_stored: bool
):
    class Failing(sqlite3.Connection):
        """Whose disk refuses what a commit has to do."""

        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            if sql == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                if code is not None:
                    error.sqlite_errorcode = code
                raise error
            return super().execute(sql, *parameters)  # type: ignore[arg-type]

    database = await SqliteDatabase.open(tmp_path / "journal.db")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Failing))
    with pytest.raises(StorageUnavailable) as caught:
        await database.write(lambda: keep_alive("proc_a"))
    assert caught.value.perhaps_stored is perhaps_stored
    monkeypatch.undo()
    await database.close()


class Refusing:
    """A connection whose switch to WAL is refused so often, as where another one switches at the same time."""

    def __init__(self, code: int, times: int) -> None:
        self.error = sqlite3.OperationalError("database is locked")
        self.error.sqlite_errorcode = code
        self.times = times

    def execute(self, statement: str) -> None:
        assert statement == "PRAGMA journal_mode = WAL"
        self.times -= 1
        if self.times >= 0:
            raise self.error


def test_a_switch_to_wal_that_meets_another_ones_is_made_again():
    connection = Refusing(sqlite3.SQLITE_BUSY, times=3)
    use_wal(connection)  # type: ignore[arg-type]
    assert connection.times == -1


@pytest.mark.parametrize("code", [sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN])
def test_a_switch_to_wal_that_can_not_be_made_is_tried_once(code: int):
    connection = Refusing(code, times=3)
    with pytest.raises(sqlite3.OperationalError):
        use_wal(connection)  # type: ignore[arg-type]
    assert connection.times == 2
