"""Faults: where in a request, what happens there, and which requests it is for (R17).

A fault belongs to requests in their order of arrival: ``times=1`` is for the first matching request, however that one ends.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final


class Where(StrEnum):
    """A point between a request's arrival and its last byte."""

    BEFORE_HEADERS = "before_headers"
    AFTER_HEADERS = "after_headers"
    """200 is sent and the request has its slot; prefill has not begun. Not streaming: headers sent, answer complete."""
    IN_PREFILL = "in_prefill"
    """The request has its slot and half of its prefill is done."""
    AFTER_TOOL = "after_tool"
    """The tool was called (``--tool-url``), no token is computed yet."""
    AFTER_ROLE = "after_role"
    """The first token is computed and what precedes its text is sent (the role chunk, ``message_start``)."""
    AFTER_TOKEN_COMPUTED = "after_token_computed"  # noqa: S105
    """Token number ``deltas`` (from 0) is computed, its event is not sent."""
    INSIDE_EVENT = "inside_event"
    """Half of the bytes of delta number ``deltas`` (from 0) are sent."""
    AFTER_FIRST_DELTA = "after_first_delta"
    MID_DECODE = "mid_decode"
    """``deltas`` deltas are sent. Not streaming: as many tokens are computed."""
    BEFORE_FINISH = "before_finish"
    """The last delta before the finish is sent."""
    AFTER_FINISH = "after_finish"
    """The finish (and the usage chunk) is sent, ``[DONE]`` is not."""
    AFTER_DONE = "after_done"
    """Everything is sent but the end of the body."""
    MID_BODY = "mid_body"
    """Not streaming: half of the JSON body is sent."""


class What(StrEnum):
    """What happens there."""

    KILL = "kill"
    """SIGKILL of the own process."""
    EXIT = "exit"
    """The process ends at once with ``status`` (0 unless given)."""
    FREEZE = "freeze"
    """SIGSTOP of the own process: connections stay open, nothing answers."""
    ENGINE_DEATH = "engine_death"
    """The engine dies: every stream gets the in-band error, ``/health`` 503; ``delay_ms`` later (500 unless given) the process
    exits with status 0 (HL-11)."""
    HANG = "hang"
    """The engine stops all progress, for every request, until ``/sim/unhang``; ``/health`` stays 200 (HL-01)."""
    RESET = "reset"
    """RST."""
    CLOSE = "close"
    """FIN without the end of the chunked body."""
    MALFORMED = "malformed"
    """Bytes that are not HTTP, then FIN."""
    EOF = "eof"
    """A clean end of the body, too early."""
    DONE = "done"
    """``[DONE]`` (``message_stop``; nothing for responses, which has no such mark) and a clean end, without a finish."""
    ERROR_EVENT = "error_event"
    """vLLM's in-band error; before the headers of an answer that is not streamed: a 500."""
    ABORT = "abort"
    """The finish reason ``abort``, then the ordinary end."""
    STALL = "stall"
    """Nothing more is sent; connection and slot stay until the client leaves."""
    HOLD = "hold"
    """Nothing more is sent until ``/sim/release``; then the request goes on, unless its engine has ended."""
    SLOW = "slow"
    """Decode steps take ``factor`` times as long from here on."""
    GARBAGE = "garbage"
    """An event (or body) that is not JSON, then a clean end."""
    HTTP_ERROR = "http_error"
    """An error answer with ``status``; with Retry-After where ``retry_after_s`` is given."""


NOT_STREAMING: Final = frozenset(
    {
        Where.BEFORE_HEADERS,
        Where.IN_PREFILL,
        Where.AFTER_TOOL,
        Where.AFTER_TOKEN_COMPUTED,
        Where.MID_DECODE,
        Where.AFTER_HEADERS,
        Where.MID_BODY,
    }
)
"""The places of an answer that is not streamed, in their order: its headers go out when it is complete."""
STREAMING: Final = frozenset(Where) - {Where.MID_BODY}
BREAKING: Final = frozenset(
    {
        What.KILL,
        What.EXIT,
        What.FREEZE,
        What.RESET,
        What.CLOSE,
        What.MALFORMED,
        What.EOF,
        What.STALL,
        What.HOLD,
        What.GARBAGE,
    }
)
"""What makes sense in the middle of an event: nothing well-formed can follow it."""
DEFAULT_DELTAS: Final = {Where.MID_DECODE: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault; raises ValueError for a pair that can't happen."""

    where: Where
    what: What
    deltas: int | None = None
    """For the places that count deltas; 3 for mid_decode, else 0."""
    times: int | None = None
    """For this many matching requests; None: for all."""
    nth: int | None = None
    """For the n-th (from 1) of all requests with this ``header`` at all replicas that share a ``--claims`` directory: with a
    header that one logical request alone has, the request's n-th attempt."""
    body_contains: str = ""
    """Only for requests whose body contains this."""
    header: str = ""
    """Only for requests with this header, ``name=value``, or ``name`` for any value."""
    delay_ms: float = 0.0
    """Waited before the act; for engine_death: after it."""
    status: int | None = None
    retry_after_s: int | None = None
    factor: float = 10.0
    message: str = ""
    """The error's text, where the act has one."""

    def __post_init__(self) -> None:
        if self.what is What.HTTP_ERROR and self.where is not Where.BEFORE_HEADERS:
            raise ValueError(f"http_error is possible before_headers only, not {self.where}")
        if self.where in (Where.INSIDE_EVENT, Where.MID_BODY) and self.what not in BREAKING:
            raise ValueError(f"{self.what} can't follow half of an event ({self.where})")
        if self.nth is not None and not self.header:
            raise ValueError("nth counts the requests with a header; none is given")
        if self.what is What.ABORT and self.where in (Where.AFTER_FINISH, Where.AFTER_DONE):
            raise ValueError(f"abort is a finish; it can't come {self.where}")

    @property
    def label(self) -> str:
        return f"{self.where}:{self.what}"

    def is_at(self, where: Where, deltas: int) -> bool:
        counted = self.deltas if self.deltas is not None else DEFAULT_DELTAS.get(where, 0)
        counts = where in (Where.MID_DECODE, Where.INSIDE_EVENT, Where.AFTER_TOKEN_COMPUTED)
        return self.where is where and (not counts or counted == deltas)

    def is_for(self, *, stream: bool, body: bytes, headers: Mapping[str, str]) -> bool:
        """Whether a request can reach this fault's place and bears its marks.

        An answer that is not streamed can be ended in no other way than by a break once its headers are sent.
        """
        name, _, value = self.header.partition("=")
        return (
            self.where in (STREAMING if stream else NOT_STREAMING)
            and (stream or self.where not in (Where.AFTER_HEADERS, Where.MID_BODY) or self.what in BREAKING)
            and self.body_contains.encode() in body
            and (not name or (name.lower() in headers and value in ("", headers[name.lower()])))
        )


_READERS: Final[dict[str, type]] = {
    "deltas": int,
    "times": int,
    "nth": int,
    "status": int,
    "retry_after_s": int,
    "delay_ms": float,
    "factor": float,
}


def parse_fault(text: str) -> Fault:
    """``WHERE:WHAT[,key=value...]``; raises ValueError."""
    pair, *options = text.split(",")
    where, _, what = pair.partition(":")
    return decode_fault({"where": where, "what": what, **dict(option.split("=", 1) for option in options)})


def decode_fault(document: Mapping[str, Any]) -> Fault:
    """A fault from a JSON object with the dataclass's field names; raises ValueError, also for an unknown key."""
    unknown = set(document) - {option.name for option in fields(Fault)}
    if unknown:
        raise ValueError(f"unknown key in a fault: {', '.join(sorted(unknown))}")
    values = {name: _READERS.get(name, str)(value) for name, value in document.items() if value is not None}
    return Fault(**(values | {"where": Where(values.get("where", "")), "what": What(values.get("what", ""))}))


def encode_fault(fault: Fault) -> dict[str, Any]:
    """The JSON object that ``decode_fault`` reads; fields at their default are left out."""
    return {option.name: value for option in fields(fault) if (value := getattr(fault, option.name)) != option.default}


def format_fault(fault: Fault) -> str:
    """The text that ``parse_fault`` reads."""
    options = [f"{name}={value}" for name, value in encode_fault(fault).items() if name not in ("where", "what")]
    return ",".join([fault.label, *options])


@dataclass(slots=True)
class _Armed:
    fault: Fault
    left: int | None


@dataclass(slots=True)
class FaultBook:
    """The faults that are armed now. ``claims``: the directory in which replicas count together; needed for ``nth``."""

    claims: Path | None = None
    _armed: list[_Armed] = field(default_factory=list)

    def arm(self, faults: Iterable[Fault]) -> None:
        """Replace all faults. Raises ValueError for an ``nth`` without a directory to count in."""
        faults = tuple(faults)
        if self.claims is None and any(fault.nth is not None for fault in faults):
            raise ValueError("nth needs --claims, a directory that the replicas share")
        self._armed = [_Armed(fault, fault.times) for fault in faults]

    def claim(self, *, stream: bool, body: bytes, headers: Mapping[str, str]) -> tuple[Fault, ...]:
        """The faults of a request that has just arrived; each counts as used up by it."""
        claimed = [
            armed for armed in self._armed if armed.left != 0 and armed.fault.is_for(stream=stream, body=body, headers=headers)
        ]
        counted = {armed.fault.header for armed in claimed if armed.fault.nth is not None}
        numbers = {header: self._count(header) for header in counted}
        claimed = [armed for armed in claimed if armed.fault.nth in (None, numbers.get(armed.fault.header))]
        for armed in claimed:
            armed.left = None if armed.left is None else armed.left - 1
        return tuple(armed.fault for armed in claimed)

    def _count(self, header: str) -> int:
        """Which of the requests with this header, at all replicas together, the one that has just arrived is."""
        assert self.claims is not None, "arm() refuses nth without claims"
        name = hashlib.sha256(header.encode()).hexdigest()
        for number in itertools.count(1):
            try:
                os.close(os.open(self.claims / f"{name}.{number}", os.O_CREAT | os.O_EXCL))  # one of all processes succeeds
            except FileExistsError:
                continue
            return number
        raise AssertionError("counting has no end")

    def listing(self) -> list[dict[str, Any]]:
        """Each fault as a JSON object, with the number of requests that it is still ``left`` for (null: all)."""
        return [encode_fault(armed.fault) | {"left": armed.left} for armed in self._armed]
