"""PostgreSQL through asyncpg's pool: one connection a transaction.

1. READ COMMITTED, and rows locked in the scripts: a script that waited for a row sees what the other one did to it.
2. A script that PostgreSQL broke off to end a deadlock is run again, whole.
3. Everything has a time limit. A server that doesn't answer is an unavailable one, never a wait without end.
"""

import asyncio
import itertools
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


class _RunFailed(Exception):  # noqa: N818  (an outcome)
    """One run of a script came to nothing because of ``cause``, as far as is known."""

    def __init__(self, cause: BaseException, *, perhaps_stored: bool, may_run_again: bool = False) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.perhaps_stored = perhaps_stored
        self.may_run_again = may_run_again


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
            command_timeout=OPEN_TIMEOUT_S,  # bounds the driver's own cancel: a dead server's connection would be kept for ever
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
        perhaps_stored = False
        for run in itertools.count(1):
            try:
                return await self._run_once(script, begin)
            except _RunFailed as failed:
                perhaps_stored |= failed.perhaps_stored
                if run == RUNS_MAX or not failed.may_run_again:
                    raise _unavailable(failed.cause, perhaps_stored=perhaps_stored) from failed.cause
        raise AssertionError("the last run has raised")

    async def _run_once(self, script: ScriptFactory[Result], begin: _Begin) -> Result:
        """Raises _RunFailed."""
        sent = False
        try:
            async with (
                asyncio.timeout(CONNECT_TIMEOUT_S + TRANSACTION_TIMEOUT_S),
                self._pool.acquire() as connection,
                asyncio.timeout(TRANSACTION_TIMEOUT_S),
                begin(connection),
            ):
                sent = True
                return await _drive(connection, script())
        except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as error:
            raise _RunFailed(error, perhaps_stored=False, may_run_again=True) from error
        except _CONNECTION_LOST as error:
            # Often the server had closed a connection of the pool. A lone statement may have been carried out: it is one that
            # stores the same thing twice without harm (script.py).
            raise _RunFailed(error, perhaps_stored=sent, may_run_again=begin is _alone or not sent) from error
        except _UNAVAILABLE as error:
            raise _RunFailed(error, perhaps_stored=sent and not _is_refusal(error)) from error


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


def _is_refusal(error: BaseException) -> bool:
    """Whether the server itself has said that it stored nothing. One that is being shut down may say so of what it has stored."""
    return isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.OperatorInterventionError)


def _unavailable(error: BaseException, *, perhaps_stored: bool = False) -> StorageUnavailable:
    why = f"PostgreSQL: {str(error) or 'no answer in time'} ({type(error).__name__})"
    return StorageUnavailable(why, perhaps_stored=perhaps_stored)
