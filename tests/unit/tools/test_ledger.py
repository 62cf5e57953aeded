"""The ledger's contract, with one and two processes on a database; ``make test-postgres`` runs it over PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from extproc.decision.tool_call import CallAction, CallState
from extproc.storage.opening import open_database
from extproc.storage.owner import Owner
from extproc.tools.interface import LedgerUnavailable, ToolAnswer, ToolCall
from extproc.tools.ledger import DurableLedger

CALL = ToolCall(
    key_hash=b"key", call_key="req_1:call_07", tool="mail", request_id="req_1", fingerprint=b"body", keep_ms=3_600_000
)
ANSWER = ToolAnswer(status=201, headers=(("content-type", "application/json"), ("x", "\xff")), body=b'{"sent": 1}\x00\xff')

StartLedger = Callable[..., Awaitable[DurableLedger]]


@pytest.fixture
async def start_ledger(database_url: str) -> AsyncIterator[StartLedger]:
    """Makes one process's ledger; ``ttl_ms=0`` makes a process that counts as dead from the start."""
    async with AsyncExitStack() as stack:

        async def start(processor_id: str = "proc_a", ttl_ms: int = 60_000, **options: int) -> DurableLedger:
            database = await open_database(database_url)
            stack.push_async_callback(database.close)
            owner = Owner(database, processor_id, ttl_ms)
            await owner.announce()
            return DurableLedger(database, owner, **options)

        yield start


async def test_a_first_call_runs_and_a_second_waits(start_ledger: StartLedger):
    ledger = await start_ledger()
    assert (await ledger.begin(CALL)).action is CallAction.RUN
    assert (await ledger.begin(CALL)).action is CallAction.WAIT


async def test_a_carried_out_call_is_answered_from_the_ledger_byte_for_byte(start_ledger: StartLedger):
    ledger = await start_ledger()
    await ledger.begin(CALL)
    await ledger.carried_out(CALL, ANSWER, "answered")
    begun = await ledger.begin(CALL)
    assert (begun.action, begun.answer) == (CallAction.REPLAY, ANSWER)


async def test_another_body_under_the_key_is_refused_in_every_state(start_ledger: StartLedger):
    ledger = await start_ledger()
    other = replace(CALL, fingerprint=b"other body")
    await ledger.begin(CALL)
    assert (await ledger.begin(other)).action is CallAction.REFUSE_REUSED
    await ledger.lost(CALL, "connection lost")
    assert (await ledger.begin(other)).action is CallAction.REFUSE_REUSED
    await ledger.carried_out(CALL, ANSWER, "answered")
    begun = await ledger.begin(other)
    assert (begun.action, begun.answer) == (CallAction.REFUSE_REUSED, None)


async def test_a_call_that_never_reached_its_tool_may_run_again(start_ledger: StartLedger):
    ledger = await start_ledger()
    await ledger.begin(CALL)
    await ledger.not_carried_out(CALL)
    assert await ledger.calls_of("req_1") == 0
    assert (await ledger.begin(CALL)).action is CallAction.RUN


async def test_a_lost_call_is_never_run_again_until_it_is_settled(start_ledger: StartLedger):
    ledger = await start_ledger()
    await ledger.begin(CALL)
    await ledger.lost(CALL, "connection lost")
    for _ in range(3):
        begun = await ledger.begin(CALL)
        assert (begun.action, begun.why) == (CallAction.REFUSE_UNKNOWN, "connection lost")


@pytest.mark.parametrize("answer", [ANSWER, None])
async def test_an_operator_can_say_that_it_was_carried_out(start_ledger: StartLedger, answer: ToolAnswer | None):
    ledger = await start_ledger()
    await ledger.begin(CALL)
    await ledger.lost(CALL, "connection lost")
    assert await ledger.settle("req_1:call_07", carried_out=True, answer=answer, keep_ms=1_000_000)
    begun = await ledger.begin(CALL)
    assert begun.action is (CallAction.REPLAY if answer else CallAction.REFUSE_WITHOUT_ANSWER)
    assert begun.answer == answer


async def test_an_operator_can_say_that_it_was_not_carried_out(start_ledger: StartLedger):
    ledger = await start_ledger()
    await ledger.begin(CALL)
    await ledger.lost(CALL, "connection lost")
    assert await ledger.settle("req_1:call_07", carried_out=False, answer=None, keep_ms=0)
    assert (await ledger.begin(CALL)).action is CallAction.RUN


@pytest.mark.parametrize("carried_out", [True, False])
async def test_only_an_unknown_outcome_can_be_settled(start_ledger: StartLedger, carried_out: bool):
    ledger = await start_ledger()
    assert not await ledger.settle("req_1:call_07", carried_out=carried_out, answer=None, keep_ms=0)
    await ledger.begin(CALL)
    assert not await ledger.settle("req_1:call_07", carried_out=carried_out, answer=None, keep_ms=0)
    await ledger.carried_out(CALL, ANSWER, "answered")
    assert not await ledger.settle("req_1:call_07", carried_out=carried_out, answer=None, keep_ms=0)


async def test_of_many_calls_at_once_one_runs(start_ledger: StartLedger):
    ledgers = [await start_ledger("proc_a"), await start_ledger("proc_b")]
    begun = await asyncio.gather(*(ledgers[number % 2].begin(CALL) for number in range(60)))
    assert [item.action for item in begun].count(CallAction.RUN) == 1
    assert [item.action for item in begun].count(CallAction.WAIT) == 59


async def test_a_call_of_a_dead_process_is_unknown(start_ledger: StartLedger):
    dead, alive = await start_ledger("proc_dead", ttl_ms=0), await start_ledger("proc_alive")
    await dead.begin(CALL)
    assert (await alive.begin(CALL)).action is CallAction.REFUSE_UNKNOWN


async def test_a_process_that_was_only_asleep_may_still_say_what_happened(start_ledger: StartLedger):
    asleep, alive = await start_ledger("proc_asleep", ttl_ms=0), await start_ledger("proc_alive")
    await asleep.begin(CALL)
    assert await alive.tidy() == ("req_1:call_07",)
    await asleep.carried_out(CALL, ANSWER, "answered")
    assert (await alive.begin(CALL)).action is CallAction.REPLAY


async def test_a_process_can_not_end_a_call_that_another_one_runs(start_ledger: StartLedger):
    asleep, alive = await start_ledger("proc_asleep", ttl_ms=0), await start_ledger("proc_alive")
    await asleep.begin(CALL)
    await alive.tidy()
    await alive.settle("req_1:call_07", carried_out=False, answer=None, keep_ms=0)
    assert (await alive.begin(CALL)).action is CallAction.RUN
    await asleep.not_carried_out(CALL)
    await asleep.carried_out(CALL, ANSWER, "answered")
    assert (await alive.begin(CALL)).action is CallAction.WAIT


async def test_whoever_learns_the_truth_about_a_lost_call_may_record_it(start_ledger: StartLedger):
    """The tool's own status answer comes to the process that asked for it."""
    dead, alive = await start_ledger("proc_dead", ttl_ms=0), await start_ledger("proc_alive")
    await dead.begin(CALL)
    await alive.begin(CALL)
    await alive.not_carried_out(CALL)
    assert (await alive.begin(CALL)).action is CallAction.RUN


async def test_an_answer_expires_and_its_key_is_free(start_ledger: StartLedger):
    ledger = await start_ledger()
    call = replace(CALL, keep_ms=0)
    await ledger.begin(call)
    await ledger.carried_out(call, ANSWER, "answered")
    assert (await ledger.begin(call)).action is CallAction.RUN
    await ledger.carried_out(call, ANSWER, "answered")
    await ledger.tidy()
    assert await ledger.calls(None, 10) == ()


async def test_running_and_unknown_calls_do_not_expire_with_the_answers(start_ledger: StartLedger):
    ledger = await start_ledger()
    lost, running = replace(CALL, keep_ms=0), replace(CALL, keep_ms=0, key_hash=b"other", call_key="other")
    await ledger.begin(lost)
    await ledger.lost(lost, "connection lost")
    await ledger.begin(running)
    await ledger.tidy()
    assert {call.state for call in await ledger.calls(None, 10)} == {CallState.UNKNOWN, CallState.RUNNING}


async def test_above_the_limit_the_oldest_answers_are_forgotten_and_their_calls_still_not_run(start_ledger: StartLedger):
    ledger = await start_ledger(answers_bytes_max=0)
    await ledger.begin(CALL)
    await ledger.carried_out(CALL, ANSWER, "answered")
    await ledger.tidy()
    assert (await ledger.begin(CALL)).action is CallAction.REFUSE_WITHOUT_ANSWER


async def test_the_gate_hears_of_every_call_of_a_request(start_ledger: StartLedger):
    ledger = await start_ledger()
    assert await ledger.calls_of("req_1") == 0
    for number in range(3):
        await ledger.begin(replace(CALL, key_hash=bytes([number]), call_key=f"req_1:call_{number}"))
    await ledger.begin(replace(CALL, key_hash=b"none", call_key="none", request_id=None))
    assert await ledger.calls_of("req_1") == 3
    assert await ledger.calls_of("req_2") == 0


async def test_the_list_shows_what_waits_to_be_settled(start_ledger: StartLedger):
    ledger = await start_ledger()
    await ledger.begin(CALL)
    await ledger.lost(CALL, "connection lost")
    answered = replace(CALL, key_hash=b"2", call_key="req_1:call_08")
    await ledger.begin(answered)
    await ledger.carried_out(answered, ANSWER, "answered")
    (unknown,) = await ledger.calls(CallState.UNKNOWN, 10)
    assert (unknown.call_key, unknown.tool, unknown.request_id, unknown.why) == (
        "req_1:call_07",
        "mail",
        "req_1",
        "connection lost",
    )
    assert len(await ledger.calls(None, 10)) == 2
    assert len(await ledger.calls(None, 1)) == 1


async def test_a_lost_database_is_said_so(start_ledger: StartLedger):
    ledger = await start_ledger()
    await ledger._database.close()
    for asked in (ledger.begin(CALL), ledger.calls_of("req_1"), ledger.lost(CALL, "x"), ledger.tidy()):
        with pytest.raises(LedgerUnavailable):
            await asked
