"""SQLite: one file, one writer thread with group commit, one reader thread.

1. Every write that waits when the writer becomes free shares its transaction and its fsync with the others. A script that fails
   is rolled back alone, by its savepoint.
2. WAL, so that readers and other processes on this machine are never blocked by a writer, and ``synchronous=FULL``, so that a
   committed boundary survives a power cut as well as a killed process.
3. Other processes may write to the same file; ``BEGIN IMMEDIATE`` waits for them up to ``BUSY_TIMEOUT_S``.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Self

from extproc.storage.migrations import pending, read_version
from extproc.storage.script import Dialect, Result, Row, ScriptFactory, Statement, StorageUnavailable, run_script

BUSY_TIMEOUT_S: Final = 2.0
WAL_RETRY_S: Final = 0.01
GROUP_MAX: Final = 256
"""Scripts in one transaction: far above what gathers during one fsync, so that one stuck group can't hold everything."""

_SCRIPT_FAULTS: Final = (sqlite3.IntegrityError, sqlite3.ProgrammingError)
"""SQLite's errors that one script brought about and that concern no other script of its group."""


@dataclass(slots=True)
class _Job(Generic[Result]):
    script: ScriptFactory[Result]
    future: "asyncio.Future[Result]"
    result: Result | None = None
    error: BaseException | None = None

    def settle(self) -> None:
        if self.future.done():  # the caller was cancelled; the transaction stands
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]  # set together with error=None


class SqliteDatabase:
    """The Database interface over one SQLite file. Build it with ``open``; use it from one event loop."""

    dialect = Dialect.SQLITE

    def __init__(self, path: Path, bytes_max: int | None) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite-reader")
        self._reading: sqlite3.Connection | None = None
        self._writer = threading.Thread(target=self._run_writer, name="sqlite-writer", daemon=True)
        self._closed = False

    @classmethod
    async def open(cls, path: Path, bytes_max: int | None = None) -> Self:
        """Make or open the file and bring its tables up to date. ``bytes_max``: a larger file is refused as a full disk is.

        Raises StorageUnavailable, SchemaTooNew.
        """
        database = cls(path, bytes_max)
        await asyncio.get_running_loop().run_in_executor(database._reader, database._migrate)
        database._writer.start()
        return database

    async def write(self, script: ScriptFactory[Result], *, one_statement: bool = False) -> Result:
        if self._closed:
            raise StorageUnavailable("the database is closed")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(script, future))
        return await future

    async def read(self, script: ScriptFactory[Result]) -> Result:
        if self._closed:
            raise StorageUnavailable("the database is closed")
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._read, script)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.join)
        await loop.run_in_executor(self._reader, self._close_reader)
        self._reader.shutdown()

    # --- reader thread

    def _read(self, script: ScriptFactory[Result]) -> Result:
        try:
            if self._reading is None:
                self._reading = self._connect()
                self._reading.execute("PRAGMA query_only = ON")
            return _in_transaction(self._reading, "BEGIN", lambda: run_script(script(), _runner(self._reading)))
        except sqlite3.Error as error:
            raise _unavailable(error) from error

    def _close_reader(self) -> None:
        if self._reading is not None:
            self._reading.close()

    def _migrate(self) -> None:
        try:
            connection = self._connect()
            try:
                _in_transaction(connection, "BEGIN IMMEDIATE", lambda: _migrate(connection))
            finally:
                connection.close()
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error, str(self._path)) from error

    # --- writer thread

    def _run_writer(self) -> None:
        connection: sqlite3.Connection | None = None
        while jobs := self._next_group():
            try:
                if connection is None:
                    connection = self._connect()
                _in_transaction(connection, "BEGIN IMMEDIATE", lambda: _run_group(connection, jobs))  # noqa: B023  (called at once)
            except sqlite3.Error as error:
                for job in jobs:
                    job.error = _unavailable(error)
            loop = jobs[0].future.get_loop()
            loop.call_soon_threadsafe(_settle_group, jobs)
        if connection is not None:
            connection.close()

    def _next_group(self) -> list[_Job[Any]]:
        """Everything that waits; empty when the database is being closed."""
        first = self._jobs.get()
        if first is None:
            return []
        group = [first]
        while len(group) < GROUP_MAX:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                self._jobs.put(None)  # behind this group, so that the next call sees it
                break
            group.append(job)
        return group

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        # A container whose file system is read-only has no place for SQLite's temporary files, which a large savepoint needs.
        connection.execute("PRAGMA temp_store = MEMORY")
        if self._bytes_max is not None:
            page_bytes = int(connection.execute("PRAGMA page_size").fetchone()[0])
            connection.execute(f"PRAGMA max_page_count = {max(1, self._bytes_max // page_bytes)}")
        return connection


def use_wal(connection: sqlite3.Connection) -> None:
    """Two connections that make a new file's first switch to WAL at once would wait for each other, so SQLite refuses one of them
    at once whatever its busy timeout is. The file keeps the mode, so the one that was refused finds it set soon."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(WAL_RETRY_S)
        else:
            return


def _in_transaction(connection: sqlite3.Connection, begin: str, work: Callable[[], Result]) -> Result:
    connection.execute(begin)
    try:
        result = work()
        if connection.in_transaction:
            connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back by itself on some errors (a full disk), and a second ROLLBACK would be an error of its own.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def _run_group(connection: sqlite3.Connection, jobs: list[_Job[Any]]) -> None:
    """Every statement gives the interpreter's lock away and has to win it back from a busy event loop, so there are few."""
    run = _runner(connection)
    alone = len(jobs) == 1
    for job in jobs:
        if not alone:
            connection.execute("SAVEPOINT script")
        try:
            job.result = run_script(job.script(), run)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, _SCRIPT_FAULTS):
                raise
            job.error = error
            connection.execute("ROLLBACK" if alone else "ROLLBACK TO script")
        if not alone:
            connection.execute("RELEASE script")


def _settle_group(jobs: list[_Job[Any]]) -> None:
    for job in jobs:
        job.settle()


def _runner(connection: sqlite3.Connection | None) -> Callable[[Statement], list[Row]]:
    assert connection is not None

    def run(statement: Statement) -> list[Row]:
        text = statement.folder.texts(Dialect.SQLITE)[statement.name]
        return connection.execute(text, statement.parameters).fetchall()

    return run


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS schema_versions (version INTEGER PRIMARY KEY)")
    version = run_script(read_version(), _runner(connection))
    for number, statements in pending(Dialect.SQLITE, version).items():
        for statement in statements:
            connection.execute(statement)
        connection.execute("INSERT INTO schema_versions (version) VALUES (?)", (number,))


def _unavailable(error: Exception, path: str = "") -> StorageUnavailable:
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    # What was written and not synced may be found again after a power cut.
    perhaps_stored = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_FSYNC
    return StorageUnavailable(f"SQLite: {error}{path and ' '}{path} ({name})", perhaps_stored=perhaps_stored)
