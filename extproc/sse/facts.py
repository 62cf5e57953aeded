"""What an event says, in words that no dialect owns, and the in-band errors that all dialects share (CASES area 3)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.contract.text import bounded

Payload = dict[str, object]
"""An event's data: a JSON object whose fields may be of any type whatever."""

ERROR_TEXT_MAX: Final = 512
"""Longest text kept of an error; vLLM has put whole validation reports of many KiB there (CASES ERR-07)."""
WHOLE_NUMBER_MAX: Final = 2**53 - 1
"""What every JSON reader takes exactly (RFC 7493 section 2.2), and no encoder or database of ours refuses. A replica's number
beyond it is nothing that we could hand on."""


class Ending(StrEnum):
    """How an attempt's answer ended."""

    FINISHED = "finished"
    """The answer is whole."""
    ERROR = "error"
    """The replica reported an error inside the stream."""
    ABORTED = "aborted"
    """The replica dropped the request (vLLM on SIGTERM: CASES K8-04)."""
    DONE_WITHOUT_FINISH = "done_without_finish"
    """The stream's own end mark came and no finish before it: vLLM writes ``[DONE]`` after a dead engine's error too."""
    MALFORMED = "malformed"
    """A payload that isn't JSON, before the first content."""


@dataclass(frozen=True, slots=True)
class UpstreamError:
    """What the replica itself said about its failure. ``message`` is at most ERROR_TEXT_MAX characters of valid Unicode."""

    message: str
    type: str | None = None
    code: int | str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one event amounts to.

    ``usage_tokens``: the answer's output tokens so far, where this event's ``usage`` tells them.
    ``ending``: FINISHED, with ``last``, for the event that closes a whole answer; else why the event ends the attempt badly.
    """

    content: bool = False
    tokens: int = 0
    usage_tokens: int | None = None
    ending: Ending | None = None
    error: UpstreamError | None = None
    last: bool = False


NOTHING: Final = Reading()
ONE_TOKEN: Final = Reading(content=True, tokens=1)


class Answer(ABC):
    """One answer as it grows: a dialect's reading of its payloads, and the little that must be remembered between them."""

    finished: bool = False
    """Every choice has said why it ended, and the reason is a finish."""
    only_first_open: bool = False
    """Choice 0 is the only one that was seen, and it has not finished. Kept by dialects that have choices."""
    next_sequence_number: int = 0
    """The number that the next event would carry, in the dialect that numbers its events."""

    @abstractmethod
    def read(self, payload: Payload) -> Reading:
        """What ``payload``, which is no error, adds to the answer."""


_ABORTS: Final = frozenset({"abort", "aborted", "cancelled"})


def bad_ending(reason: object) -> Reading | None:
    """The reading of a finish reason that is no finish: an abort, or vLLM's ``error`` (an internal, repeatable failure)."""
    if not isinstance(reason, str):
        return None
    if reason in _ABORTS:
        return Reading(ending=Ending.ABORTED)
    if reason == "error":
        return Reading(ending=Ending.ERROR, error=UpstreamError("the finish reason is error"))
    return None


def is_error(value: object) -> bool:
    """Whether an ``error`` field makes clients raise: ``null`` doesn't, an empty object does (openai-node)."""
    return bool(value) or isinstance(value, dict | list)


def find_error(payload: Payload) -> UpstreamError | None:
    """The error that a payload reports in any of the forms seen: object, string, beside choices, flat (CASES ERR-01, ERR-04)."""
    error = payload.get("error")
    if error is not None and is_error(error):
        return upstream_error(error)
    if payload.get("type") == "error" or payload.get("object") == "error":
        return upstream_error(payload)
    return None


def upstream_error(said: object) -> UpstreamError:
    """The facts in an error of unknown shape: a string, an object, or an object that wraps the real one under ``error``."""
    if not isinstance(said, dict):
        return UpstreamError(bounded(str(said), ERROR_TEXT_MAX))
    while isinstance(inner := said.get("error"), dict):
        said = inner
    message = said.get("message") or inner
    kind = said.get("type")
    code = said.get("code")
    return UpstreamError(
        message=bounded(message if isinstance(message, str) else "the replica gave no message", ERROR_TEXT_MAX),
        type=bounded(kind, ERROR_TEXT_MAX) if isinstance(kind, str) and kind != "error" else None,
        code=bounded(code, ERROR_TEXT_MAX) if isinstance(code, str) else _whole_number(code),
    )


def token_count(usage: object, key: str) -> int | None:
    """A count out of a ``usage`` object, or None where it has no such count."""
    return count(usage.get(key)) if isinstance(usage, dict) else None


def count(value: object) -> int | None:
    """``value`` where it can be a number of things, from 0 to WHOLE_NUMBER_MAX; else None."""
    number = _whole_number(value)
    return number if number is not None and number >= 0 else None


def carries(fields: object, names: tuple[str, ...]) -> bool:
    """Whether a JSON object holds something under one of ``names``; empty text, empty lists and null are nothing."""
    return isinstance(fields, dict) and any(fields.get(name) for name in names)


def _whole_number(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) <= WHOLE_NUMBER_MAX else None
