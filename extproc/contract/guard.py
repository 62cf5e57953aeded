"""Wire forms between a processor and the guard in a replica's pod (DESIGN section 5).

Times are milliseconds on the **worker's** monotonic clock; no clock is ever compared between machines.
"""

from enum import StrEnum
from typing import Final, TypedDict

PATH_PREFIX: Final = "/_deltafence/"
HEARTBEAT_PATH: Final = "/_deltafence/v1/heartbeat"
FACTS_PATH: Final = "/_deltafence/v1/facts"
CANCEL_PATH_FORMAT: Final = "/_deltafence/v1/attempts/{attempt_id}/cancel"


class GuardRefusal(StrEnum):
    """Why a guard did not serve a request, or served it no further before its answer began.

    The JSON body is ``{"refusal": ..., "boot_id": ..., "now_ms": ...}``. On an attempt, each one
    but ``DUPLICATE_ATTEMPT`` proves that nothing of it was published and nothing will be.
    """

    WRONG_BOOT_ID = "wrong_boot_id"
    LEASE_EXPIRED = "lease_expired"
    """On arrival, or while the app had not yet begun to answer; then the app was stopped."""
    REVOKED = "revoked"
    """A cancel call stopped the app before it had begun to answer."""
    TOMBSTONED = "tombstoned"
    """A cancel call came before the attempt did."""
    DUPLICATE_ATTEMPT = "duplicate_attempt"
    """This attempt id has been here before. Says nothing about that first arrival, which may be running."""
    LEASE_TOO_LONG = "lease_too_long"
    """Beyond what the guard remembers tombstones for."""
    MALFORMED_LEASE = "malformed_lease"
    LEASE_REQUIRED = "lease_required"
    TOKEN_MISSING = "token_missing"  # noqa: S105  (a reason, not a secret)
    TOKEN_WRONG = "token_wrong"  # noqa: S105
    GUARD_UNAVAILABLE = "guard_unavailable"
    """The guard can't record the attempt, so it can't promise to stop it."""
    STILL_RUNNING = "still_running"
    """Only on cancel calls: the app was cancelled and has not ended. No proof of anything."""


REFUSAL_STATUS: Final[dict[GuardRefusal, int]] = {
    GuardRefusal.WRONG_BOOT_ID: 409,
    GuardRefusal.LEASE_EXPIRED: 409,
    GuardRefusal.REVOKED: 409,
    GuardRefusal.TOMBSTONED: 409,
    GuardRefusal.DUPLICATE_ATTEMPT: 409,
    GuardRefusal.LEASE_TOO_LONG: 409,
    GuardRefusal.MALFORMED_LEASE: 400,
    GuardRefusal.LEASE_REQUIRED: 403,
    GuardRefusal.TOKEN_MISSING: 401,
    GuardRefusal.TOKEN_WRONG: 403,
    GuardRefusal.GUARD_UNAVAILABLE: 503,
    GuardRefusal.STILL_RUNNING: 503,
}


class StopState(StrEnum):
    """What a cancel's acknowledgement proves about the attempt."""

    STOPPED = "stopped"
    NEVER_STARTED = "never_started"
    """Unknown here; a tombstone bars it from arriving later."""
    FINISHED = "finished"


class AttemptState(StrEnum):
    """What a heartbeat's answer says of each attempt that it named."""

    RUNNING = "running"
    STOPPED = "stopped"
    FINISHED = "finished"
    NEVER_STARTED = "never_started"
    UNKNOWN = "unknown"
    """Not arrived yet, or forgotten after its lease's longest possible end."""


class Stamp(TypedDict):
    """On every answer of the guard."""

    boot_id: str
    now_ms: int


class LeaseEntry(TypedDict):
    attempt_id: str
    valid_until_ms: int


class HeartbeatRequest(TypedDict):
    processor_id: str
    leases: list[LeaseEntry]


class AttemptEntry(TypedDict):
    attempt_id: str
    state: str
    """An ``AttemptState``."""
    published_chunks: int
    """Handed to the server so far; of an attempt in a sibling process as of at most a second ago."""


class HeartbeatAnswer(Stamp):
    attempts: list[AttemptEntry]


class CancelAnswer(Stamp):
    """Status 200, sent only once the attempt can't publish any more. Any other status proves nothing."""

    state: str
    """A ``StopState``."""
    published_chunks: int


class FactsAnswer(Stamp):
    facts: dict[str, str | int | list[str]]
    """What the server's own command line says of its model, by the names of ``decision.identity.Facts``; only what it says."""
