"""What a response's head says about its attempt: the causes of DESIGN section 4 read from real evidence.

Envoy's egress listener adds its response flags to the answers that it makes up itself (FACTS C13), so a replica's 503 and
Envoy's are never mistaken for each other. Only the flags named here occur on a listener without retries and timeouts.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.contract import headers
from extproc.contract.guard import GuardRefusal
from extproc.decision.causes import Cause, Failure
from extproc.decision.lease import proof_by_refusal
from extproc.replicas.attempt_client import ResponseHead

ENVOY_FLAGS: Final[dict[str, Cause]] = {
    "UF": Cause.NEVER_STARTED,  # upstream connection failure
    "UH": Cause.NEVER_STARTED,  # no healthy upstream host
    "NC": Cause.NEVER_STARTED,  # no cluster
    "NR": Cause.NEVER_STARTED,  # no route
    "UO": Cause.OVERLOAD,  # circuit breaker overflow
    "UC": Cause.REPLICA_GONE,  # upstream connection termination
    "UR": Cause.REPLICA_GONE,  # upstream remote reset
    "LR": Cause.REPLICA_GONE,  # connection local reset
    "UPE": Cause.REPLICA_GONE,  # upstream protocol error
}
"""A flag that is not here is uncertain: the request may have reached a replica."""

RETRY_AFTER_S_MAX: Final = 3600
_DELAY_SECONDS: Final = re.compile(r"[0-9]{1,18}")
"""Longer ones mean nothing, and Python refuses to read the longest (sys.set_int_max_str_digits)."""

MENDED_BY: Final[dict[str, str]] = {
    GuardRefusal.LEASE_TOO_LONG: ", since the policy's lease.ttl_ms is above the guard's DELTAFENCE_LEASE_TTL_MAX_MS",
    GuardRefusal.LEASE_REQUIRED: ", and the gateway has none for it: --token-file must hold the guard's DELTAFENCE_TOKEN",
}
"""Refusals that only an operator can end, and how."""


class HeadVerdict(StrEnum):
    """What to do with a response whose head is here."""

    ANSWER = "answer"
    """The body is the answer, or the beginning of one. Says nothing about delivery (R2)."""
    REQUEST_ERROR = "request_error"
    """The replica refuses the request itself; the client gets that unchanged."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReading:
    """The verdict, and the failure where it is one."""

    verdict: HeadVerdict
    failure: Failure | None = None


def read_head(head: ResponseHead) -> HeadReading:
    """What this head means for its attempt."""
    flags = head.get(headers.EGRESS_FLAGS)
    if flags is not None:
        return _failed(_cause_of_flags(flags), _envoy_evidence(head, flags))
    refusal = head.get(headers.REFUSAL)
    if refusal is not None:
        return _failed(_cause_of_refusal(refusal), f"the guard refused the attempt: {refusal}{MENDED_BY.get(refusal, '')}")
    match head.status:
        case 429 | 503:
            return HeadReading(
                verdict=HeadVerdict.FAILED,
                failure=Failure(
                    cause=Cause.OVERLOAD,
                    evidence=f"the replica answered {head.status}",
                    status=head.status,
                    retry_after_s=_retry_after(head),
                ),
            )
        case status if status >= 500:
            return _failed(Cause.ENGINE_ERROR, f"the replica answered {status}")
        case status if status >= 300:
            return HeadReading(verdict=HeadVerdict.REQUEST_ERROR)
        case _:
            return HeadReading(verdict=HeadVerdict.ANSWER)


def _cause_of_refusal(refusal: str) -> Cause:
    """A refused attempt never ran, but for a second copy of one, whose first may be running. An unknown word proves nothing."""
    try:
        proof = proof_by_refusal(GuardRefusal(refusal))
    except ValueError:
        proof = None
    return Cause.UNCERTAIN if proof is None else Cause.NEVER_STARTED


def _failed(cause: Cause, evidence: str) -> HeadReading:
    return HeadReading(verdict=HeadVerdict.FAILED, failure=Failure(cause=cause, evidence=evidence))


def _cause_of_flags(flags: str) -> Cause:
    causes = {ENVOY_FLAGS.get(flag, Cause.UNCERTAIN) for flag in flags.split(",")}
    return causes.pop() if len(causes) == 1 else Cause.UNCERTAIN


def _envoy_evidence(head: ResponseHead, flags: str) -> str:
    return f"Envoy answered {head.status} with flags {flags} ({head.get(headers.EGRESS_DETAILS) or 'no details'})"


def _retry_after(head: ResponseHead) -> int | None:
    """Seconds from Retry-After; its date form is left out, since no clock is compared between machines."""
    value = (head.get("retry-after") or "").strip()
    return min(int(value), RETRY_AFTER_S_MAX) if _DELAY_SECONDS.fullmatch(value) else None
