"""Answers held whole (``stream: false``): whether a 200 really is the answer, which may be repeated until it is handed over."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from extproc.sse.choices import choice_output
from extproc.sse.dialects import Dialect
from extproc.sse.facts import Ending, Payload, Reading, UpstreamError, bad_ending, find_error, token_count
from extproc.sse.payloads import NotJson, decode_payload
from extproc.sse.responses import read_response


@dataclass(frozen=True, slots=True)
class WholeReading:
    """What the body of a 200 amounts to.

    ``complete``: it is a whole answer. ``ending``: why it is or isn't; None where it is JSON that says neither.
    ``tokens``: output tokens as far as they can be counted in it; ``usage_tokens``: as its own ``usage`` tells them.
    """

    complete: bool
    ending: Ending | None = None
    error: UpstreamError | None = None
    tokens: int = 0
    usage_tokens: int | None = None


def read_whole(dialect: Dialect, body: bytes) -> WholeReading:
    """Read a 200's body. An error object under a 200 is an error, an empty body is malformed (CASES SSE-14)."""
    try:
        payload = decode_payload(body)
    except NotJson:
        payload = None
    if not isinstance(payload, dict):
        return WholeReading(complete=False, ending=Ending.MALFORMED)
    error = find_error(payload)
    if error is not None:
        return WholeReading(complete=False, ending=Ending.ERROR, error=error)
    reading = _READERS[dialect](payload)
    return WholeReading(
        complete=reading.ending is Ending.FINISHED,
        ending=reading.ending,
        error=reading.error,
        tokens=reading.tokens,
        usage_tokens=reading.usage_tokens,
    )


def _read_choices(payload: Payload) -> Reading:
    listed = payload.get("choices")
    choices = [choice for choice in listed if isinstance(choice, dict)] if isinstance(listed, list) else []
    reasons = [choice.get("finish_reason") for choice in choices]
    bad = next((bad for bad in map(bad_ending, reasons) if bad is not None), None)
    if bad is not None:
        return bad
    return Reading(
        ending=Ending.FINISHED if choices and all(reasons) else None,
        tokens=sum(choice_output(choice).tokens for choice in choices),
        usage_tokens=token_count(payload.get("usage"), "completion_tokens"),
    )


def _read_message(payload: Payload) -> Reading:
    reason = payload.get("stop_reason")
    bad = bad_ending(reason)
    if bad is not None:
        return bad
    usage_tokens = token_count(payload.get("usage"), "output_tokens")
    return Reading(ending=Ending.FINISHED if reason else None, tokens=usage_tokens or 0, usage_tokens=usage_tokens)


def _read_response(payload: Payload) -> Reading:
    status = payload.get("status")
    if status is None:
        return Reading()
    if status in ("queued", "in_progress"):
        # A background response: this call's whole answer is the receipt, and a repeat would start a second one.
        return Reading(ending=Ending.FINISHED)
    reading = read_response(payload, "failed")
    return Reading(
        ending=reading.ending, error=reading.error, tokens=reading.usage_tokens or 0, usage_tokens=reading.usage_tokens
    )


_READERS: Final[dict[Dialect, Callable[[Payload], Reading]]] = {
    Dialect.CHAT: _read_choices,
    Dialect.COMPLETIONS: _read_choices,
    Dialect.RESPONSES: _read_response,
    Dialect.MESSAGES: _read_message,
}
