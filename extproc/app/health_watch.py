"""Health's verdicts where they matter: which replicas get new attempts, and which running attempts are on a hung one.

Asks sessions instead of counting on the per-delta path: what was delivered between two looks at a replica is known from
the sessions' own counts.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from extproc.decision.causes import Cause, Failure
from extproc.decision.findings import History
from extproc.decision.verdicts import HealthSettings, Judgement, Knowledge, Placement, Verdict
from extproc.processor.session import Session
from extproc.replicas.health_reader import monotonic_ms
from extproc.replicas.monitor import HealthMonitor
from extproc.replicas.roster import Replica, Roster, Standing
from extproc.telemetry.verdicts import VerdictMetrics

STANDINGS: Final = {
    Placement.PREFERRED: Standing.PLACEABLE,
    Placement.LAST_RESORT: Standing.LAST_RESORT,
    Placement.WITHHELD: Standing.WITHHELD,
}


@dataclass(frozen=True, slots=True)
class Output:
    """What the attempts on one replica have delivered: tokens by attempt id, and when any of them was last seen to have grown."""

    tokens: Mapping[str, int]
    grew_at_ms: int | None

    def after(self, tokens: Mapping[str, int], now_ms: int) -> "Output":
        """At a later look. An attempt that has ended takes its tokens away with it; that is no output."""
        has_grown = any(count > self.tokens.get(attempt_id, 0) for attempt_id, count in tokens.items())
        return Output(tokens, now_ms if has_grown else self.grew_at_ms)


NO_OUTPUT: Final = Output({}, None)


class HealthWatch:
    """Joins the health monitor with a roster and the sessions that run on it. A RosterListener."""

    def __init__(
        self,
        settings: HealthSettings,
        roster: Roster,
        sessions: Callable[[], Collection[Session]],
        verdicts: VerdictMetrics | None = None,
        restarted: Callable[[str], None] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``restarted`` hears the destination of a replica that was started again."""
        self._restarted = restarted
        self._roster = roster
        self._verdicts = verdicts
        self._sessions = sessions
        self._output_seen: dict[str, Output] = {}
        """By destination, as of the last look."""
        self.monitor: Final = HealthMonitor(settings, self._judged, self._knowledge, on_look=self._looked, tls=tls)
        self._watched: set[str] = set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch the roster's replicas, whoever they become, until the end."""
        async with self.monitor:
            self._roster.subscribe(self)
            yield

    def replicas_changed(self, replicas: tuple[Replica, ...]) -> None:
        """See RosterListener."""
        known = {replica.destination: replica for replica in replicas}
        for destination in self._watched - set(known):
            self.monitor.forget(destination)
            self._output_seen.pop(destination, None)
            if self._verdicts is not None:
                self._verdicts.forgotten(destination)
        for destination, replica in known.items():
            self.monitor.watch(destination, replica.url)
        self._watched = set(known)

    def attempt_placed(self, replica: Replica) -> None:
        """See RosterListener."""
        self.monitor.work_arrived(replica.destination)

    def _looked(self, destination: str, history: History) -> None:
        # Every look counts, not only a change: one that is found starting was placeable until somebody looked.
        self._roster.set_standing(destination, STANDINGS[history.judgement.placement])
        if self._verdicts is not None:
            self._verdicts.changed(destination, history.judgement.verdict)

    def _judged(self, destination: str, judgement: Judgement) -> None:
        if judgement.verdict is Verdict.RESTARTED and self._restarted is not None:
            self._restarted(destination)
        if judgement.verdict is not Verdict.HUNG:
            return
        failure = Failure(cause=Cause.HUNG, evidence=f"health says hung: {judgement.evidence}")
        for session in self._sessions():
            attempt = session.attempt
            if attempt is not None and attempt.replica.destination == destination:
                session.lose(attempt, failure)

    def _knowledge(self, destination: str) -> Knowledge:
        delivered = {
            attempt.attempt_id: session.delivered_tokens
            for session in self._sessions()
            if (attempt := session.attempt) is not None and attempt.replica.destination == destination
        }
        seen = self._output_seen.get(destination, NO_OUTPUT).after(delivered, monotonic_ms())
        self._output_seen[destination] = seen
        return Knowledge(attempts_in_flight=self._roster.running(destination), last_output_at_ms=seen.grew_at_ms)
