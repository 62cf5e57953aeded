"""Statements by name, in two dialects that must not drift apart."""

from pathlib import Path

import pytest

import extproc
from extproc.storage.migrations import SchemaTooNew, migrations, pending
from extproc.storage.script import Dialect, StatementFolder, parameters_of, positional, run_script

ROOMS = ("storage", "journal", "tools")
OF_ONE_DIALECT = {"admit_requests", "touch_requests", "insert_events", "store_batch"}
"""One statement on PostgreSQL, which can change two tables in one, are three on SQLite, where a statement costs no round trip."""
FOLDERS = {room: StatementFolder(Path(extproc.__file__).parent / room / "sql") for room in ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_both_dialects_hold_the_same_statements_with_the_same_parameters(room: str):
    sqlite, postgres = (FOLDERS[room].texts(dialect) for dialect in Dialect)
    assert sqlite
    assert sqlite.keys() - OF_ONE_DIALECT == postgres.keys() - OF_ONE_DIALECT
    for name in sqlite.keys() & postgres.keys():
        text = sqlite[name]
        assert parameters_of(text) == parameters_of(postgres[name]), name


@pytest.mark.parametrize("dialect", Dialect)
def test_migrations_are_numbered_without_gaps(dialect: Dialect):
    assert list(migrations(dialect)) == list(range(1, len(migrations(Dialect.SQLITE)) + 1))


def test_only_the_migrations_that_are_missing_are_run():
    newest = max(migrations(Dialect.SQLITE))
    assert list(pending(Dialect.SQLITE, newest - 1)) == [newest]
    assert pending(Dialect.SQLITE, newest) == {}


def test_a_database_of_a_newer_version_is_not_touched():
    with pytest.raises(SchemaTooNew, match="schema 999"):
        pending(Dialect.POSTGRES, 999)


def test_named_parameters_become_numbers_in_order_of_first_use():
    assert positional("SELECT :b::text, :a WHERE x = :b") == ("SELECT $1::text, $2 WHERE x = $1", ("b", "a"))


def test_a_script_gets_the_rows_of_each_statement():
    folder = FOLDERS["storage"]

    def script():
        first = yield folder("one", value=1)
        second = yield folder("two", value=2)
        return first + second

    assert run_script(script(), lambda statement: [(statement.name, statement.parameters["value"])]) == [("one", 1), ("two", 2)]
