"""Which tables a database has, and how it got them: numbered files, each run once, in order."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from extproc.storage.script import Dialect, Script, StatementFolder

FOLDER: Final = Path(str(files("extproc.storage"))) / "sql"
SQL: Final = StatementFolder(FOLDER)


class SchemaTooNew(Exception):  # noqa: N818  (the operator's choice of versions, not a fault)
    """The database was migrated by a newer deltafence; this one must not write to it."""


def migrations(dialect: Dialect) -> dict[int, tuple[str, ...]]:
    """Version to its statements, in ascending order. A statement ends with ``;`` at the end of a line."""
    found = {}
    for path in sorted((FOLDER / "migrations" / dialect).glob("*.sql")):
        statements = (piece.strip() for piece in path.read_text().split(";\n"))
        found[int(path.name[:4])] = tuple(statement for statement in statements if statement)
    return found


def pending(dialect: Dialect, version: int) -> dict[int, tuple[str, ...]]:
    """What has to be run on a database at ``version``. Raises SchemaTooNew."""
    known = migrations(dialect)
    if version > max(known):
        raise SchemaTooNew(f"the database has schema {version}, this deltafence knows up to {max(known)}; install a newer one")
    return {number: statements for number, statements in known.items() if number > version}


def read_version() -> Script[int]:
    """The schema's version; 0 for an empty database."""
    rows = yield SQL("read_version")
    return int(rows[0][0]) if rows and rows[0][0] is not None else 0
