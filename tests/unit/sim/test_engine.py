import asyncio
from contextlib import AsyncExitStack

import pytest

from extproc.sim.engine import Engine, EngineAborted, EngineError
from extproc.sim.script import FinishReason
from extproc.sim.settings import Settings
from extproc.sim.state import Replica


def engine_of(**options: object) -> Engine:
    return Engine(Settings(**({"prefill_ms": 0, "token_interval_ms": 0} | options)))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_requests_that_come_at_once_are_spread_though_none_has_begun() -> None:
    replica = Replica(Settings(engines=2))
    assert [replica.place().label for _ in range(4)] == ["0", "1", "0", "1"]


async def test_requests_beyond_the_slots_wait() -> None:
    engine = engine_of(slots=1)

    async def hold(done: asyncio.Event) -> None:
        async with engine.admit(1):
            await done.wait()

    events = [asyncio.Event(), asyncio.Event()]
    tasks = [asyncio.create_task(hold(event)) for event in events]
    await settle()
    assert (engine.readings().running, engine.readings().waiting) == (1, 1)
    events[0].set()
    await tasks[0]
    await settle()
    assert (engine.readings().running, engine.readings().waiting) == (1, 0)
    events[1].set()
    await tasks[1]
    assert engine.load == 0


async def test_waiting_request_that_leaves_takes_no_slot() -> None:
    engine = engine_of(slots=1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine.admit(1))
        task = asyncio.create_task(stack.enter_async_context(engine.admit(1)))
        await settle()
        task.cancel()
        await asyncio.wait((task,))
        assert (engine.readings().running, engine.readings().waiting) == (1, 0)
    assert engine.load == 0


async def test_two_requests_that_look_alike_free_their_own_slots() -> None:
    engine = engine_of(slots=2)
    async with AsyncExitStack() as other_stack:
        other = await other_stack.enter_async_context(engine.admit(1))
        async with engine.admit(1) as one:
            assert (one.prompt_tokens, one.kv_tokens) == (other.prompt_tokens, other.kv_tokens)
        await other.step(tokens=1, first=True)
        assert engine.running == 1
    assert engine.running == 0


async def test_prefill_shows_in_the_cache_alone() -> None:
    engine = engine_of(blocks=1)
    async with engine.admit(8) as sequence:
        await sequence.prefill(0.5)
        halfway = engine.readings()
        assert (halfway.kv_cache_usage, halfway.steps, halfway.prompt_tokens) == (0.25, 0, 0)
        await sequence.prefill(0.5)
        await sequence.step(tokens=2, first=True)
        await sequence.step(tokens=2, first=False)
    readings = engine.readings()
    assert (readings.steps, readings.prompt_tokens, readings.generation_tokens, readings.step_tokens) == (2, 8, 4, 12)
    assert readings.kv_cache_usage == 0


async def test_hung_engine_shows_its_last_values_and_makes_no_progress() -> None:
    engine = engine_of()
    async with engine.admit(1) as sequence:
        await sequence.prefill(1)
        engine.hang()
        before = engine.readings()
        step = asyncio.create_task(sequence.step(tokens=1, first=False))
        async with engine.admit(1):
            await settle()
            assert not step.done()
            assert engine.readings() == before
            assert engine.running == 2
        engine.unhang()
        await step
        assert engine.readings().steps == 1


@pytest.mark.parametrize(("end", "error"), [(Engine.die, EngineError), (Engine.abort_all, EngineAborted)])
async def test_engine_that_ends_takes_hung_requests_with_it(end: object, error: type[Exception]) -> None:
    engine = engine_of()
    engine.hang()

    async def run() -> None:
        async with engine.admit(1) as sequence:
            await sequence.prefill(1)

    task = asyncio.create_task(run())
    await settle()
    end(engine)
    with pytest.raises(error):
        await task
    reason = FinishReason.ERROR if error is EngineError else FinishReason.ABORT
    assert engine.readings().finished == {reason: 1}


async def test_request_counts_under_its_finish_reason() -> None:
    engine = engine_of()
    async with engine.admit(1) as sequence:
        sequence.finish = FinishReason.LENGTH
    assert engine.readings().finished == {FinishReason.LENGTH: 1}
