"""/v1/responses: numbered events around one response object.

vLLM 0.32 closes every stream with ``response.completed``, so that the object's own ``status`` has the last word: ``incomplete``
for max tokens, ``cancelled`` for an abort.
"""

from typing import Final

from extproc.sse.facts import (
    NOTHING,
    Answer,
    Ending,
    Payload,
    Reading,
    carries,
    count,
    token_count,
    upstream_error,
)

_CLOSING: Final = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
"""Events that carry the final object, and the status that each stands for where the object has none."""

_FINISHED_REASONS: Final = frozenset({"max_output_tokens", "content_filter"})
"""Why an incomplete answer is nevertheless all that this request gets."""

_CALL: Final = ("name", "call_id", "id")


class ResponseAnswer(Answer):
    """One response."""

    def read(self, payload: Payload) -> Reading:
        kind = payload.get("type")
        reading = NOTHING
        if not isinstance(kind, str):
            return reading
        if kind.endswith(".delta"):
            reading = _read_delta(payload)
        elif kind == "response.output_item.added":
            reading = _read_item(payload.get("item"))
        elif kind in _CLOSING:
            reading = read_response(payload.get("response"), _CLOSING[kind])
            if reading.ending is not Ending.FINISHED:
                return reading
            self.finished = True
        number = count(payload.get("sequence_number"))
        if number is not None:
            self.next_sequence_number = number + 1
        return reading


def read_response(response: object, status: str) -> Reading:
    """How a final response object ends; ``status`` is meant where the object has none."""
    fields = response if isinstance(response, dict) else {}
    match fields.get("status") or status:
        case "completed":
            pass
        case "incomplete":
            details = fields.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            if not isinstance(reason, str) or reason not in _FINISHED_REASONS:
                return Reading(ending=Ending.ABORTED, last=True)
        case "failed":
            return Reading(ending=Ending.ERROR, error=upstream_error(fields.get("error") or {}), last=True)
        case "cancelled":
            return Reading(ending=Ending.ABORTED, last=True)
        case other:
            return Reading(ending=Ending.ERROR, error=upstream_error(f"the response's status is {other}"), last=True)
    return Reading(usage_tokens=token_count(fields.get("usage"), "output_tokens"), ending=Ending.FINISHED, last=True)


def _read_delta(payload: Payload) -> Reading:
    """Any ``….delta``: text, reasoning, refusal, audio, a call's arguments or code. Logprobs tell how many tokens it holds."""
    logprobs = payload.get("logprobs")
    tokens = len(logprobs) if isinstance(logprobs, list) else 0
    if tokens or payload.get("delta"):
        return Reading(content=True, tokens=tokens or 1)
    return NOTHING


def _read_item(item: object) -> Reading:
    """A call's item opens with its name and id, which is content; a message's or a reasoning's opens empty."""
    if not isinstance(item, dict):
        return NOTHING
    kind = item.get("type")
    if isinstance(kind, str) and kind.endswith("_call") and carries(item, _CALL):
        return Reading(content=True, tokens=1)
    return NOTHING
