"""SIGKILL at every step of the database, in a request's life and in a tool call's. ``make test-postgres`` runs it there too.

What must hold afterwards, whatever the step: the stored story breaks no promise, and a repeat is told the truth about what the
client, or the tool, has really seen.
"""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from extproc.decision.idempotency import ClaimOutcome
from extproc.decision.tool_call import CallAction
from extproc.journal.durable import DurableJournal
from extproc.journal.idempotency import Claimed, DurableKeys, KeyClaim, StoredAnswer
from extproc.journal.records import EventKind, JournalEvent
from extproc.journal.verify import verify
from extproc.storage.opening import open_database
from extproc.storage.owner import Owner
from extproc.tools.interface import Begun, ToolAnswer, ToolCall
from extproc.tools.ledger import DurableLedger
from tests.crash.killed import Tell, run_killed

ANSWER = StoredAnswer(status=200, headers=(("content-type", "text/event-stream"),), body=b"data: Hi\n\ndata: [DONE]\n\n")
CALL = ToolCall(key_hash=b"call", call_key="mail/req:call_07", tool="mail", request_id="req", fingerprint=b"f", keep_ms=10**8)


def event(
    request_id: str, kind: EventKind, attempt: int | None = None, **detail: str | int | float | bool | None
) -> JournalEvent:
    attempt_id = None if attempt is None else f"att_{attempt}"
    replica = None if attempt is None else f"replica_{attempt}"
    return JournalEvent(request_id=request_id, kind=kind, at_ms=1_000, attempt_id=attempt_id, replica=replica, detail=detail)


async def live_a_request(url: str, processor_id: str, tell: Tell, ttl_ms: int = 0) -> Claimed:
    """A keyed request with a failed first attempt and a whole answer from the second, as the session writes it."""
    database = await open_database(url)
    owner = Owner(database, processor_id, ttl_ms)
    await owner.announce()
    journal = DurableJournal(database, owner)
    keys = DurableKeys(database, owner, journal)
    claimed = await keys.claim(KeyClaim(key_hash=b"key", fingerprint=b"body", request_id=f"req_of_{processor_id}"))
    tell(claimed.outcome)
    if claimed.outcome is ClaimOutcome.NEW:
        request_id = claimed.request_id

        def note(kind: EventKind, attempt: int | None = None, **detail: str | int | float | bool | None) -> JournalEvent:
            made = event(request_id, kind, attempt, **detail)
            if kind is not EventKind.FIRST_DELTA_SENT:
                journal.append(made)
            return made

        note(EventKind.ADMITTED, api="chat", model="m", stream=True)
        note(EventKind.ATTEMPT_STARTED, 1, number=1, retry_budget=9.0)
        await journal.flush()
        note(EventKind.ATTEMPT_FAILED, 1, cause="replica_gone", evidence="connection closed")
        note(EventKind.FENCED, 1, proof="refused")
        await journal.flush()
        note(EventKind.ATTEMPT_STARTED, 2, number=2, retry_budget=8.0)
        await journal.flush()
        await journal.commit(note(EventKind.FIRST_DELTA_SENT, 2))
        tell("delivered")
        await keys.store_answer(request_id, ANSWER)
        note(EventKind.ENDED, outcome="completed", reason="finished", delivered_output_tokens=1)
        await journal.flush()
        tell("completed")
    await journal.close()
    await database.close()
    return claimed


async def make_a_call(url: str, processor_id: str, tell: Tell, ttl_ms: int = 0) -> Begun:
    """A tool call as the tool session makes it; the tool acts where ``acted`` is told."""
    database = await open_database(url)
    owner = Owner(database, processor_id, ttl_ms)
    await owner.announce()
    ledger = DurableLedger(database, owner)
    begun = await ledger.begin(CALL)
    tell(begun.action)
    if begun.action is CallAction.RUN:
        tell("acted")
        await ledger.carried_out(CALL, ToolAnswer(status=200, headers=(), body=b"sent"), "answered")
        tell("answered")
    await database.close()
    return begun


def every_step(check: Callable[[int], bool]) -> int:
    """Call ``check`` with 1, 2, ... until its child survives; how many steps there were."""
    for step in itertools.count(1):
        if not check(step):
            return step - 1
    raise AssertionError("unreachable")


@pytest.fixture
def fresh_url(make_database_url) -> Callable[[], str]:
    """Makes addresses of empty databases, with their tables."""

    def make() -> str:
        url = make_database_url()

        async def migrate() -> None:
            await (await open_database(url)).close()

        asyncio.run(migrate())
        return url

    return make


async def histories_of(url: str) -> list[str]:
    """What the stored stories break."""
    database = await open_database(url)
    journal = DurableJournal(database, Owner(database, "proc_reader"))
    found = [violation.how for history in await journal.histories("", 100) for violation in verify(history, 2_000)]
    await database.close()
    return found


def test_after_a_kill_at_any_step_of_a_request_the_journal_holds_and_the_repeat_gets_the_truth(fresh_url):
    outcomes: set[str] = set()

    def check(step: int) -> bool:
        url = fresh_url()
        told, killed = run_killed(lambda tell: live_a_request(url, "proc_first", tell), step)
        assert asyncio.run(histories_of(url)) == [], f"step {step}, told {told}"
        heard: list[str] = []
        again = asyncio.run(live_a_request(url, "proc_second", heard.append, ttl_ms=60_000))
        outcomes.add(again.outcome)
        if "delivered" in told:
            assert again.outcome in (ClaimOutcome.PARTIAL, ClaimOutcome.COMPLETED), f"step {step}: a second run after a delivery"
        if "completed" in told:
            assert again.answer == ANSWER
        if again.outcome is ClaimOutcome.NEW:
            assert "completed" in heard
        assert asyncio.run(histories_of(url)) == [], f"step {step}, told {told}, then {heard}"
        last = asyncio.run(live_a_request(url, "proc_third", heard.append, ttl_ms=60_000))
        assert last.outcome in (ClaimOutcome.PARTIAL, ClaimOutcome.COMPLETED), f"step {step}: a run after a whole run"
        return killed

    assert every_step(check) > 15
    assert outcomes == {ClaimOutcome.NEW, ClaimOutcome.PARTIAL, ClaimOutcome.COMPLETED}


def test_after_a_kill_at_any_step_of_a_tool_call_the_tool_never_acts_twice(fresh_url):
    actions: set[str] = set()

    def check(step: int) -> bool:
        url = fresh_url()
        told, killed = run_killed(lambda tell: make_a_call(url, "proc_first", tell), step)
        heard: list[str] = []
        again = asyncio.run(make_a_call(url, "proc_second", heard.append, ttl_ms=60_000))
        actions.add(again.action)
        assert [*told, *heard].count("acted") <= 1, f"step {step}: told {told}, then {heard}"
        if "answered" in told:
            assert again.answer is not None
            assert again.answer.body == b"sent"
        return killed

    assert every_step(check) > 5
    assert actions == {CallAction.RUN, CallAction.REFUSE_UNKNOWN, CallAction.REPLAY}
