"""The monitor in front of simulated replicas with vLLM's API and metrics: busy, idle, hung, restarted, dead, without metrics."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest

from extproc.decision.findings import History
from extproc.decision.verdicts import Cause, HealthSettings, Judgement, Knowledge, Placement, Verdict
from extproc.replicas.monitor import HealthMonitor
from extproc.sim.faults import Fault, What, Where
from extproc.sim.process import ReplicaProcess, start_replica
from extproc.sim.settings import MetricsMode, Settings

SETTINGS = HealthSettings(interval_ms=50, hung_after_ms=300, stale_after_ms=60_000, answer_deadline_ms=5_000)


@dataclass(slots=True)
class Scene:
    """A replica, the monitor before it, and clients that stream from it."""

    replica: ReplicaProcess
    session: aiohttp.ClientSession
    attempts: int | None = None
    judgements: list[Judgement] = field(default_factory=list)
    looks_taken: int = 0
    history: History = field(init=False)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    streams: list[asyncio.Task[bytes]] = field(default_factory=list)
    waited_for: int = 0
    """Its place among the judgements."""

    def on_change(self, _: str, judgement: Judgement) -> None:
        self.judgements.append(judgement)
        self.told.set()

    def on_look(self, _: str, history: History) -> None:
        self.history = history
        self.looks_taken += 1
        self.told.set()

    async def looks(self, count: int) -> None:
        """Let the monitor look so many times more."""
        wanted = self.looks_taken + count
        while self.looks_taken < wanted:
            self.told.clear()
            await self.told.wait()

    def knowing(self, _: str) -> Knowledge | None:
        return None if self.attempts is None else Knowledge(attempts_in_flight=self.attempts)

    async def until(self, *verdicts: Verdict) -> Judgement:
        """The first judgement with one of these verdicts, from the one that was waited for last on: it may be over by now."""
        while True:
            for place, judgement in enumerate(self.judgements):
                if place >= self.waited_for and judgement.verdict in verdicts:
                    self.waited_for = place
                    return judgement
            self.told.clear()
            await self.told.wait()

    def stream(self, count: int, *, tokens: int = 100_000, prompt: str = "two words") -> None:
        body = {"messages": [{"role": "user", "content": prompt}], "stream": True, "max_tokens": tokens}
        self.streams += [asyncio.create_task(self._stream(body)) for _ in range(count)]

    async def _stream(self, body: dict[str, object]) -> bytes:
        async with self.session.post(f"{self.replica.url}/v1/chat/completions", json=body) as response:
            return await response.read()

    async def short_answers(self) -> int:
        """How many of the replica's requests were the monitor's."""
        return sum(1 for record in await self.replica.log() if record["api"] == "completions")


@asynccontextmanager
async def scene(
    settings: HealthSettings = SETTINGS, *, read_timeout_ms: int = 10_000, **replica_settings: object
) -> AsyncIterator[Scene]:
    """``read_timeout_ms``: more than a stall of the machine, where a page that does not come is not the subject."""
    async with AsyncExitStack() as stack:
        options = {"tokens": 100_000, "token_interval_ms": 5, "prefill_ms": 2} | replica_settings
        replica = await stack.enter_async_context(start_replica(Settings(**options)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        one = Scene(replica=replica, session=session)
        monitor = await stack.enter_async_context(
            HealthMonitor(settings, one.on_change, one.knowing, on_look=one.on_look, read_timeout_ms=read_timeout_ms)
        )
        monitor.watch("r", replica.url)
        try:
            yield one
        finally:
            for stream in one.streams:
                stream.cancel()
            await asyncio.gather(*one.streams, return_exceptions=True)


async def test_full_slots_are_busy_and_no_request_of_ours_is_ever_among_them():
    async with scene(slots=4) as one:
        await one.until(Verdict.IDLE)
        one.stream(7)
        judgement = await one.until(Verdict.BUSY)
        assert judgement.placement is Placement.PREFERRED
        await one.replica.reset()
        await one.looks(10)
        assert await one.short_answers() == 0
        assert one.judgements[-1].verdict is Verdict.BUSY


async def test_a_long_prefill_is_busy_though_no_step_is_counted():
    """Five times the grace, in which nothing but the KV cache's use moves."""
    async with scene(prefill_ms=1_500) as one:
        one.stream(1, tokens=1, prompt="word " * 20_000)
        judgement = await one.until(Verdict.BUSY)
        await one.looks(10)
        assert "kv_cache_usage_perc" in one.history.judgement.evidence
        await asyncio.gather(*one.streams)
        assert {judgement.verdict for judgement in one.judgements} <= {Verdict.IDLE, Verdict.BUSY, Verdict.SUSPECT}
        assert judgement.is_placeable


async def test_a_hung_engine_is_hung_though_its_health_says_200():
    async with scene() as one:
        await one.until(Verdict.IDLE)
        one.stream(2)
        await one.until(Verdict.BUSY)
        while one.history.latest.page.in_flight < 2:
            await one.looks(1)
        await one.replica.hang()
        judgement = await one.until(Verdict.HUNG)
        assert judgement.evidence.startswith("2 running; nothing moved in")
        assert (await one.session.get(f"{one.replica.url}/health")).status == 200
        await one.replica.unhang()
        await one.until(Verdict.BUSY)


async def test_one_hung_engine_of_two_is_hung_by_its_label():
    async with scene(engines=2) as one:
        one.stream(4)
        await one.looks(1)
        while one.history.latest is None or not all(engine.in_flight for engine in one.history.latest.page.engines):
            await one.looks(1)
        await one.replica.hang(engine="1")
        assert (await one.until(Verdict.HUNG)).evidence.startswith("engine 1: ")


async def test_gauges_that_froze_are_suspect_while_no_attempt_of_ours_is_there():
    async with scene() as one:
        one.stream(2)
        await one.until(Verdict.BUSY)
        await one.replica.hang()
        for stream in one.streams:
            stream.cancel()
        one.attempts = 0
        await one.until(Verdict.SUSPECT)
        await one.looks(40)
        assert one.judgements[-1].verdict is Verdict.SUSPECT


async def test_an_idle_engine_that_hangs_before_its_first_step_is_found_by_its_missing_answer():
    quick = HealthSettings(interval_ms=50, hung_after_ms=300, answer_deadline_ms=100, answer_every_ms=50)
    async with scene(quick) as one:
        await one.until(Verdict.IDLE)
        await one.replica.hang()
        assert (await one.until(Verdict.HUNG)).cause is Cause.NO_ANSWER_WHEN_IDLE
        await one.replica.unhang()
        await one.until(Verdict.IDLE)


async def test_a_restart_between_two_readings_asks_for_an_answer():
    async with scene() as one:
        await one.until(Verdict.IDLE)
        await one.replica.restart()
        await one.until(Verdict.RESTARTED)
        await one.until(Verdict.IDLE)
        assert await one.short_answers() == 1


async def test_an_engine_that_dies_is_dead_before_its_server_ends():
    async with scene() as one:
        await one.replica.set_faults(Fault(where=Where.MID_DECODE, what=What.ENGINE_DEATH, deltas=20, delay_ms=3_600_000))
        one.stream(1)
        await one.until(Verdict.BUSY)
        assert (await one.until(Verdict.DEAD)).placement is Placement.WITHHELD


async def test_a_killed_server_is_dead():
    async with scene() as one:
        await one.until(Verdict.IDLE)
        one.replica.kill()
        judgement = await one.until(Verdict.DEAD)
        assert judgement.cause is Cause.CONNECTION_REFUSED


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (MetricsMode.ONLY_PROCESS_SERIES, "vllm:num_requests_running"),
        (MetricsMode.EMPTY, "vllm:num_requests_running"),
        (MetricsMode.ERROR, "metrics: answered 500"),
        (MetricsMode.ABSENT, "metrics: answered 404"),
    ],
)
async def test_a_server_without_metrics_is_unknown_and_asked_for_nothing(mode: MetricsMode, words: str):
    async with scene(metrics=mode) as one:
        judgement = await one.until(Verdict.UNKNOWN)
        assert words in judgement.evidence
        while one.judgements[-1].placement is not Placement.LAST_RESORT:
            one.told.clear()
            await one.told.wait()
        assert await one.short_answers() == 0


async def test_metrics_that_never_answer_are_unknown():
    async with scene(read_timeout_ms=500) as one:
        one.stream(1)
        await one.until(Verdict.BUSY)
        await one.replica.set_metrics(MetricsMode.SILENT)
        assert (await one.until(Verdict.UNKNOWN)).placement is Placement.LAST_RESORT


async def test_several_api_servers_have_no_start_time_and_are_judged_all_the_same():
    async with scene(metrics=MetricsMode.NO_PROCESS_SERIES) as one:
        await one.until(Verdict.IDLE)
        one.stream(1)
        await one.until(Verdict.BUSY)
        await one.replica.restart()
        await one.until(Verdict.RESTARTED, Verdict.DEAD)
        await one.until(Verdict.IDLE)
