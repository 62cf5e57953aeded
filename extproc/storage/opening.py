"""A database by its address, as the operator writes it."""

from pathlib import Path
from typing import Final

from extproc.contract.urls import without_secrets
from extproc.storage.script import Database

POSTGRES_SCHEMES: Final = ("postgres://", "postgresql://")
SQLITE_SCHEME: Final = "sqlite:"


async def open_database(url: str, sqlite_bytes_max: int | None = None) -> Database:
    """``postgresql://user@host/name``, ``sqlite:/path/to/file`` or just a path; tables are brought up to date.

    Raises StorageUnavailable, SchemaTooNew, and ValueError for an address that is neither.
    """
    if url.startswith(POSTGRES_SCHEMES):
        # Imported here, so that a gateway with SQLite needs no PostgreSQL driver.
        try:
            from extproc.storage.postgres import PostgresDatabase
        except ImportError as error:
            raise ValueError("PostgreSQL needs its driver: install the wheel with its extra 'postgres'") from error
        return await PostgresDatabase.open(url)
    path = url.removeprefix(SQLITE_SCHEME)
    if "://" in path or not path:
        raise ValueError(f"the journal's address {without_secrets(url)!r} is neither a path nor a postgresql:// address")
    from extproc.storage.sqlite import SqliteDatabase

    return await SqliteDatabase.open(Path(path), sqlite_bytes_max)
