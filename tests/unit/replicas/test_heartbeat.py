"""One heartbeat for a replica: what it renews, what it counts from, and whom it tells what."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest

from extproc.decision.lease import LeaseTerms, Stamp
from extproc.replicas.guard_client import GuardClient
from extproc.replicas.heartbeat import ABSENT_INTERVAL_MS, GuardStanding, Heartbeat
from tests.unit.replicas.scripted_guard import Clock, ScriptedGuard

TERMS = LeaseTerms(ttl_ms=10_000, drift_ppm=0)
LONG_MS = 3_600_000


class Heard:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.stamps: list[Stamp] = []
        self.stamped = asyncio.Event()
        self.boots: list[tuple[str | None, str]] = []
        self.silent: asyncio.Queue[str] = asyncio.Queue()

    def on_stamp(self, stamp: Stamp) -> None:
        self.stamps.append(stamp)
        self.stamped.set()

    def on_boot(self, before: str | None, after: str) -> None:
        self.boots.append((before, after))

    def on_silence(self, attempt_id: str, silent_ms: int) -> None:
        assert silent_ms > 0
        self.silent.put_nowait(attempt_id)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def heartbeat(guard: ScriptedGuard, client: GuardClient, heard: Heard) -> AsyncIterator[Heartbeat]:
    heartbeat = Heartbeat(
        url=guard.url,
        processor_id="gateway-1",
        client=client,
        listener=heard,
        interval_ms=LONG_MS,
    )
    yield heartbeat
    for attempt_id in ("att_1", "att_2"):
        heartbeat.drop(attempt_id)


def renewals(guard: ScriptedGuard) -> list[dict[str, int]]:
    return [{lease["attempt_id"]: lease["valid_until_ms"] for lease in beat["leases"]} for beat in guard.beats]


async def test_one_beat_renews_all_attempts(heartbeat: Heartbeat, guard: ScriptedGuard, clock: Clock) -> None:
    await heartbeat.beat()
    heartbeat.hold("att_1", TERMS)
    heartbeat.hold("att_2", replace(TERMS, ttl_ms=20_000))
    guard.now_ms += 2_000
    clock.now_ms += 2_000
    await heartbeat.beat()
    await heartbeat.beat()
    assert renewals(guard) == [
        {},
        {"att_1": 1_010_000, "att_2": 1_020_000},
        {"att_1": 1_012_000, "att_2": 1_022_000},
    ]
    assert guard.beats[0]["processor_id"] == "gateway-1"


async def test_renewal_counts_before_it_is_sent(heartbeat: Heartbeat, guard: ScriptedGuard, clock: Clock) -> None:
    """While the beat that carries it is under way, the bound already is the later one: its receipt is possible."""
    await heartbeat.beat()
    heartbeat.hold("att_1", TERMS)
    clock.now_ms += 2_000
    guard.now_ms += 2_000
    await heartbeat.beat()
    guard.is_answering.clear()
    beating = asyncio.create_task(heartbeat.beat())
    await guard.heard(beats=3)
    lease = heartbeat.lease("att_1")
    assert lease is not None
    assert (lease.valid_until_ms, lease.publish_bound_ms) == (1_012_000, 72_000 + 10_001)
    guard.is_answering.set()
    await beating


async def test_beats_without_an_answer_prolong_nothing(heartbeat: Heartbeat, guard: ScriptedGuard, clock: Clock) -> None:
    await heartbeat.beat()
    granted = heartbeat.hold("att_1", TERMS)
    guard.status = 503
    for _ in range(3):
        clock.now_ms += 2_000
        await heartbeat.beat()
    assert heartbeat.lease("att_1") == granted


async def test_late_answer_still_counts_and_an_overtaken_one_does_not(
    heartbeat: Heartbeat, guard: ScriptedGuard, clock: Clock, heard: Heard
) -> None:
    guard.is_answering.clear()
    early = asyncio.create_task(heartbeat.beat())
    await guard.heard(beats=1)
    clock.now_ms += 2_000
    guard.now_ms += 2_000
    guard.is_answering.set()
    await heartbeat.beat()
    await early
    assert heartbeat.stamp is not None
    assert heartbeat.stamp.now_ms == 1_002_000
    assert sorted(stamp.now_ms for stamp in heard.stamps) == [1_000_000, 1_002_000]


async def test_revoked_lease_is_renewed_no_more(heartbeat: Heartbeat, guard: ScriptedGuard, clock: Clock) -> None:
    await heartbeat.beat()
    granted = heartbeat.hold("att_1", TERMS)
    heartbeat.revoke("att_1")
    guard.now_ms += 2_000
    await heartbeat.beat()
    await heartbeat.beat()
    assert renewals(guard) == [{}, {}, {}]
    assert heartbeat.lease("att_1") == granted


async def test_new_boot_id_is_told_and_renews_nothing_of_before(
    heartbeat: Heartbeat, guard: ScriptedGuard, heard: Heard, clock: Clock
) -> None:
    await heartbeat.beat()
    granted = heartbeat.hold("att_1", TERMS)
    guard.boot_id = "boot_b"
    clock.now_ms += 10
    await heartbeat.beat()
    await heartbeat.beat()
    assert heard.boots == [(None, "boot_a"), ("boot_a", "boot_b")]
    assert renewals(guard)[-1] == {}
    assert heartbeat.lease("att_1") == granted


async def test_lease_that_was_not_renewed_in_time_is_told_once(heartbeat: Heartbeat, clock: Clock, heard: Heard) -> None:
    await heartbeat.beat()
    heartbeat.hold("att_1", replace(TERMS, ttl_ms=1))
    clock.now_ms += 1_000
    assert await heard.silent.get() == "att_1"
    await heartbeat.beat()
    assert heard.silent.empty()


async def test_renewed_lease_is_not_told(heartbeat: Heartbeat, clock: Clock, heard: Heard, guard: ScriptedGuard) -> None:
    """The timer of the first grant looks again and finds a later end; another attempt's lease marks that it has looked."""
    await heartbeat.beat()
    heartbeat.hold("att_1", replace(TERMS, ttl_ms=20))
    heartbeat.hold("att_2", replace(TERMS, ttl_ms=21))
    heartbeat._held["att_1"].terms = TERMS
    heartbeat._held["att_2"].is_renewed = False
    clock.now_ms += 15
    guard.now_ms += 15
    await heartbeat.beat()
    await heartbeat.beat()
    clock.now_ms += 15
    assert await heard.silent.get() == "att_2"
    assert heard.silent.empty()


@pytest.mark.parametrize(
    ("status", "standing"),
    [
        (200, GuardStanding.PRESENT),
        (404, GuardStanding.ABSENT),
        (401, GuardStanding.TOKEN_REFUSED),
        (403, GuardStanding.TOKEN_REFUSED),
        (503, GuardStanding.UNKNOWN),
    ],
)
async def test_standing_of_a_replica(heartbeat: Heartbeat, guard: ScriptedGuard, status: int, standing: GuardStanding) -> None:
    guard.status = status
    await heartbeat.beat()
    assert heartbeat.standing is standing


async def test_replica_that_stops_answering_keeps_its_standing(heartbeat: Heartbeat, guard: ScriptedGuard) -> None:
    await heartbeat.beat()
    await guard.stop()
    await heartbeat.beat()
    assert heartbeat.standing is GuardStanding.PRESENT


async def test_replica_without_a_guard_is_asked_rarely(heartbeat: Heartbeat, guard: ScriptedGuard) -> None:
    guard.status = 404
    await heartbeat.beat()
    assert heartbeat._current_interval_ms() == ABSENT_INTERVAL_MS


class TestRunning:
    @pytest.fixture
    async def running(self, heartbeat: Heartbeat) -> AsyncIterator[asyncio.Task[None]]:
        running = asyncio.create_task(heartbeat.run())
        yield running
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    async def test_beats_at_once_and_faster_for_a_short_lease(
        self, running: asyncio.Task[None], heartbeat: Heartbeat, guard: ScriptedGuard, heard: Heard
    ) -> None:
        await heard.stamped.wait()
        heartbeat.hold("att_1", replace(TERMS, ttl_ms=50))
        await guard.heard(beats=4)

    async def test_does_not_wait_for_answers_but_bounds_how_many_are_open(
        self, running: asyncio.Task[None], heartbeat: Heartbeat, guard: ScriptedGuard, heard: Heard
    ) -> None:
        await heard.stamped.wait()
        guard.is_answering.clear()
        heartbeat.hold("att_1", replace(TERMS, ttl_ms=10))
        await guard.heard(beats=5)
        assert len(heartbeat._beats) == 4
        guard.is_answering.set()
        await guard.heard(beats=6)
