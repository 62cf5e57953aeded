"""Requests as the journal is told of them, for every subscriber's tests."""

from typing import Any

from extproc.journal.records import EventKind, JournalEvent

REQUEST = "req_01JTEST"
FIRST, SECOND = "att_01JA", "att_01JB"
HERE, THERE = "10.0.0.1:8000", "10.0.0.2:8000"
BEGIN_MS = 1_700_000_000_000


def happened(
    kind: EventKind,
    after_ms: int = 0,
    attempt: str | None = None,
    replica: str | None = None,
    request: str = REQUEST,
    **detail: Any,
) -> JournalEvent:
    """An event ``after_ms`` after the admission."""
    return JournalEvent(
        request_id=request, kind=kind, at_ms=BEGIN_MS + after_ms, attempt_id=attempt, replica=replica, detail=detail
    )


def admitted(request: str = REQUEST, **detail: Any) -> JournalEvent:
    return happened(
        EventKind.ADMITTED,
        request=request,
        **{"api": "chat", "model": "llama", "route": "chat", "stream": True, **detail},
    )


REPEATED = (
    admitted(),
    happened(EventKind.ATTEMPT_STARTED, 1, FIRST, HERE, number=1, retry_budget=9.0),
    happened(EventKind.RESPONSE_STARTED, 5, FIRST, HERE, status=200),
    happened(EventKind.ATTEMPT_FAILED, 100, FIRST, HERE, cause="replica_gone", evidence="closed by the peer", fencing="confirm"),
    happened(EventKind.FENCED, 350, FIRST, HERE, proof="connection_refused"),
    happened(EventKind.ATTEMPT_STARTED, 351, SECOND, THERE, number=2, retry_budget=8.0),
    happened(EventKind.FIRST_DELTA_SENT, 500, SECOND, THERE),
    happened(EventKind.ENDED, 2_000, outcome="completed", reason="finished", delivered_output_tokens=37),
)
"""Failed before the first delta, fenced, repeated, completed."""

INTERRUPTED = (
    admitted(),
    happened(EventKind.ATTEMPT_STARTED, 1, FIRST, HERE, number=1, retry_budget=9.0),
    happened(EventKind.FIRST_DELTA_SENT, 200, FIRST, HERE),
    happened(EventKind.CANCEL_SENT, 900, FIRST, HERE, why="connection closed by the peer in the response body"),
    happened(
        EventKind.ENDED,
        901,
        outcome="interrupted",
        reason="replica_gone",
        error_code="upstream_decode_interrupted",
        delivered_output_tokens=12,
    ),
)
"""Broke off after the first delta."""

REFUSED = (
    admitted(),
    happened(EventKind.ATTEMPT_STARTED, 1, FIRST, HERE, number=1, retry_budget=0.0),
    happened(EventKind.ATTEMPT_FAILED, 50, FIRST, HERE, cause="uncertain", evidence="silent", fencing="revoke_and_wait"),
    happened(EventKind.FENCE_GIVEN_UP, 60, FIRST, HERE),
    happened(
        EventKind.REPEAT_REFUSED,
        61,
        gate="source_attempt_fenced",
        detail="attempt 1 may still be running",
        attempts=1,
        cause="uncertain",
        evidence="silent",
    ),
    happened(
        EventKind.ENDED,
        62,
        outcome="failed",
        reason="uncertain",
        error_code="source_attempt_not_fenced",
        delivered_output_tokens=0,
    ),
)
"""Could not be fenced, so not repeated."""
