"""docs/testing.md: its commands print what it says, its tables say what the code says."""

import re

import pytest

from extproc.faults.invariants import Invariant
from extproc.faults.points import catalogue
from extproc.faults.storm.callers import Conduct
from extproc.faults.storm.publish import COLUMNS, rows
from extproc.faults.storm.study import Terms, run_storm
from tests.docs.pages import DOCS, commands
from tests.docs.test_tutorial import matches
from tests.docs.typing_shell import shell
from tests.simulation.fleet import GATEWAYS, REPLICAS
from tests.simulation.fleet_mutants import MUTANTS

PAGE = DOCS / "testing.md"


@pytest.mark.timeout(300)  # one of them starts a gateway
async def test_every_command_prints_what_the_page_says(tmp_path) -> None:
    page = list(commands(PAGE))
    assert len(page) == 5
    async with shell(tmp_path) as typed:
        for command in page:
            printed = await typed.type(command.line)
            assert matches(command, printed), f"$ {command.line}\n{printed}\ninstead of\n{command.output}"


def test_every_promise_is_explained_once() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == sorted(Invariant)


def test_numbers_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    assert f"There are {len(catalogue()):,}" in text
    assert f"{GATEWAYS} gateways and {REPLICAS} replicas" in text
    assert len(MUTANTS) == 13
    assert "Thirteen broken products" in text


def test_table_of_the_storm_is_what_the_study_says() -> None:
    """One share of three; the others come out of the same code."""
    text = PAGE.read_text()
    assert "| " + " | ".join(COLUMNS) + " |" in text
    for row in rows([run_storm(0, 10, conduct, Terms()) for conduct in Conduct]):
        assert "| " + " | ".join(row) + " |" in text
