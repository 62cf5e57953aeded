"""Everything that one processor process tells the outside, made from its environment."""

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Final

from extproc.journal.interface import Journal
from extproc.telemetry import instruments as metric
from extproc.telemetry.exports import open_exports
from extproc.telemetry.logs import RequestLog
from extproc.telemetry.meters import Meters
from extproc.telemetry.metrics import RequestMetrics
from extproc.telemetry.policies import PolicyMetrics
from extproc.telemetry.recent import Recent
from extproc.telemetry.traces import RequestTraces
from extproc.telemetry.verdicts import VerdictMetrics
from extproc.telemetry.witness import Later, Subscriber, Witness, at_once, no_headers

RENEWED: Final = "renewed"
UNANSWERED: Final = "unanswered"


class Telemetry:
    """One processor's. ``observer`` is what its World is given; the rest is for its admin interface and its assembly."""

    def __init__(self, *, instance_id: str, environment: Mapping[str, str] = os.environ, later: Later = at_once) -> None:
        """``later`` puts telling off, so that no request waits for it."""
        self._exports = open_exports(environment, instance_id)
        self.registry = self._exports.registry
        self.meters = Meters(self._exports.meter_provider)
        self.recent = Recent()
        self.policies = PolicyMetrics(self.meters)
        self.verdicts = VerdictMetrics(self.meters)
        self.meters.begin(metric.UNRECORDED, {})
        for result in (RENEWED, UNANSWERED):
            self.meters.begin(metric.RENEWALS, {"result": result})
        subscribers: list[Subscriber] = [self.recent, RequestLog(), RequestMetrics(self.meters)]
        attempt_headers = no_headers
        if self._exports.tracer_provider is not None:
            traces = RequestTraces(self._exports.tracer_provider, self._exports.ids)
            subscribers.append(traces)
            attempt_headers = traces.attempt_headers
        self.observer = Witness(subscribers, attempt_headers, later)

    def watch_journal(self, journal: Journal) -> None:
        """Show how far the journal is behind, whenever somebody collects."""
        self.meters.watch(metric.JOURNAL_AVAILABLE, lambda: float(journal.available))
        self.meters.watch(metric.JOURNAL_WAITING, lambda: float(journal.backlog.events))
        self.meters.watch(metric.JOURNAL_LAG, lambda: _age_s(journal.backlog.oldest_at_ms))

    def beaten(self, leases: int, answered: bool) -> None:
        """A heartbeat that carried so many leases is over."""
        if leases:
            self.meters.count(metric.RENEWALS, {"result": RENEWED if answered else UNANSWERED}, leases)

    def unrecorded(self) -> None:
        """The journal could not hold an event, and its operator chose to serve all the same."""
        self.meters.count(metric.UNRECORDED, {})

    async def close(self) -> None:
        """Send what is left; bounded, also where no receiver answers."""
        self.observer.tell()
        await asyncio.to_thread(self._exports.close)


def _age_s(at_ms: int | None) -> float:
    return 0.0 if at_ms is None else max(0.0, time.time() - at_ms / 1000)
