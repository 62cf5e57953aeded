"""What the caller of a tool gets from the gateway: the tool's answer, a stored one, or an error that says what is known."""

import json
from collections.abc import Sequence
from typing import Final

from extproc.contract import headers as names
from extproc.contract.errors import FORMS, ErrorCode
from extproc.decision.mcp import McpMessage, find_response, readdress
from extproc.processor.tool_request import ToolRequest
from extproc.replicas.attempt_client import ResponseHead
from extproc.sse.framing import EventTooLarge, Framer
from extproc.tools.interface import ToolAnswer

Headers = Sequence[tuple[str, str]]

EVENT_STREAM: Final = "text/event-stream"
_NOT_HANDED_ON: Final = names.HOP_BY_HOP | {"content-length", "server"}
_OF_ONE_SESSION: Final = frozenset({"mcp-session-id", "set-cookie", "date"})
"""True for the caller that got the first answer, not for one that gets it again."""

MESSAGES: Final[dict[ErrorCode, str]] = {
    ErrorCode.REQUEST_IN_PROGRESS: "The first call with this key is still running.",
    ErrorCode.IDEMPOTENCY_KEY_REUSED: "This key belongs to another call.",
    ErrorCode.OUTCOME_UNKNOWN: "It is not known whether the tool carried this call out, so it is not sent again.",
    ErrorCode.REQUEST_COMPLETED: "The tool carried this call out; its answer is not kept.",
    ErrorCode.TOOL_UNREACHABLE: "The tool can't be reached; it has not seen this call.",
    ErrorCode.JOURNAL_UNAVAILABLE: "The ledger is unavailable, so the call was not sent to the tool.",
}


def handed_on(head: ResponseHead) -> list[tuple[str, str]]:
    """A tool's response headers as its caller gets them."""
    return [
        (name, value)
        for name, value in head.headers
        if name not in _NOT_HANDED_ON and not name.startswith(names.STRIPPED_FROM_CLIENTS)
    ]


def is_event_stream(head: ResponseHead) -> bool:
    """Whether the answer is handed on as it comes: others are held until they are stored."""
    return (head.get("content-type") or "").partition(";")[0].strip().lower() == EVENT_STREAM


def kept_answer(request: ToolRequest, head: ResponseHead, body: bytes) -> ToolAnswer | None:
    """The answer that repeats get. Of an MCP event stream only the response to the call; None where there is none in it."""
    headers = tuple((name, value) for name, value in handed_on(head) if name not in _OF_ONE_SESSION)
    if request.mcp is None or not is_event_stream(head):
        return ToolAnswer(status=head.status, headers=headers, body=body)
    response = _response_in(body, request.mcp)
    if response is None:
        return None
    kept = (*(item for item in headers if item[0] != "content-type"), ("content-type", "application/json"))
    return ToolAnswer(status=head.status, headers=kept, body=response)


def replayed(request: ToolRequest, answer: ToolAnswer) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of a stored answer for this caller."""
    body = answer.body if request.mcp is None else readdress(answer.body, request.mcp.id)
    return [*answer.headers, (names.REPLAYED, "true")], body


def refused(code: ErrorCode, request: ToolRequest | None, detail: str | None) -> tuple[Headers, bytes]:
    """Headers and body of an error; ``retryable`` tells whether the same call with the same key may be sent again."""
    form = FORMS[code]
    call = request.call if request is not None else None
    message = " ".join(part for part in (MESSAGES.get(code), detail) if part)
    error = {
        "message": message,
        "type": "tool_error" if form.status >= 500 else "invalid_request_error",
        "code": str(code),
        "call": call.call_key if call is not None else None,
        "request_id": call.request_id if call is not None else None,
        "retryable": form.should_retry or code is ErrorCode.REQUEST_IN_PROGRESS,
    }
    headers = [("content-type", "application/json"), (names.SHOULD_RETRY, "true" if form.should_retry else "false")]
    if form.retry_after_s is not None:
        headers.append(("retry-after", str(form.retry_after_s)))
    return headers, json.dumps({"error": error}).encode()


def _response_in(body: bytes, message: McpMessage) -> bytes | None:
    framer = Framer()
    try:
        events = framer.feed(body)
    except EventTooLarge as error:
        events = error.events
    return find_response((event.data for event in events if event.data), message.id)
