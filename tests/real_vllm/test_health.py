"""Health before a real vLLM: each verdict that an engine can be brought to, and no request of ours while it works (R20-R26)."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp

from extproc.decision.exposition import Series, read_page
from extproc.decision.findings import History
from extproc.decision.health import judge
from extproc.decision.looks import Look
from extproc.decision.verdicts import Cause, HealthSettings, Judgement, Knowledge, Verdict
from extproc.replicas.health_reader import HealthReader, monotonic_ms
from extproc.replicas.monitor import HealthMonitor
from tests.real_vllm.server import CHAT, VllmServer, chat, long_prompt

SETTINGS = HealthSettings(interval_ms=500, hung_after_ms=8_000, stale_after_ms=60_000, answer_deadline_ms=30_000)
ENDLESS = 30_000


@dataclass(slots=True)
class Watched:
    """What the monitor saw, look by look."""

    attempts: int | None = None
    judgements: list[Judgement] = field(default_factory=list)
    history: History | None = None
    looked: asyncio.Event = field(default_factory=asyncio.Event)

    def on_look(self, _: str, history: History) -> None:
        self.history = history
        self.judgements.append(history.judgement)
        self.looked.set()

    def knowing(self, _: str) -> Knowledge | None:
        return None if self.attempts is None else Knowledge(attempts_in_flight=self.attempts)

    async def until(self, is_right: Callable[[Judgement], bool]) -> Judgement:
        """The next judgement that is right; one that was made before this call does not count."""
        while True:
            self.looked.clear()
            await self.looked.wait()
            if is_right(self.judgements[-1]):
                return self.judgements[-1]

    async def until_verdict(self, verdict: Verdict) -> Judgement:
        return await self.until(lambda judgement: judgement.verdict is verdict)


@asynccontextmanager
async def watching(server: VllmServer, settings: HealthSettings = SETTINGS) -> AsyncIterator[Watched]:
    watched = Watched()
    monitor = HealthMonitor(settings, lambda _, __: None, watched.knowing, on_look=watched.on_look, read_timeout_ms=10_000)
    async with monitor:
        monitor.watch("r", server.url)
        yield watched


@asynccontextmanager
async def streams(server: VllmServer, session: aiohttp.ClientSession, count: int) -> AsyncIterator[list[asyncio.Task[bytes]]]:
    """So many endless generations, running."""

    async def stream() -> bytes:
        async with session.post(server.url + CHAT, json=chat(max_tokens=ENDLESS)) as response:
            return await response.read()

    tasks = [asyncio.create_task(stream()) for _ in range(count)]
    try:
        await server.wait_until_running(session, count)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def short_answers(server: VllmServer, session: aiohttp.ClientSession) -> float:
    """How many requests for a completion this server has ever finished: nobody but health sends any."""
    async with session.get(f"{server.url}/metrics") as response:
        page = await response.text()
    counts = re.findall(r'^http_requests_total\{[^}]*handler="/v1/completions"[^}]*\} (\S+)$', page, re.MULTILINE)
    return sum(map(float, counts))


async def test_the_real_page_has_every_series_that_health_reads(server: VllmServer, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{server.url}/metrics") as response:
        body = await response.read()
    page = read_page(body)
    (engine,) = page.engines
    assert (engine.engine, page.model) == ("0", "tiny")
    assert set(engine.values) == set(Series)
    assert page.started_at_s is not None


async def test_idle_is_confirmed_by_one_token_at_once(server: VllmServer, session: aiohttp.ClientSession) -> None:
    before = await short_answers(server, session)
    async with watching(server) as watched:
        judgement = await watched.until(lambda judgement: "a short answer came in" in judgement.evidence)
        await watched.until_verdict(Verdict.IDLE)
    assert judgement.verdict is Verdict.IDLE
    assert await short_answers(server, session) == before + 1


async def test_busy_moves_and_is_asked_nothing(server: VllmServer, session: aiohttp.ClientSession) -> None:
    before = await short_answers(server, session)
    async with streams(server, session, 3), watching(server) as watched:
        await watched.until(lambda judgement: re.fullmatch(r"3 running; \d+ steps in .*", judgement.evidence) is not None)
        for _ in range(8):
            judgement = await watched.until(lambda _: True)
            assert judgement.is_placeable, judgement
        assert await server.running(session) == 3
    assert await short_answers(server, session) == before


async def test_a_long_prompt_in_chunks_stays_busy_while_no_step_is_counted(
    server: VllmServer, session: aiohttp.ClientSession
) -> None:
    async with watching(server, replace(SETTINGS, interval_ms=100)) as watched:
        await watched.until(lambda judgement: "a short answer came in" in judgement.evidence)
        # Not streamed: a stream's 200 comes before its prefill.
        body = chat(prompt=long_prompt(28_000), max_tokens=1, stream=False)
        request = asyncio.create_task(session.post(server.url + CHAT, json=body))
        moved_without_steps = 0
        while not request.done():
            judgement = await watched.until(lambda _: True)
            assert judgement.verdict in (Verdict.IDLE, Verdict.BUSY, Verdict.SUSPECT), judgement
            moved_without_steps += "1 running; kv_cache_usage_perc" in judgement.evidence
        async with await request as response:
            assert response.status == 200
    assert moved_without_steps >= 3


async def test_a_stopped_engine_is_hung_while_its_health_says_200(server: VllmServer, session: aiohttp.ClientSession) -> None:
    async with streams(server, session, 2), watching(server) as watched:
        await watched.until_verdict(Verdict.BUSY)
        engine = server.engine_pid()
        os.kill(engine, signal.SIGSTOP)
        try:
            judgement = await watched.until_verdict(Verdict.HUNG)
            assert judgement.cause is Cause.ENGINE_STANDS_STILL
            assert judgement.evidence.startswith("2 running; nothing moved in")
            async with session.get(f"{server.url}/health") as response:
                assert response.status == 200
        finally:
            os.kill(engine, signal.SIGCONT)
        await watched.until_verdict(Verdict.BUSY)


async def test_gauges_that_froze_while_nobody_of_ours_is_there_are_no_hang(
    server: VllmServer, session: aiohttp.ClientSession
) -> None:
    async with watching(server) as watched:
        engine = server.engine_pid()
        try:
            async with streams(server, session, 2):
                os.kill(engine, signal.SIGSTOP)
            watched.attempts = 0
            await watched.until_verdict(Verdict.SUSPECT)
            began_ms = monotonic_ms()
            while monotonic_ms() - began_ms < 2 * SETTINGS.hung_after_ms:
                judgement = await watched.until(lambda _: True)
                assert judgement.verdict is Verdict.SUSPECT, judgement
        finally:
            os.kill(engine, signal.SIGCONT)
        await watched.until_verdict(Verdict.IDLE)


async def test_an_engine_that_stops_while_idle_owes_its_answer(server: VllmServer, session: aiohttp.ClientSession) -> None:
    quick = HealthSettings(interval_ms=500, hung_after_ms=8_000, answer_deadline_ms=1_000, answer_every_ms=500)
    async with watching(server, quick) as watched:
        await watched.until(lambda judgement: "a short answer came in" in judgement.evidence)
        engine = server.engine_pid()
        os.kill(engine, signal.SIGSTOP)
        try:
            judgement = await watched.until_verdict(Verdict.HUNG)
            assert judgement.cause is Cause.NO_ANSWER_WHEN_IDLE
        finally:
            os.kill(engine, signal.SIGCONT)
        await watched.until_verdict(Verdict.IDLE)


async def test_a_killed_engine_is_dead_and_its_successor_must_answer_first(
    server: VllmServer, session: aiohttp.ClientSession
) -> None:
    async with streams(server, session, 1), watching(server) as watched:
        await watched.until_verdict(Verdict.BUSY)
        os.kill(server.engine_pid(), signal.SIGKILL)
        assert (await watched.until_verdict(Verdict.DEAD)).cause in (Cause.ENGINE_DEAD, Cause.CONNECTION_REFUSED)
        await watched.until(lambda judgement: judgement.cause is Cause.CONNECTION_REFUSED)
        server.stop()
        server.start()
        await server.wait_until_ready(session)
        await watched.until_verdict(Verdict.RESTARTED)
        await watched.until_verdict(Verdict.IDLE)


async def test_a_restart_between_two_readings_is_seen_by_the_start_time(
    server: VllmServer, session: aiohttp.ClientSession
) -> None:
    reader = HealthReader(session=session)
    history = History.begin(monotonic_ms())

    async def look() -> Judgement:
        nonlocal history
        await asyncio.sleep(max(0, history.judgement.next.at_ms - monotonic_ms()) / 1000)
        asked = history.judgement.next.look
        observation = await reader.take(server.url, asked, model="tiny", timeout_ms=30_000)
        history, judgement = judge(history, observation, SETTINGS, monotonic_ms())
        return judgement

    while history.answered_at_ms is None:
        await look()
    server.stop()
    server.start()
    await server.wait_until_ready(session)
    assert (await look()).verdict is Verdict.RESTARTED
    seen = []
    with contextlib.suppress(TimeoutError):
        while not seen or seen[-1].verdict is Verdict.RESTARTED:
            seen.append(await look())
    assert seen[-1].verdict is Verdict.IDLE
    assert Look.SHORT_ANSWER in {judgement.next.look for judgement in seen}
