"""The gateway's health monitor: one look at a time for each replica, judged by decision/health (R20-R26).

Verdicts place new attempts and are the evidence for ``replica_hung``. A short answer is asked of one idle replica at a time, only
while no attempt of this process is there, and is broken off at once when one arrives.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from extproc.decision.findings import History
from extproc.decision.health import current, judge
from extproc.decision.health_report import Json, encode_history
from extproc.decision.looks import Look, Observation, Outcome
from extproc.decision.verdicts import HealthSettings, Judgement, Knowledge
from extproc.replicas.health_reader import HealthReader, monotonic_ms, new_session

READ_TIMEOUT_MS: Final = 2_000
TURN_WAIT_S: Final = 1.0
"""A short answer waits at most this long for another's to end; a reading that is older is no proof that it is idle."""
RESTART_AFTER_S: Final = 5.0
"""After a fault of the monitor's own."""

logger = logging.getLogger(__name__)

Changed = Callable[[str, Judgement], None]
"""Told a replica's destination and its new judgement, when its verdict, cause or placement changed. Must not raise."""
Looked = Callable[[str, History], None]
"""Told the same after every look, with all that is remembered. Must not raise."""
Knowing = Callable[[str], Knowledge | None]
"""What the processor knows about a replica itself: its attempts there, and when output last came."""


def knows_nothing(_: str) -> None:
    """For a caller that places no attempts."""


def ignores_looks(_: str, __: History) -> None:
    """For a caller that only wants changes."""


@dataclass(slots=True)
class _Watched:
    """Invariant: ``asking`` is set exactly while a short answer of ours is on its way to this replica."""

    url: str
    history: History
    task: asyncio.Task[None] | None = None
    asking: asyncio.Task[Observation] | None = None


class HealthMonitor:
    """Watches replicas from ``async with`` to its end. All calls are made on the event loop; none of them waits."""

    def __init__(
        self,
        settings: HealthSettings,
        on_change: Changed,
        knowing: Knowing = knows_nothing,
        *,
        on_look: Looked = ignores_looks,
        api_key: str = "",
        tls: ssl.SSLContext | None = None,
        read_timeout_ms: int = READ_TIMEOUT_MS,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._settings = settings
        self._on_change = on_change
        self._on_look = on_look
        self._knowing = knowing
        self._api_key = api_key
        self._tls = tls
        self._read_timeout_ms = read_timeout_ms
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._reader: HealthReader | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._reader = HealthReader(session=new_session(self._tls), api_key=self._api_key, clock=self._clock)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [watched.task for watched in self._watched.values() if watched.task is not None]
        for destination in list(self._watched):
            self.forget(destination)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert self._reader is not None
        await self._reader.session.close()

    def watch(self, destination: str, url: str, *, is_proxy: bool = False, expected_up: bool = False) -> None:
        """Begin to watch the replica at ``url``; one that is watched already stays as it is. Only inside ``async with``.

        ``expected_up``: a connection that is refused at the first look already means dead, not starting.
        """
        assert self._reader is not None, "the monitor is not running"
        if destination in self._watched:
            return
        watched = _Watched(url=url, history=History.begin(self._clock(), is_proxy=is_proxy, expected_up=expected_up))
        self._watched[destination] = watched
        watched.task = asyncio.create_task(self._keep_watching(destination, watched), name=f"health of {destination}")

    def forget(self, destination: str) -> None:
        """The replica has left; its history goes with it."""
        watched = self._watched.pop(destination, None)
        if watched is not None and watched.task is not None:
            watched.task.cancel()

    def work_arrived(self, destination: str) -> None:
        """An attempt goes there now: a short answer of ours gives way."""
        watched = self._watched.get(destination)
        if watched is not None and watched.asking is not None:
            watched.asking.cancel()

    def verdicts(self) -> dict[str, Judgement]:
        """Every replica's judgement as it stands now."""
        now_ms = self._clock()
        return {
            destination: current(watched.history.judgement, self._settings, now_ms)
            for destination, watched in self._watched.items()
        }

    def reports(self) -> dict[str, Json]:
        """The same with the readings behind them, for a page or a log."""
        now_ms = self._clock()
        return {destination: encode_history(watched.history, now_ms) for destination, watched in self._watched.items()}

    async def _keep_watching(self, destination: str, watched: _Watched) -> None:
        while True:
            try:
                await self._look(destination, watched)
            except Exception:
                # Its last judgement goes stale and then counts as unknown; the other replicas are watched on.
                logger.exception("health of %s: a fault of the monitor's own", destination)
                await asyncio.sleep(RESTART_AFTER_S)

    async def _look(self, destination: str, watched: _Watched) -> None:
        before = watched.history.judgement
        await asyncio.sleep((before.next.at_ms - self._clock()) / 1000)
        if before.next.look is Look.SHORT_ANSWER:
            observation = await self._ask(destination, watched)
        else:
            observation = await self._take(watched, before.next.look, self._read_timeout_ms)
        watched.history, after = judge(watched.history, observation, self._settings, self._clock(), self._knowing(destination))
        if (after.verdict, after.cause, after.placement) != (before.verdict, before.cause, before.placement):
            logger.info("health of %s: %s -> %s: %s", destination, before.verdict, after.verdict, after.evidence)
            self._on_change(destination, after)
        self._on_look(destination, watched.history)

    async def _take(self, watched: _Watched, look: Look, timeout_ms: int) -> Observation:
        assert self._reader is not None
        latest = watched.history.latest
        return await self._reader.take(watched.url, look, model=latest.page.model if latest else "", timeout_ms=timeout_ms)

    async def _ask(self, destination: str, watched: _Watched) -> Observation:
        """One at a time among all replicas, and none where an attempt of ours has arrived meanwhile."""
        try:
            async with asyncio.timeout(TURN_WAIT_S):
                await self._turn.acquire()
        except TimeoutError:
            return _GAVE_WAY
        try:
            knowledge = self._knowing(destination)
            if knowledge is not None and knowledge.attempts_in_flight:
                return _GAVE_WAY
            return await self._ask_giving_way(destination, watched)
        finally:
            self._turn.release()

    async def _ask_giving_way(self, destination: str, watched: _Watched) -> Observation:
        asking = asyncio.create_task(
            self._take(watched, Look.SHORT_ANSWER, self._settings.answer_deadline_ms), name=f"short answer of {destination}"
        )
        watched.asking = asking
        try:
            await asyncio.wait({asking})
            return _GAVE_WAY if asking.cancelled() else asking.result()
        finally:
            watched.asking = None
            asking.cancel()
            # Its connection is broken off before this returns.
            await asyncio.wait({asking})


_GAVE_WAY: Final = Observation(look=Look.SHORT_ANSWER, outcome=Outcome.GAVE_WAY)
