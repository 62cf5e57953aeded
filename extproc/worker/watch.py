"""The probe's own loop: take the look that the last judgement asked for, judge, wait.

One loop, one look at a time, so there are never two requests of ours on the server. A short answer gives way as soon as the
metrics show that it is not alone.
"""

import asyncio
import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from extproc.decision.findings import History
from extproc.decision.health import current, judge
from extproc.decision.liveness import Liveness, LivenessSettings, Record, answer_liveness
from extproc.decision.looks import Look, Observation, Outcome, read_answer, request_for
from extproc.decision.verdicts import HealthSettings, Judgement, Knowledge, duration
from extproc.worker.clients_of_port import count_clients
from extproc.worker.plain_http import ExchangeError, Target, exchange

GIVE_WAY_EVERY_S: Final = 0.5
"""How often the metrics are read while a short answer is awaited."""


def now_ms() -> int:
    """The probe's clock."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """What the probe is told by its operator."""

    health: HealthSettings
    liveness: LivenessSettings
    read_timeout_ms: int


Note = Callable[[str, dict[str, object]], None]
"""Told what happened, as a word and its facts."""


class Watch:
    """One server under watch.

    Invariant: ``history`` and ``record`` change on the event loop only, between two awaits.
    """

    def __init__(self, target: Target, settings: WatchSettings, note: Note, clock: Callable[[], int] = now_ms) -> None:
        self._target = target
        self._settings = settings
        self._note = note
        self.clock = clock
        self.history = History.begin(clock())
        self.record = Record()

    @property
    def judgement(self) -> Judgement:
        """The verdict as it stands now."""
        return current(self.history.judgement, self._settings.health, self.clock())

    def answer_liveness(self) -> Liveness:
        """What ``/livez`` says now; a restart that it asks for goes on the record, and to the log."""
        before = self.record
        self.record, liveness = answer_liveness(before, self.history.judgement, self._settings.liveness, self.clock())
        if self.record is not before:
            self._note("restart_asked_for", {"reason": liveness.reason, "number": len(self.record.demands)})
        return liveness

    def peek_liveness(self) -> Liveness:
        """The same without asking for anything."""
        return answer_liveness(self.record, self.history.judgement, self._settings.liveness, self.clock())[1]

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep((self.history.judgement.next.at_ms - self.clock()) / 1000)
            before = self.history.judgement
            observation = await self._take(before.next.look)
            self.history, after = judge(
                self.history, observation, self._settings.health, self.clock(), self._knowledge(observation)
            )
            if (after.verdict, after.cause) != (before.verdict, before.cause):
                self._note(
                    "verdict",
                    {
                        "verdict": str(after.verdict),
                        "evidence": after.evidence,
                        "was": str(before.verdict),
                        "for": duration(self.clock() - before.since_ms),
                    },
                )

    async def _take(self, look: Look) -> Observation:
        if look is Look.SHORT_ANSWER:
            return await self._ask_giving_way()
        return await self._fetch(look, self._settings.read_timeout_ms)

    async def _fetch(self, look: Look, timeout_ms: int) -> Observation:
        latest = self.history.latest
        request = request_for(look, latest.page.model if latest else "")
        began_ms = self.clock()
        try:
            status, body = await exchange(
                self._target,
                request,
                connect_ms=timeout_ms // 2,
                total_ms=timeout_ms,
            )
        except ExchangeError as failure:
            return Observation(look=look, outcome=failure.outcome, took_ms=self.clock() - began_ms, detail=str(failure))
        return read_answer(look, status, body, self.clock() - began_ms)

    async def _ask_giving_way(self) -> Observation:
        asking = asyncio.create_task(
            self._fetch(Look.SHORT_ANSWER, self._settings.health.answer_deadline_ms), name="short answer"
        )
        try:
            while not (await asyncio.wait({asking}, timeout=GIVE_WAY_EVERY_S))[0]:
                page = (await self._fetch(Look.METRICS, self._settings.read_timeout_ms)).page
                if page is not None and not page.missing and page.in_flight > 1:
                    return Observation(look=Look.SHORT_ANSWER, outcome=Outcome.GAVE_WAY)
            return asking.result()
        finally:
            asking.cancel()

    def _knowledge(self, observation: Observation) -> Knowledge | None:
        """That nobody holds a connection to the server, where the kernel can tell; else nothing."""
        if observation.look is not Look.METRICS or not _is_loopback(self._target.host):
            return None
        return Knowledge(attempts_in_flight=0) if count_clients(self._target.port) == 0 else None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
