"""Wire forms between a processor and the guard in a replica's pod (DESIGN section 5).

Times are milliseconds on the **worker's** monotonic clock; no clock is ever compared between machines.
"""

from enum import StrEnum
from typing import Final, TypedDict

PATH_PREFIX: Final = "/_deltafence/"
HEARTBEAT_PATH: Final = "/_deltafence/v1/heartbeat"
CANCEL_PATH_FORMAT: Final = "/_deltafence/v1/attempts/{attempt_id}/cancel"


class GuardRefusal(StrEnum):
    """Why a guard answered an attempt with 409; the JSON body is ``{"refusal": ..., "boot_id": ..., "now_ms": ...}``."""

    WRONG_BOOT_ID = "wrong_boot_id"
    LEASE_EXPIRED = "lease_expired"
    TOMBSTONED = "tombstoned"
    DUPLICATE_ATTEMPT = "duplicate_attempt"


class StopState(StrEnum):
    """What a cancel's acknowledgement proves about the attempt."""

    STOPPED = "stopped"
    NEVER_STARTED = "never_started"
    FINISHED = "finished"


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
    published_chunks: int


class HeartbeatAnswer(Stamp):
    attempts: list[AttemptEntry]


class CancelAnswer(Stamp):
    state: str
    published_chunks: int
