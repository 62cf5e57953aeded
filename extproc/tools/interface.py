"""What a ledger offers. One contract, every store."""

from dataclasses import dataclass
from typing import Protocol

from extproc.decision.tool_call import CallAction, CallState


class LedgerUnavailable(Exception):  # noqa: N818  (a state of the outside, not a fault of the caller)
    """The ledger can't record now. A call that can't be recorded is not sent to its tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call as it came. ``call_key`` is how people name it; times in milliseconds."""

    key_hash: bytes
    call_key: str
    tool: str
    request_id: str | None
    fingerprint: bytes
    keep_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """A tool's whole answer, as it is given to repeats."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What to do with a call. With ``RUN`` it is recorded as running, and its end must be recorded, whatever happens."""

    action: CallAction
    answer: ToolAnswer | None = None
    why: str | None = None
    """Why the outcome is unknown, or why there is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCall:
    """One row of the ledger, for people."""

    call_key: str
    tool: str
    request_id: str | None
    state: CallState
    started_at_ms: int
    ended_at_ms: int | None
    why: str | None
    status: int | None
    answer_bytes: int | None


class ToolLedger(Protocol):
    """Every method raises LedgerUnavailable."""

    async def begin(self, call: ToolCall) -> Begun:
        """Record a call, or learn what became of the one with its key. Of any number at once one is RUN."""

    async def carried_out(self, call: ToolCall, answer: ToolAnswer | None, why: str) -> None:
        """The tool has carried the call out; ``answer`` is None where it can't be kept. Durable when this returns."""

    async def not_carried_out(self, call: ToolCall) -> None:
        """The tool has never acted on the call: its key is free again."""

    async def lost(self, call: ToolCall, why: str) -> None:
        """Nobody knows whether the tool acted."""

    async def calls_of(self, request_id: str) -> int:
        """How many calls are on record for a logical request; the gate before a repeat asks this (R12)."""
