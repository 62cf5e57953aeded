"""``deltafence tools``, as operators call it."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc.app.command_group import root
from extproc.decision.tool_call import CallAction
from extproc.storage.opening import open_database
from extproc.storage.owner import Owner
from extproc.tools.interface import Begun, ToolAnswer, ToolCall
from extproc.tools.ledger import DurableLedger

CALL = ToolCall(key_hash=b"1", call_key="mail/req_1:call_07", tool="mail", request_id="req_1", fingerprint=b"f", keep_ms=10**8)


async def with_ledger(address: str, work) -> Begun:
    database = await open_database(address)
    owner = Owner(database, "proc_a", 60_000)
    await owner.announce()
    try:
        return await work(DurableLedger(database, owner))
    finally:
        await database.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger with one lost call and one that was answered."""
    address = f"sqlite:{tmp_path / 'journal.db'}"
    answered = ToolCall(
        key_hash=b"2", call_key="mail/req_1:call_08", tool="mail", request_id="req_1", fingerprint=b"f", keep_ms=10**8
    )

    async def fill(ledger: DurableLedger) -> Begun:
        await ledger.begin(CALL)
        await ledger.lost(CALL, "connection closed")
        await ledger.begin(answered)
        await ledger.carried_out(answered, ToolAnswer(status=201, headers=(), body=b"{}"), "the tool answered 201")
        return await ledger.begin(answered)

    asyncio.run(with_ledger(address, fill))
    return address


def repeat(address: str) -> Begun:
    return asyncio.run(with_ledger(address, lambda ledger: ledger.begin(CALL)))


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(root, ["tools", *arguments], input=stdin)


def test_list_shows_what_waits_to_be_settled(url: str):
    (line,) = run("list", "--db", url, "--state", "unknown").output.splitlines()
    assert line.startswith("mail/req_1:call_07  ")
    assert "unknown" in line
    assert line.endswith("connection closed")
    document = json.loads(run("list", "--db", url, "--state", "unknown", "--json").output)
    assert (document["call_key"], document["state"]) == ("mail/req_1:call_07", "unknown")
    (answered,) = run("list", "--db", url, "--state", "carried_out").output.splitlines()
    assert answered.startswith("mail/req_1:call_08  ")
    assert "no such calls" in run("list", "--db", url, "--state", "running").output


def test_settled_as_carried_out_with_an_answer_repeats_get_it(url: str):
    settled = run(
        "settle", "mail/req_1:call_07", "--db", url, "carried-out", "--answer", "-", "--status", "201", stdin='{"sent": 1}'
    )
    assert settled.exit_code == 0
    begun = repeat(url)
    assert begun.answer == ToolAnswer(status=201, headers=(("content-type", "application/json"),), body=b'{"sent": 1}')


def test_settled_as_carried_out_without_an_answer_repeats_are_refused(url: str):
    assert run("settle", "mail/req_1:call_07", "--db", url, "carried-out").exit_code == 0
    assert repeat(url).action is CallAction.REFUSE_WITHOUT_ANSWER


def test_settled_as_not_carried_out_the_next_repeat_runs(url: str):
    settled = run("settle", "mail/req_1:call_07", "--db", url, "not-carried-out")
    assert (settled.exit_code, repeat(url).action) == (0, CallAction.RUN)


def test_a_call_is_settled_once(url: str):
    run("settle", "mail/req_1:call_07", "--db", url, "carried-out")
    again = run("settle", "mail/req_1:call_07", "--db", url, "not-carried-out")
    assert again.exit_code == 1
    assert "not a call with an unknown outcome" in again.output


def test_what_became_of_it_has_to_be_said(url: str):
    assert run("settle", "mail/req_1:call_07", "--db", url).exit_code == 2
    both = run("settle", "mail/req_1:call_07", "--db", url, "not-carried-out", "--answer", "-", stdin="{}")
    assert both.exit_code == 2
    assert "--answer belongs to carried-out" in both.output
