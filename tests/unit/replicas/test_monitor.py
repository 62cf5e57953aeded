"""The monitor on real sockets: what it asks, when it gives way, and what it tells."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from extproc.decision.verdicts import HealthSettings, Judgement, Knowledge, Placement, Verdict
from extproc.replicas import monitor as monitor_module
from extproc.replicas.monitor import HealthMonitor, Knowing
from tests.unit.scripted_replica import ScriptedReplica, answer, idle_replica, metrics

SETTINGS = HealthSettings(interval_ms=10, hung_after_ms=60, stale_after_ms=60_000, answer_deadline_ms=5_000)


@dataclass(slots=True)
class Told:
    """What the monitor told, and what it is told."""

    changes: list[tuple[str, Judgement]] = field(default_factory=list)
    attempts: dict[str, int] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    monitor: HealthMonitor | None = None

    def on_change(self, destination: str, judgement: Judgement) -> None:
        self.changes.append((destination, judgement))
        self.changed.set()

    def knowing(self, destination: str) -> Knowledge | None:
        attempts = self.attempts.get(destination)
        return None if attempts is None else Knowledge(attempts_in_flight=attempts)

    async def until(self, destination: str, verdict: Verdict) -> Judgement:
        return await self.until_judged(destination, lambda judgement: judgement.verdict is verdict)

    async def until_judged(self, destination: str, wanted: Callable[[Judgement], bool]) -> Judgement:
        assert self.monitor is not None
        while not wanted(self.monitor.verdicts()[destination]):
            self.changed.clear()
            await self.changed.wait()
        return self.monitor.verdicts()[destination]


@asynccontextmanager
async def monitoring(
    *replicas: ScriptedReplica, settings: HealthSettings = SETTINGS, is_proxy: bool = False, knowing: Knowing | None = None
) -> AsyncIterator[Told]:
    told = Told()
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await stack.enter_async_context(replica.serving())
        told.monitor = await stack.enter_async_context(HealthMonitor(settings, told.on_change, knowing or told.knowing))
        for number, replica in enumerate(replicas):
            told.monitor.watch(f"r{number}", replica.url, is_proxy=is_proxy)
        yield told


async def test_an_idle_replica_is_read_asked_once_and_told():
    replica = idle_replica()
    async with monitoring(replica) as told:
        judgement = await told.until("r0", Verdict.IDLE)
        assert judgement.placement is Placement.PREFERRED
        await replica.until_asked("/v1/completions")
        await replica.until_asked("/metrics", times=replica.asked.count("GET /metrics") + 5)
        assert replica.asked.count("POST /v1/completions") == 1
        assert told.monitor is not None
        report = told.monitor.reports()["r0"]
        assert (report["verdict"], len(report["readings"])) == ("idle", 2)
    assert [change[1].verdict for change in told.changes] == [Verdict.IDLE]


async def test_looks_at_one_replica_never_overlap():
    replica = idle_replica()
    async with monitoring(replica):
        await replica.until_asked("/metrics", times=20)
    assert max(replica.open_most.values()) == 1


async def test_one_read_per_interval():
    replica = idle_replica()
    replica.serve(metrics(running=1))
    slow = HealthSettings(interval_ms=3_600_000, hung_after_ms=3_600_000, stale_after_ms=3_600_000)
    async with monitoring(replica, idle_replica(), settings=slow) as told:
        await told.until("r0", Verdict.BUSY)
        await told.until("r1", Verdict.IDLE)
    assert replica.asked == ["GET /metrics"]


async def test_a_busy_replica_is_asked_nothing_and_stays_placeable():
    replica = idle_replica()
    replica.serve(metrics(running=64, waiting=10, steps=0))
    async with monitoring(replica, settings=HealthSettings(interval_ms=10)) as told:
        await told.until("r0", Verdict.BUSY)
        for steps in range(1, 30):
            replica.serve(metrics(running=64, waiting=10, steps=steps))
            await replica.until_asked("/metrics", times=steps + 1)
        assert told.monitor is not None
        assert told.monitor.verdicts()["r0"].is_placeable
    assert set(replica.asked) <= {"GET /metrics", "GET /health"}


async def test_a_hung_replica_is_told_with_its_evidence():
    replica = idle_replica()
    replica.serve(metrics(running=1))
    async with monitoring(replica) as told:
        judgement = await told.until("r0", Verdict.HUNG)
        assert judgement.evidence.startswith("1 running; nothing moved in")
        assert judgement.placement is Placement.WITHHELD
        replica.serve(metrics(running=1, steps=501))
        await told.until("r0", Verdict.BUSY)
    assert "POST /v1/completions" not in replica.asked


async def test_frozen_gauges_without_attempts_of_ours_are_no_hang():
    replica = idle_replica()
    replica.serve(metrics(running=3))
    async with monitoring(replica) as told:
        told.attempts["r0"] = 0
        await told.until("r0", Verdict.SUSPECT)
        await replica.until_asked("/metrics", times=40)
    assert Verdict.HUNG not in {change[1].verdict for change in told.changes}


async def test_a_dead_replica_is_told_and_comes_back_through_its_answer():
    replica = idle_replica()
    async with monitoring(replica) as told:
        await told.until("r0", Verdict.IDLE)
        await replica.stop_listening()
        assert (await told.until("r0", Verdict.DEAD)).placement is Placement.WITHHELD
        replica.serve(metrics(steps=0, started=1764429999.0))
        async with replica.serving(replica.port):
            await told.until("r0", Verdict.RESTARTED)
            await told.until("r0", Verdict.IDLE)


async def test_a_declared_proxy_is_asked_for_its_models_only():
    replica = idle_replica()
    async with monitoring(replica, is_proxy=True) as told:
        await told.until("r0", Verdict.REACHABLE)
        await replica.until_asked("/v1/models", times=5)
    assert set(replica.asked) == {"GET /v1/models"}


async def test_a_short_answer_gives_way_at_once_when_work_arrives():
    replica = idle_replica()
    replica.pages["/v1/completions"] = None
    async with monitoring(replica) as told:
        await replica.until_asked("/v1/completions")
        assert told.monitor is not None
        told.attempts["r0"] = 1
        told.monitor.work_arrived("r0")
        await replica.until_left("/v1/completions")
        await told.until("r0", Verdict.BUSY)
    assert replica.asked.count("POST /v1/completions") == 1


async def test_work_elsewhere_or_nowhere_disturbs_nothing():
    async with monitoring(idle_replica(), idle_replica()) as told:
        assert told.monitor is not None
        told.monitor.work_arrived("r1")
        told.monitor.work_arrived("unknown")
        await told.until("r0", Verdict.IDLE)


async def test_nothing_is_asked_where_an_attempt_arrived_in_between():
    """The knowledge changes after the judgement and before its short answer."""
    replica = idle_replica()
    looks = iter([0, 0])
    async with monitoring(replica, knowing=lambda _: Knowledge(attempts_in_flight=next(looks, 1))):
        await replica.until_asked("/metrics", times=10)
    assert "POST /v1/completions" not in replica.asked


async def test_two_replicas_are_never_asked_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monitor_module, "TURN_WAIT_S", 0.001)
    one, other = idle_replica(), idle_replica()
    one.pages["/v1/completions"] = other.pages["/v1/completions"] = None
    async with monitoring(one, other):
        waiting = {asyncio.create_task(replica.until_asked("/v1/completions")) for replica in (one, other)}
        _, undone = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in undone:
            task.cancel()
        free = other if "POST /v1/completions" in one.asked else one
        await free.until_asked("/metrics", times=free.asked.count("GET /metrics") + 10)
        assert "POST /v1/completions" not in free.asked


async def test_many_idle_replicas_take_turns():
    replicas = [idle_replica() for _ in range(8)]
    slow = HealthSettings(interval_ms=100, hung_after_ms=60_000)
    async with monitoring(*replicas, settings=slow):
        for replica in replicas:
            await replica.until_asked("/v1/completions")
        assert max(replica.asked.count("GET /metrics") for replica in replicas) < 8


async def test_a_forgotten_replica_is_left_alone_and_an_asking_is_broken_off():
    replica = idle_replica()
    replica.pages["/v1/completions"] = None
    async with monitoring(replica) as told:
        await replica.until_asked("/v1/completions")
        assert told.monitor is not None
        told.monitor.forget("r0")
        await replica.until_left("/v1/completions")
        assert told.monitor.verdicts() == {}
        told.monitor.forget("r0")
        told.monitor.watch("r0", replica.url)
        told.monitor.watch("r0", "http://elsewhere.invalid")
        replica.serve(b"{}", "/v1/completions")
        await told.until("r0", Verdict.IDLE)


async def test_the_end_of_the_monitor_breaks_off_what_is_on_its_way():
    replica = idle_replica()
    replica.pages["/metrics"] = None
    async with replica.serving():
        async with HealthMonitor(SETTINGS, lambda *_: None) as monitor:
            monitor.watch("r0", replica.url)
            await replica.until_asked("/metrics")
        await replica.until_left("/metrics")


async def test_a_fault_of_the_monitors_own_is_logged_and_the_others_are_watched_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(monitor_module, "RESTART_AFTER_S", 0)
    fails = iter([True])

    def faulty(destination: str) -> Knowledge | None:
        if destination == "r0" and next(fails, False):
            raise LookupError("of our own")
        return None

    async with monitoring(idle_replica(), idle_replica(), knowing=faulty) as told:
        await told.until("r1", Verdict.IDLE)
        await told.until("r0", Verdict.IDLE)
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


async def test_a_server_without_metrics_falls_back_to_its_health():
    replica = ScriptedReplica(pages={"/health": answer()})
    async with monitoring(replica) as told:
        judgement = await told.until_judged("r0", lambda judgement: judgement.placement is Placement.LAST_RESORT)
        assert judgement.evidence.endswith("metrics: answered 404; /health answers 200")
        await replica.until_asked("/health", times=5)
    assert "POST /v1/completions" not in replica.asked
