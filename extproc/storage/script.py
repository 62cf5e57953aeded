"""One transaction, written once and run on either database.

A script is a generator: it yields statements and is sent their rows. It does no I/O itself, so the same script runs inside
SQLite's writer thread and over PostgreSQL's async driver, and a test can run it against a list of rows. It may be run more than
once (PostgreSQL asks for that after a deadlock), so scripts are passed as factories and keep no state outside.

Statements live by name in ``sqlite.sql`` and ``postgres.sql`` of the room that owns them; both files hold the same names with
the same parameters, written ``:name``.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

Result = TypeVar("Result")
Value = str | int | float | bytes | None
Row = Sequence[Any]

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")


class Dialect(StrEnum):
    """Which database speaks."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement to run, with its parameters by name."""

    folder: "StatementFolder"
    name: str
    parameters: Mapping[str, Value]


Script = Generator[Statement, list[Row], Result]
ScriptFactory = Callable[[], Script[Result]]


class StorageUnavailable(Exception):  # noqa: N818  (a state of the outside, not a fault of the caller)
    """The database can't carry out a transaction now: lost, full, locked for too long, or read-only.

    ``perhaps_stored``: it fell silent after it was given the transaction, so whether it is stored, now or later, is not known.
    """

    def __init__(self, why: str, *, perhaps_stored: bool = False) -> None:
        super().__init__(why)
        self.perhaps_stored = perhaps_stored


class Database(Protocol):
    """Runs scripts. Both methods raise StorageUnavailable, and then nothing of the script is stored unless it says "perhaps"."""

    @property
    def dialect(self) -> Dialect:
        """Which of a room's SQL files this database reads."""

    async def write(self, script: ScriptFactory[Result], *, one_statement: bool = False) -> Result:
        """Run a script as one durable transaction, whole or not at all; it sees and orders every earlier one.

        ``one_statement``: the script yields no second one on PostgreSQL, which then needs one round trip, and it may
        be stored twice without harm, since a lost connection is answered by running it again.
        """

    async def read(self, script: ScriptFactory[Result]) -> Result:
        """Run a script that changes nothing, beside the writers."""

    async def close(self) -> None:
        """Finish what runs and let go of the database."""


class StatementFolder:
    """The named statements of one room, in every dialect."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, name: str, **parameters: Value) -> Statement:
        """The statement of that name, ready to be yielded by a script."""
        return Statement(self, name, parameters)

    def texts(self, dialect: Dialect) -> Mapping[str, str]:
        """Name to SQL."""
        return _read_statements(self._folder / f"{dialect}.sql")


@cache
def _read_statements(path: Path) -> Mapping[str, str]:
    _, *pieces = _NAME.split(path.read_text())
    return {name: text.strip() for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


@cache
def positional(text: str) -> tuple[str, tuple[str, ...]]:
    """SQL with ``$1`` in place of ``:name``, as PostgreSQL wants it, and the names in that order."""
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    return _PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", text), names


def parameters_of(text: str) -> frozenset[str]:
    """The parameter names in a statement."""
    return frozenset(_PARAMETER.findall(text))


def run_script(script: Script[Result], run: Callable[[Statement], list[Row]]) -> Result:
    """Drive a script with a function that carries out one statement."""
    try:
        statement = next(script)
        while True:
            statement = script.send(run(statement))
    except StopIteration as stop:
        result: Result = stop.value
        return result
