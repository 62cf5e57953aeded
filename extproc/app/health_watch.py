"""Health's verdicts where they matter: which replicas get new attempts, and which running attempts are on a hung one.

Asks sessions instead of counting on the per-delta path: what was delivered between two looks at a replica is known from
the sessions' own counts.
"""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
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


class HealthWatch:
    """Joins the health monitor with a roster and the sessions that run on it. A RosterListener."""

    def __init__(
        self,
        settings: HealthSettings,
        roster: Roster,
        sessions: Callable[[], Collection[Session]],
        verdicts: VerdictMetrics | None = None,
        restarted: Callable[[str], None] | None = None,
    ) -> None:
        """``restarted`` hears the destination of a replica that was started again."""
        self._restarted = restarted
        self._roster = roster
        self._verdicts = verdicts
        self._sessions = sessions
        self._output_seen: dict[str, tuple[int, int]] = {}
        """Destination to the tokens delivered at the last look, and when that number last changed."""
        self.monitor: Final = HealthMonitor(settings, self._judged, self._knowledge, on_look=self._looked)
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
        running = [session for session in self._sessions() if _is_on(session, destination)]
        tokens = sum(session.delivered_tokens for session in running)
        seen, changed_at_ms = self._output_seen.get(destination, (0, 0))
        if tokens != seen:
            changed_at_ms = monotonic_ms()
            self._output_seen[destination] = (tokens, changed_at_ms)
        return Knowledge(attempts_in_flight=self._roster.running(destination), last_output_at_ms=changed_at_ms or None)


def _is_on(session: Session, destination: str) -> bool:
    attempt = session.attempt
    return attempt is not None and attempt.replica.destination == destination
