"""Fencing without a guard: only what the connection itself proves counts (DESIGN section 5, last rule)."""

from collections.abc import Callable, Sequence
from typing import Final

from extproc.decision.causes import Cause, Failure, Fencing
from extproc.decision.policy import LeasePolicy
from extproc.replicas.roster import Replica

NOT_NEEDED_PROOF: Final = "ended_by_itself"
CLOSED_PROOF: Final = "connection_closed"


class UnguardedFence:
    """No leases: an attempt whose connection is closed can't publish, and one that is merely silent is never proved gone."""

    async def grant(
        self, attempt_id: str, replica: Replica, on_lost: Callable[[Failure], None], policy: LeasePolicy
    ) -> Sequence[tuple[str, str]]:
        """Nothing to grant: the replica would not understand it."""
        return ()

    def may_publish(self, attempt_id: str) -> bool:
        """Without a lease only the connection limits an attempt."""
        return True

    async def fence(self, attempt_id: str, replica: Replica, fencing: Fencing, failure: Failure) -> str | None:
        """The proof that the failure's own evidence is, or None."""
        match fencing:
            case Fencing.NOT_NEEDED:
                return "not_started" if failure.cause is Cause.NEVER_STARTED else NOT_NEEDED_PROOF
            case Fencing.CONFIRM:
                return CLOSED_PROOF
            case Fencing.REVOKE_AND_WAIT:
                return None

    def cancel(self, attempt_id: str, replica: Replica) -> None:
        """Closing the connection was the cancel."""

    def release(self, attempt_id: str) -> None:
        """Nothing to let go of."""
