"""How commands find the database, and what they say when they can't."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import click

from extproc.journal.interface import JournalUnavailable
from extproc.storage.migrations import SchemaTooNew
from extproc.storage.opening import SQLITE_SCHEME, open_database
from extproc.storage.script import Database, StorageUnavailable

DATABASE_VARIABLE: Final = "DELTAFENCE_JOURNAL"
COMMAND_OWNER: Final = "command"
"""In place of a processor's id; a command never owns what runs."""

Result = TypeVar("Result")

DATABASE_OPTION: Final = click.option(
    "--db",
    "url",
    metavar="URL",
    envvar=DATABASE_VARIABLE,
    required=True,
    show_envvar=True,
    help="The journal's database: a path, or postgresql://user@host/name.",
)


def run_on_database(url: str, work: Callable[[Database], Awaitable[Result]]) -> Result:
    """Run ``work`` on an existing database; every way in which that can fail ends the command with one line and status 2."""
    path = url.removeprefix(SQLITE_SCHEME)
    if "://" not in path and not Path(path).is_file():
        _give_up(f"there is no journal at {path}")
    try:
        return asyncio.run(_run(url, work))
    except (StorageUnavailable, JournalUnavailable, SchemaTooNew, ValueError) as error:
        _give_up(str(error))


async def _run(url: str, work: Callable[[Database], Awaitable[Result]]) -> Result:
    database = await open_database(url)
    try:
        return await work(database)
    finally:
        await database.close()


def _give_up(why: str) -> NoReturn:
    click.echo(why, err=True)
    sys.exit(2)
