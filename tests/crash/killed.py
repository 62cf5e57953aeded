"""A process that is killed at the n-th step of its database, and what it managed to tell before.

Every SQL statement is a step, BEGIN and COMMIT included: the kernel kills the process there and then, as it does on a node that
runs out of memory. What the child told went through a pipe, so it is what the world outside has really seen.
"""

import asyncio
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from extproc.storage import postgres
from extproc.storage.script import Dialect
from extproc.storage.sqlite import SqliteDatabase

Tell = Callable[[str], None]
Life = Callable[[Tell], Awaitable[None]]


def run_killed(life: Life, step: int) -> tuple[list[str], bool]:
    """Run ``life`` in a forked child that dies at ``step``; what it told, and whether it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            die_at(step)
            asyncio.run(_live(life, writing))
        except BaseException:
            os._exit(70)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        words = told.read().split()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or os.waitstatus_to_exitcode(status) == 0, f"the child broke at step {step} by itself, after {words}"
    return words, killed


async def _live(life: Life, writing: int) -> None:
    def tell(word: str) -> None:
        os.write(writing, f"{word}\n".encode())

    await life(tell)


def die_at(step: int, *, counted_from: str = "") -> None:
    """Kill this process at its ``step``-th statement; the first one is the first that has ``counted_from`` in it."""
    left = step
    counting = False

    def count(statement: str) -> None:
        nonlocal left, counting
        counting = counting or counted_from in statement
        left -= counting
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    _count_sqlite(count)
    _count_postgres(count)


def _count_sqlite(count: Callable[[str], None]) -> None:
    connect = SqliteDatabase._connect

    def counted(database: SqliteDatabase) -> sqlite3.Connection:
        connection = connect(database)
        connection.set_trace_callback(count)
        return connection

    SqliteDatabase._connect = counted  # type: ignore[method-assign]


def _count_postgres(count: Callable[[str], None]) -> None:
    run_statement = postgres._run_statement

    async def counted(connection: Any, statement: Any) -> Any:
        text = statement.folder.texts(Dialect.POSTGRES)[statement.name]
        count(text)
        rows = await run_statement(connection, statement)
        count(text)  # the statement was carried out; its transaction, if it has one, was not committed
        return rows

    postgres._run_statement = counted
