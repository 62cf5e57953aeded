"""Fixtures that several rooms' tests share."""

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

POSTGRES_VARIABLE = "DELTAFENCE_TEST_POSTGRES"
"""Set by tests/postgres/server.py: with it, everything that runs over a database runs over PostgreSQL instead of SQLite."""


@pytest.fixture
async def database_url(tmp_path: Path) -> AsyncIterator[str]:
    """The address of an empty database."""
    server = os.environ.get(POSTGRES_VARIABLE)
    if server is None:
        yield f"sqlite:{tmp_path / 'journal.db'}"
        return
    import asyncpg

    schema = f"test_{uuid.uuid4().hex}"
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{server}?search_path={schema}"
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
    finally:
        await connection.close()
