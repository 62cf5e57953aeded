"""Two gateways, one PostgreSQL: the same key through both, a thousand times, and exactly one runs (R11, R12)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from extproc.decision.idempotency import ClaimOutcome
from extproc.decision.tool_call import CallAction
from extproc.journal.durable import DurableJournal
from extproc.journal.housekeeping import Housekeeping, Retention
from extproc.journal.idempotency import DurableKeys, KeyClaim
from extproc.journal.interface import RequestTakenOver
from extproc.journal.records import EventKind, JournalEvent
from extproc.journal.verify import verify
from extproc.storage.opening import open_database
from extproc.storage.owner import Owner
from extproc.storage.postgres import PostgresDatabase
from extproc.tools.interface import ToolAnswer, ToolCall
from extproc.tools.ledger import DurableLedger

ROUNDS = 1_000
AT_ONCE = 10
"""Rounds that run together, so that locks of different keys meet as well."""
KEEP_ALL = Retention(age_ms_max=10**14)


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway's stores."""

    owner: Owner
    journal: DurableJournal
    keys: DurableKeys
    ledger: DurableLedger
    housekeeping: Housekeeping


@pytest.fixture
async def gateways(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways on one database; however busy the machine, it counts as there."""
    for limit in ("CONNECT_TIMEOUT_S", "TRANSACTION_TIMEOUT_S"):
        monkeypatch.setattr(f"extproc.storage.postgres.{limit}", 30)
    async with AsyncExitStack() as stack:

        async def start(name: str) -> Gateway:
            database = await open_database(database_url)
            assert isinstance(database, PostgresDatabase), "run this through make test-postgres"
            stack.push_async_callback(database.close)
            owner = Owner(database, name)
            await owner.announce()
            journal = DurableJournal(database, owner)
            stack.push_async_callback(journal.close)
            keys = DurableKeys(database, owner, journal)
            return Gateway(owner, journal, keys, DurableLedger(database, owner), Housekeeping(database, owner, KEEP_ALL))

        yield await start("proc_a"), await start("proc_b")


def story(request_id: str) -> tuple[JournalEvent, JournalEvent, JournalEvent, JournalEvent]:
    def event(kind: EventKind, attempt_id: str | None = None, **detail: str | int | float | bool | None) -> JournalEvent:
        return JournalEvent(request_id=request_id, kind=kind, at_ms=1_000, attempt_id=attempt_id, replica=None, detail=detail)

    return (
        event(EventKind.ADMITTED, api="chat", model="m", stream=True),
        event(EventKind.ATTEMPT_STARTED, f"att_{request_id}", number=1, retry_budget=1.0),
        event(EventKind.FIRST_DELTA_SENT, f"att_{request_id}"),
        event(EventKind.ENDED, outcome="completed", reason="finished", delivered_output_tokens=1),
    )


async def in_groups(rounds: int, race) -> list:
    results = []
    for start in range(0, rounds, AT_ONCE):
        results += await asyncio.gather(*(race(number) for number in range(start, start + AT_ONCE)))
    return results


@pytest.mark.timeout(300)
async def test_a_key_that_comes_through_both_gateways_runs_once(gateways: tuple[Gateway, Gateway]):
    async def run(gateway: Gateway, number: int) -> ClaimOutcome:
        fresh = f"req_{number}_{gateway.owner.processor_id}"
        claimed = await gateway.keys.claim(KeyClaim(key_hash=b"key %d" % number, fingerprint=b"body", request_id=fresh))
        if claimed.outcome is ClaimOutcome.NEW:
            admitted, started, delta, ended = story(claimed.request_id)
            gateway.journal.append(admitted)
            gateway.journal.append(started)
            await gateway.journal.commit(delta)
            await gateway.journal.commit(ended)
        return claimed.outcome

    async def race(number: int) -> tuple[ClaimOutcome, ...]:
        return tuple(await asyncio.gather(*(run(gateway, number) for gateway in gateways)))

    for outcomes in await in_groups(ROUNDS, race):
        assert outcomes.count(ClaimOutcome.NEW) == 1
        assert set(outcomes) <= {ClaimOutcome.NEW, ClaimOutcome.IN_PROGRESS, ClaimOutcome.PARTIAL, ClaimOutcome.COMPLETED}
    histories = await gateways[0].journal.histories("", 2 * ROUNDS)
    assert len(histories) == ROUNDS
    assert [violation for history in histories for violation in verify(history, 2_000)] == []


@pytest.mark.timeout(300)
async def test_a_tool_call_that_comes_through_both_gateways_acts_once(gateways: tuple[Gateway, Gateway]):
    acted: list[int] = []

    async def call(gateway: Gateway, number: int) -> CallAction:
        tool_call = ToolCall(
            key_hash=b"key %d" % number,
            call_key=f"mail/req:{number}",
            tool="mail",
            request_id="req",
            fingerprint=b"body",
            keep_ms=10**8,
        )
        begun = await gateway.ledger.begin(tool_call)
        if begun.action is CallAction.RUN:
            acted.append(number)
            await gateway.ledger.carried_out(tool_call, ToolAnswer(status=200, headers=(), body=b"sent"), "answered")
        return begun.action

    async def race(number: int) -> list[CallAction]:
        return list(await asyncio.gather(*(call(gateway, number) for gateway in (*gateways, *gateways))))

    for actions in await in_groups(ROUNDS, race):
        assert actions.count(CallAction.RUN) == 1
        assert set(actions) <= {CallAction.RUN, CallAction.WAIT, CallAction.REPLAY}
    assert sorted(acted) == list(range(ROUNDS))
    assert await gateways[0].ledger.calls_of("req") == ROUNDS


@pytest.mark.timeout(300)
async def test_of_a_boundary_and_a_take_over_that_meet_one_wins(gateways: tuple[Gateway, Gateway]):
    """The first gateway's name has expired while it was asleep; it wakes up just as the second one settles its requests."""
    asleep, alive = gateways
    expired = Owner(asleep.owner._database, asleep.owner.processor_id, ttl_ms=0)
    crossed = refused = 0
    for number in range(200):
        await asleep.owner.announce()
        admitted, started, delta, _ = story(f"req_{number}")
        asleep.journal.append(admitted)
        asleep.journal.append(started)
        await asleep.journal.flush()
        await expired.announce()
        boundary, _ = await asyncio.gather(asleep.journal.commit(delta), alive.housekeeping.tidy(), return_exceptions=True)
        facts = await alive.journal.facts(f"req_{number}")
        assert facts is not None
        if isinstance(boundary, RequestTakenOver):
            refused += 1
            assert (facts.outcome, facts.first_delta_sent) == ("failed", False)
        else:
            assert boundary is None
            crossed += 1
            assert (facts.outcome, facts.first_delta_sent) in (("interrupted", True), (None, True))
    assert crossed + refused == 200
    histories = await alive.journal.histories("", 1_000)
    assert [violation for history in histories for violation in verify(history, 2_000)] == []
