"""Fixtures that several rooms' tests share."""

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

# The machine is shared: how long an example takes says nothing about the code. The same examples every time, so that a red run
# tells of the change that it tests; `make explore` looks for new ones.
hypothesis.settings.register_profile("same examples", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same examples"))

POSTGRES_VARIABLE = "DELTAFENCE_TEST_POSTGRES"
"""Set by tests/postgres/server.py: with it, everything that runs over a database runs over PostgreSQL instead of SQLite."""


@contextmanager
def databases(folder: Path) -> Iterator[Callable[[], str]]:
    """Makes addresses of empty databases, SQLite's in ``folder``."""
    server = os.environ.get(POSTGRES_VARIABLE)
    schemas: list[str] = []

    def make() -> str:
        name = f"test_{uuid.uuid4().hex}"
        if server is None:
            return f"sqlite:{folder / name}.db"
        _execute(server, f"CREATE SCHEMA {name}")
        schemas.append(name)
        return f"{server}?search_path={name}"

    yield make
    for name in schemas:
        _execute(server or "", f"DROP SCHEMA {name} CASCADE")


@pytest.fixture
def make_database_url(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Makes addresses of empty databases."""
    with databases(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def module_database_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a database that a module's tests share."""
    with databases(tmp_path_factory.mktemp("database")) as make:
        yield make()


@pytest.fixture
def database_url(make_database_url: Callable[[], str]) -> str:
    """The address of an empty database."""
    return make_database_url()


def _execute(server: str, statement: str) -> None:
    """In a thread with a loop of its own, since a test's loop may be running in this one."""
    import asyncpg

    async def execute() -> None:
        connection = await asyncpg.connect(server)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, execute()).result()
