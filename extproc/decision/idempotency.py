"""Idempotency-Key, after draft-ietf-httpapi-idempotency-key-header-07: syntax, scope, fingerprint, and what a repeat is told.

A key binds repeats to one logical request (R11). It gives no right to a second generation: after a partial delivery the repeat
is told so. A request that delivered nothing frees its key, and the repeat runs under the same request id, so that a tool call of
the first run is found again by the second (R12).
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.contract.errors import ErrorCode
from extproc.decision.effects import Outcome

KEY_CHARACTERS_MAX: Final = 255
"""Stripe's limit; a UUID needs 36."""

_QUOTED: Final = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
"""sf-string of RFC 8941 section 3.3.3, which the draft demands."""
_BARE: Final = re.compile(r'[^\s",;\\\x00-\x1f\x7f-\U0010ffff]+')
"""What most clients send today: the same key without quotes."""


class InvalidKey(ValueError):  # noqa: N818  (an answer, not a fault)
    """The header is no key; the message tells the client what is wrong with it, without repeating it."""


class ClaimOutcome(StrEnum):
    """What became of a claim to a key."""

    NEW = "new"
    """The caller runs the request."""
    IN_PROGRESS = "in_progress"
    PARTIAL = "partial"
    """Output was delivered and the answer never became whole."""
    COMPLETED = "completed"
    KEY_REUSED = "key_reused"
    """The key belongs to another request."""


REFUSALS: Final = {
    ClaimOutcome.IN_PROGRESS: ErrorCode.REQUEST_IN_PROGRESS,
    ClaimOutcome.PARTIAL: ErrorCode.PARTIAL_OUTPUT_EXISTS,
    ClaimOutcome.COMPLETED: ErrorCode.REQUEST_COMPLETED,
    ClaimOutcome.KEY_REUSED: ErrorCode.IDEMPOTENCY_KEY_REUSED,
}
"""What the client is told; ``COMPLETED`` only where no stored answer can be given instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRequest:
    """The request that a key already names. ``running``: it has no outcome, and its processor lives.

    A request whose processor is gone was ended by whoever asks (journal.records.lost_event), so it is never "perhaps running".
    """

    same_request: bool
    running: bool
    outcome: str | None
    first_delta_sent: bool


def decide_claim(bound: BoundRequest) -> ClaimOutcome:
    """What the repeat is, given what its key is bound to."""
    if not bound.same_request:
        return ClaimOutcome.KEY_REUSED
    if bound.running:
        return ClaimOutcome.IN_PROGRESS
    if bound.outcome == Outcome.COMPLETED:
        return ClaimOutcome.COMPLETED
    if bound.first_delta_sent:
        return ClaimOutcome.PARTIAL
    return ClaimOutcome.NEW


def parse_key(values: Sequence[str]) -> str | None:
    """The key that a request's ``Idempotency-Key`` lines hold, None where there is none. Raises InvalidKey."""
    if not values:
        return None
    if len(values) > 1:
        raise InvalidKey("more than one Idempotency-Key")
    value = values[0].strip(" \t")
    quoted = _QUOTED.fullmatch(value)
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted is not None else value
    if quoted is None and _BARE.fullmatch(value) is None:
        raise InvalidKey('an Idempotency-Key is a quoted string of visible ASCII, as in "8e03978e-40d5-43e8-bc93-6894a57f9324"')
    if not key:
        raise InvalidKey("an empty Idempotency-Key")
    if len(key) > KEY_CHARACTERS_MAX:
        raise InvalidKey(f"an Idempotency-Key longer than {KEY_CHARACTERS_MAX} characters")
    return key


def hash_key(secret: bytes, caller: str, key: str) -> bytes:
    """What is stored in place of a key: 32 bytes that name the key within its caller's own keys and tell nothing about either.

    ``caller`` is the value of the header that tells callers apart, "" where there is none; ``secret`` is the gateways' own.
    """
    return hmac.digest(secret, _join(caller.encode("utf-8", "surrogatepass"), key.encode()), "sha256")


def fingerprint(method: str, path: str, body: bytes) -> bytes:
    """32 bytes that are equal for equal requests: the draft's "checksum of the entire request payload", and where it went."""
    return hashlib.sha256(_join(method.encode(), path.encode("utf-8", "surrogatepass"), body)).digest()


def _join(*parts: bytes) -> bytes:
    """Each part behind its length, so that no two lists of parts are the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
