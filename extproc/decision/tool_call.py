"""One external action, carried out once (R11, R12): whose it is, what a repeated call is told, what an answer proves.

1. A call's key comes from the logical request, never from an attempt: ``req_01J...:call_07``. So the call of a second attempt, or
   of a second run under one Idempotency-Key, is the same call.
2. A call is recorded before it is sent to the tool, and its answer before the caller gets the last of it.
3. A call whose outcome is not known is never sent again. The tool's own status answer or an operator settles it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.contract import headers as names
from extproc.contract.errors import ErrorCode
from extproc.decision.idempotency import InvalidKey, parse_key

_REQUEST_KEY: Final = re.compile(r"(req_[0-9A-HJKMNP-TV-Z]{26}):(.+)")
"""A request id with its ULID, and the call's id within the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRoute:
    """What the operator said about a route that leads to a tool. Times in milliseconds, sizes in bytes."""

    name: str
    """Names the tool in the ledger and the egress route that leads to it."""
    require_key: bool = False
    """Refuse unsafe calls without a key, instead of handing them on unprotected."""
    caller_header: str = "authorization"
    """Tells callers apart, so that their own keys never meet; keys that name a request need no such help."""
    wait_ms: int = 10_000
    """How long a call waits for the first one with its key before it gets 409."""
    deadline_ms: int = 600_000
    """How long a tool may take; after it the outcome is unknown."""
    answer_bytes_max: int = 1 << 20
    """Longest answer that is kept for repeats."""
    keep_ms: int = 24 * 3_600_000
    """How long an answer is kept."""
    status_path: str | None = None
    """Where the tool tells whether it carried a call out, with ``{key}`` in it: 200 with the answer, or 404 for never."""

    def __post_init__(self) -> None:
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", self.name), self.name
        assert 0 <= self.wait_ms <= self.deadline_ms
        assert self.answer_bytes_max > 0
        assert self.status_path is None or (self.status_path.startswith("/") and "{key}" in self.status_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolKey:
    """A call's name. ``request_id``: the logical request that it belongs to, where it says so."""

    key: str
    request_id: str | None

    @property
    def names_request(self) -> bool:
        """Whether the key itself holds the request id: 80 random bits, which no other caller has."""
        return self.request_id is not None and self.key.startswith(f"{self.request_id}:")


class NoKey(Exception):  # noqa: N818  (an answer, not a fault)
    """The call names its request but not itself, so a repeat could not be told from a second action."""


def read_key(headers: Mapping[str, Sequence[str]], embedded: str | None = None) -> ToolKey | None:
    """The key of a call, from ``Idempotency-Key``, or ``x-deltafence-request-id`` with ``x-deltafence-tool-call``, or from inside
    an MCP call (``embedded``). None for a call that wants no protection. Raises InvalidKey, NoKey.
    """
    requests, calls = headers.get(names.REQUEST_ID, ()), headers.get(names.TOOL_CALL, ())
    given = [*headers.get(names.IDEMPOTENCY_KEY, ()), *([embedded] if embedded is not None else [])]
    key = parse_key(given)
    if key is None and calls and requests:
        if len(calls) > 1 or len(requests) > 1:
            raise InvalidKey(f"more than one {names.TOOL_CALL} or {names.REQUEST_ID}")
        key = parse_key([f"{requests[0]}:{calls[0]}"])
    if key is None:
        if requests:
            raise NoKey
        return None
    bound = _REQUEST_KEY.fullmatch(key)
    return ToolKey(key=key, request_id=bound[1] if bound is not None else next(iter(requests), None))


class CallState(StrEnum):
    """What the ledger knows of a call. A call that was not carried out is not in the ledger."""

    RUNNING = "running"
    CARRIED_OUT = "carried_out"
    UNKNOWN = "unknown"


class CallAction(StrEnum):
    """What to do with a call."""

    RUN = "run"
    REPLAY = "replay"
    WAIT = "wait"
    REFUSE_REUSED = "refuse_reused"
    REFUSE_UNKNOWN = "refuse_unknown"
    REFUSE_WITHOUT_ANSWER = "refuse_without_answer"


REFUSALS: Final = {
    CallAction.WAIT: ErrorCode.REQUEST_IN_PROGRESS,
    CallAction.REFUSE_REUSED: ErrorCode.IDEMPOTENCY_KEY_REUSED,
    CallAction.REFUSE_UNKNOWN: ErrorCode.OUTCOME_UNKNOWN,
    CallAction.REFUSE_WITHOUT_ANSWER: ErrorCode.REQUEST_COMPLETED,
}
"""What the caller is told; ``WAIT`` once the wait is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """The call that a key already names, as the ledger has it."""

    same_call: bool
    state: CallState
    answer_stored: bool


def decide_call(recorded: RecordedCall | None) -> CallAction:
    """What a call with a key is; None where the key is new."""
    if recorded is None:
        return CallAction.RUN
    if not recorded.same_call:
        return CallAction.REFUSE_REUSED
    if recorded.state is CallState.RUNNING:
        return CallAction.WAIT
    if recorded.state is CallState.UNKNOWN:
        return CallAction.REFUSE_UNKNOWN
    return CallAction.REPLAY if recorded.answer_stored else CallAction.REFUSE_WITHOUT_ANSWER


class Proof(StrEnum):
    """What an answer proves about the action."""

    CARRIED_OUT = "carried_out"
    NOT_CARRIED_OUT = "not_carried_out"
    UNKNOWN = "unknown"


REFUSED_STATUSES: Final = frozenset({401, 403, 407, 425, 429})
"""Refused before the action, for who called or when: the same call may succeed later, so its key is free again."""
GATEWAY_STATUSES: Final = frozenset({502, 503, 504})
"""The tool, or something before it, lost sight of the action."""


def read_answer(status: int, said: str | None) -> Proof:
    """What a tool's whole answer proves. ``said``: its ``x-deltafence-outcome`` header, which has the last word.

    Every other status is the action's result, an error included, and repeats get it again, as the draft asks.
    """
    if said in set(Proof):
        return Proof(said)
    if status in REFUSED_STATUSES:
        return Proof.NOT_CARRIED_OUT
    return Proof.UNKNOWN if status in GATEWAY_STATUSES else Proof.CARRIED_OUT


SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""RFC 9110 section 9.2.1: no action is asked for, so there is nothing to carry out twice."""
