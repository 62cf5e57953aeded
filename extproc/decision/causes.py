"""Why an attempt ended badly, and what each cause means before and after the first delta (R5, DESIGN section 4).

The table is the whole policy of causes: adding one means adding a row, and a cause without a row cannot exist.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.contract.errors import ErrorCode


class Cause(StrEnum):
    """What ended an attempt, named by its evidence rather than by a guess."""

    NEVER_STARTED = "never_started"
    """Connect failure (UF), no host (UH), refusal by the guard: the replica never had the request."""
    REPLICA_GONE = "replica_gone"
    """Connection closed or reset by the peer before a finish, boot id changed, pod deleted."""
    UNCERTAIN = "uncertain"
    """Heartbeats unanswered, no bytes, no close: the replica may be decoding on."""
    ENGINE_ERROR = "engine_error"
    """In-band error, finish_reason abort, 5xx, or an end without a finish: the attempt ended by itself."""
    HUNG = "replica_hung"
    """Verdict ``hung`` for the replica, with its evidence."""
    OVERLOAD = "overload"
    """429 or 503 from the replica: an explicit refusal. Slowness never becomes this."""
    RESPONSE_TOO_LARGE = "response_too_large"
    """The answer outgrew what the processor may hold for one request."""


class Fencing(StrEnum):
    """What must be proved before a repeat, besides the gates."""

    NOT_NEEDED = "not_needed"
    """The attempt never ran or has said that it ended."""
    CONFIRM = "confirm"
    """The evidence is a lost connection: a short cancel call confirms it, silence makes it uncertain."""
    REVOKE_AND_WAIT = "revoke_and_wait"
    """The attempt may be alive: revoke its lease, cancel, wait for the acknowledgement or the lease's end (R7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """One row: what a repeat needs before the first delta, and what the client is told when there is none."""

    fencing: Fencing
    repeatable: bool
    refused_code: ErrorCode
    """The client's error where no repeat was tried because the attempts are used up."""
    doubts_replica: bool
    """Whether other requests had better go elsewhere until health has looked at the replica: it could not be reached, or it was
    lost. What a replica says of one request says nothing of it, and a hung one is health's own finding."""


CAUSES: Final[dict[Cause, CauseRow]] = {
    Cause.NEVER_STARTED: CauseRow(
        fencing=Fencing.NOT_NEEDED, repeatable=True, refused_code=ErrorCode.ATTEMPTS_EXHAUSTED, doubts_replica=True
    ),
    Cause.REPLICA_GONE: CauseRow(
        fencing=Fencing.CONFIRM, repeatable=True, refused_code=ErrorCode.ATTEMPTS_EXHAUSTED, doubts_replica=True
    ),
    Cause.UNCERTAIN: CauseRow(
        fencing=Fencing.REVOKE_AND_WAIT, repeatable=True, refused_code=ErrorCode.ATTEMPTS_EXHAUSTED, doubts_replica=True
    ),
    Cause.ENGINE_ERROR: CauseRow(
        fencing=Fencing.NOT_NEEDED, repeatable=True, refused_code=ErrorCode.ATTEMPTS_EXHAUSTED, doubts_replica=False
    ),
    Cause.HUNG: CauseRow(
        fencing=Fencing.REVOKE_AND_WAIT, repeatable=True, refused_code=ErrorCode.ATTEMPTS_EXHAUSTED, doubts_replica=False
    ),
    Cause.OVERLOAD: CauseRow(
        fencing=Fencing.NOT_NEEDED, repeatable=True, refused_code=ErrorCode.OVERLOADED, doubts_replica=False
    ),
    # A second copy of an answer that is too large would be too large again.
    Cause.RESPONSE_TOO_LARGE: CauseRow(
        fencing=Fencing.NOT_NEEDED, repeatable=False, refused_code=ErrorCode.RESPONSE_TOO_LARGE, doubts_replica=False
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One attempt's bad end with its evidence in words, as the journal records it (R4)."""

    cause: Cause
    evidence: str
    upstream_error: dict[str, str | int | None] | None = None
    status: int | None = None
    """The replica's own refusal status (429 or 503), for the same hand-over as ``retry_after_s``."""
    retry_after_s: int | None = None
    """From the replica's own refusal; handed on where no other replica has room."""
