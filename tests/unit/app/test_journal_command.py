"""``deltafence journal``, as people and scripts call it."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from extproc.app.command_group import root
from extproc.journal.durable import DurableJournal
from extproc.journal.records import EventKind, JournalEvent
from extproc.storage.opening import open_database
from extproc.storage.owner import Owner

NOW_MS = int(time.time() * 1000)


def event(request_id: str, kind: EventKind, after_ms: int, attempt: int | None = None, **detail: object) -> JournalEvent:
    return JournalEvent(
        request_id=request_id,
        kind=kind,
        at_ms=NOW_MS + after_ms,
        attempt_id=None if attempt is None else f"att_{attempt}",
        replica=None if attempt is None else f"10.0.0.{attempt}:8000",
        detail=detail,  # type: ignore[arg-type]  # the test's own spelling
    )


def interrupted(request_id: str, after_ms: int) -> list[JournalEvent]:
    return [
        event(request_id, EventKind.ADMITTED, after_ms, api="chat", model="llama", route="chat", stream=True),
        event(request_id, EventKind.ATTEMPT_STARTED, after_ms + 2, 1, number=1, retry_budget=9.0, model_revision="r1"),
        event(request_id, EventKind.FIRST_DELTA_SENT, after_ms + 250, 1),
        event(
            request_id,
            EventKind.ENDED,
            after_ms + 1_250,
            outcome="interrupted",
            reason="replica_gone",
            delivered_output_tokens=3,
            delivered_output_tokens_source="counted",
        ),
    ]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A journal with an old interrupted request, a new one, and one that breaks a promise."""
    address = f"sqlite:{tmp_path / 'journal.db'}"

    async def fill() -> None:
        database = await open_database(address)
        journal = DurableJournal(database, Owner(database, "proc_a"))
        for item in (*interrupted("req_old", -7_200_000), *interrupted("req_new", -60_000)):
            journal.append(item)
        await journal.close()
        await database.close()

    asyncio.run(fill())
    return address


def add(address: str, *events: JournalEvent) -> None:
    async def store() -> None:
        database = await open_database(address)
        journal = DurableJournal(database, Owner(database, "proc_b"))
        for item in events:
            journal.append(item)
        await journal.close()
        await database.close()

    asyncio.run(store())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["journal", *arguments])


def test_show_tells_the_outcome_and_a_timeline(url: str):
    result = run("show", "req_new", "--db", url)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "req_new  chat  model llama  route chat  stream"
    assert lines[1] == "interrupted (replica_gone): 3 output tokens delivered (counted), 1 attempt"
    assert lines[4].split() == [
        "+0.002",
        "attempt_started",
        "att_1",
        "on",
        "10.0.0.1:8000",
        *["number=1", "retry_budget=9.0"],
        "model_revision=r1",
    ]
    assert lines[5].split() == ["+0.250", "first_delta_sent", "att_1", "on", "10.0.0.1:8000"]


def test_show_as_json_is_the_status_pages_document(url: str):
    document = json.loads(run("show", "req_new", "--db", url, "--json").output)
    assert document["outcome"] == "interrupted"
    assert document["partial_output"] is True
    assert [item["kind"] for item in document["events"]] == ["admitted", "attempt_started", "first_delta_sent", "ended"]


def test_show_of_an_unknown_request_says_so(url: str):
    result = run("show", "req_none", "--db", url)
    assert result.exit_code == 1
    assert "no request req_none" in result.output


def test_list_filters_by_outcome_and_time(url: str):
    listed = [line.split()[0] for line in run("list", "--db", url, "--outcome", "interrupted").output.splitlines()]
    assert listed == ["req_new", "req_old"]
    recent = run("list", "--db", url, "--outcome", "interrupted", "--since", "1h", "--json")
    assert [json.loads(line)["request_id"] for line in recent.output.splitlines()] == ["req_new"]
    assert "no such requests" in run("list", "--db", url, "--outcome", "completed").output


def test_verify_is_content_with_a_sound_journal(url: str):
    result = run("verify", "--db", url)
    assert result.exit_code == 0
    counts = "2 requests, 0 running, 0 waiting for housekeeping, 0 boundaries recorded late, 0 boundaries in doubt"
    assert result.output == f"{counts}; 0 promises broken\n"


@pytest.mark.parametrize("mark", [{}, {"recorded": "in_doubt"}], ids=["stored at once", "stored when the database was back"])
def test_verify_accepts_and_counts_a_boundary_over_which_the_database_fell_silent(url: str, mark: dict[str, str]):
    admitted, started, _, _ = interrupted("req_silent", 0)
    delta = event("req_silent", EventKind.FIRST_DELTA_SENT, 250, 1, **mark)
    why = {"reason": "journal_unavailable", "error_code": "journal_unavailable"}
    add(url, admitted, started, delta, event("req_silent", EventKind.ENDED, 2_250, outcome="failed", **why))
    document = json.loads(run("verify", "--db", url, "--json").output)
    assert (document["ok"], document["boundaries_in_doubt"], document["boundaries_recorded_late"]) == (True, 1, 0)


def test_verify_names_the_request_and_the_promise_it_broke(url: str):
    story = interrupted("req_bad", 0)
    add(url, *story[:3], event("req_bad", EventKind.ATTEMPT_STARTED, 300, 2, number=2), story[3])
    result = run("verify", "--db", url)
    assert result.exit_code == 1
    assert "req_bad: nothing_repeated_after_the_boundary: attempt att_2 was started after the first delta" in result.output
    document = json.loads(run("verify", "--db", url, "--json").output)
    assert document["ok"] is False
    assert {item["request_id"] for item in document["violations"]} == {"req_bad"}


def test_the_database_may_come_from_the_environment(url: str):
    result = CliRunner().invoke(root, ["journal", "verify"], env={"DELTAFENCE_JOURNAL": url})
    assert result.exit_code == 0


def test_a_journal_that_is_not_there_is_not_made(tmp_path: Path):
    result = run("list", "--db", str(tmp_path / "none.db"))
    assert result.exit_code == 2
    assert "there is no journal at" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("show", "req_evil"), ("list",)])
def test_a_models_name_moves_no_cursor(url: str, arguments: tuple[str, ...]) -> None:
    add(url, event("req_evil", EventKind.ADMITTED, 0, api="chat", model="a\x1b[2J", route="chat", stream=True))
    result = run(*arguments, "--db", url)
    assert result.exit_code == 0, result.output
    assert "a\\u001b[2J" in result.output
    assert "\x1b" not in result.output


def test_a_password_in_an_address_that_is_none_of_ours_is_not_printed() -> None:
    result = run("list", "--db", "postgresql+asyncpg://df:S3cret@db/df")
    assert result.exit_code == 2
    assert "postgresql+asyncpg://db/df" in result.output
    assert "S3cret" not in result.output
