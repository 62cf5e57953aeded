"""PostgreSQL through asyncpg's pool: one connection a transaction.

1. READ COMMITTED, and rows locked in the scripts: a script that waited for a row sees what the other one did to it.
2. A script that PostgreSQL broke off to end a deadlock is run again, whole.
3. Everything has a time limit. A server that doesn't answer is an unavailable one, never a wait without end.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, Self

import asyncpg

from extproc.storage.migrations import pending, read_version
from extproc.storage.script import Dialect, Result, Row, Script, ScriptFactory, Statement, StorageUnavailable, positional

CONNECT_TIMEOUT_S: Final = 2.0
TRANSACTION_TIMEOUT_S: Final = 2.0
"""Of which a first delta waits at most this long before its request is refused."""
OPEN_TIMEOUT_S: Final = 30.0
"""For the tables to be brought up to date, by us or by whoever came first."""
CONNECTIONS_MAX: Final = 8
RUNS_MAX: Final = 3
MIGRATION_LOCK: Final = 0x6465_6C74_6166_656E
"""Advisory lock, so that gateways that start together migrate one after the other ("deltafen")."""

_Connection = Any
"""asyncpg's connection, or the pool's proxy of one; the package has no types."""
_Pool = Any
_Begin = Callable[[_Connection], AbstractAsyncContextManager[object]]

_CONNECTION_LOST: Final = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError, ConnectionError)
_UNAVAILABLE: Final = (*_CONNECTION_LOST, asyncpg.PostgresError, OSError, TimeoutError)


class _NothingStored(Exception):  # noqa: N818  (a reason to run a script again)
    """``cause`` ended the transaction before anything of it could be stored."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class PostgresDatabase:
    """The Database interface over one PostgreSQL database. Build it with ``open``; use it from one event loop."""

    dialect = Dialect.POSTGRES

    def __init__(self, pool: _Pool) -> None:
        self._pool = pool

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect and bring the tables up to date. Raises StorageUnavailable, SchemaTooNew."""
        pool = asyncpg.create_pool(
            url,
            min_size=1,
            max_size=CONNECTIONS_MAX,
            timeout=CONNECT_TIMEOUT_S,
            reset=_leave_as_it_is,
            server_settings={"application_name": "deltafence"},
        )
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await pool
                async with pool.acquire() as connection, connection.transaction():
                    await _migrate(connection)
        except BaseException as error:
            pool.terminate()
            if isinstance(error, _UNAVAILABLE):
                raise _unavailable(error) from error
            raise
        return cls(pool)

    async def write(self, script: ScriptFactory[Result], *, one_statement: bool = False) -> Result:
        return await self._run(script, _alone if one_statement else _writing)

    async def read(self, script: ScriptFactory[Result]) -> Result:
        return await self._run(script, _reading)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(TRANSACTION_TIMEOUT_S):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    async def _run(self, script: ScriptFactory[Result], begin: _Begin) -> Result:
        runs = 1
        while True:
            try:
                return await self._run_once(script, begin)
            except _NothingStored as nothing:
                if runs == RUNS_MAX:
                    raise _unavailable(nothing.cause) from nothing.cause
                runs += 1
            except _UNAVAILABLE as error:
                raise _unavailable(error) from error

    async def _run_once(self, script: ScriptFactory[Result], begin: _Begin) -> Result:
        """Raises _NothingStored where the script may be run again, and else whatever asyncpg raises."""
        begun = False
        try:
            async with (
                asyncio.timeout(CONNECT_TIMEOUT_S + TRANSACTION_TIMEOUT_S),
                self._pool.acquire() as connection,
                asyncio.timeout(TRANSACTION_TIMEOUT_S),
                begin(connection),
            ):
                begun = begin is not _alone
                return await _drive(connection, script())
        except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as error:
            raise _NothingStored(error) from error
        except _CONNECTION_LOST as error:
            # The server had closed a connection of the pool. A lone statement may have been carried out: it is one that stores
            # the same thing twice without harm (script.py).
            if begun:
                raise
            raise _NothingStored(error) from error


def _writing(connection: _Connection) -> AbstractAsyncContextManager[object]:
    transaction: AbstractAsyncContextManager[object] = connection.transaction()
    return transaction


def _reading(connection: _Connection) -> AbstractAsyncContextManager[object]:
    transaction: AbstractAsyncContextManager[object] = connection.transaction(readonly=True)
    return transaction


def _alone(connection: _Connection) -> AbstractAsyncContextManager[object]:
    """A statement outside of a transaction is one."""
    return nullcontext()


async def _leave_as_it_is(connection: _Connection) -> None:
    """asyncpg would reset a session before each reuse, one more round trip; ours never change anything in theirs."""


async def _drive(connection: _Connection, script: Script[Result]) -> Result:
    try:
        statement = next(script)
        while True:
            statement = script.send(await _run_statement(connection, statement))
    except StopIteration as stop:
        result: Result = stop.value
        return result


async def _run_statement(connection: _Connection, statement: Statement) -> list[Row]:
    text, names = positional(statement.folder.texts(Dialect.POSTGRES)[statement.name])
    rows: list[Row] = await connection.fetch(text, *(statement.parameters[name] for name in names))
    return rows


async def _migrate(connection: _Connection) -> None:
    await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
    await connection.execute("CREATE TABLE IF NOT EXISTS schema_versions (version BIGINT PRIMARY KEY)")
    version = await _drive(connection, read_version())
    for number, statements in pending(Dialect.POSTGRES, version).items():
        for statement in statements:
            await connection.execute(statement)
        await connection.execute("INSERT INTO schema_versions (version) VALUES ($1)", number)


def _unavailable(error: BaseException) -> StorageUnavailable:
    return StorageUnavailable(f"PostgreSQL: {str(error) or 'no answer in time'} ({type(error).__name__})")
