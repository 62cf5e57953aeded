"""What the gateway itself says: the terminal event after the boundary, the JSON body before it, the keep-alive comment (R9).

The terminal event has the form that makes the official SDKs raise (CASES ERR-04, ERR-09, FC-09): an object under ``error``, for
/v1/messages in an event named ``error``. It carries no ``id:`` line, and no ``[DONE]`` follows it (CASES SSE-04).
"""

import json
from typing import Final

from extproc.contract.errors import FORMS, ClientError
from extproc.sse.dialects import Dialect

KEEP_ALIVE_COMMENT: Final = b": keep-alive\n"
"""To be written between whole events only. One LF, for a blank line would dispatch an empty event in openai-python where any
earlier event had an ``id:`` line, and that raises (CASES SSE-04)."""

_ANTHROPIC_TYPES: Final = {
    413: "request_too_large",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's error types by the status that says the same; the rest is ``invalid_request_error``."""

_NAME_LINE: Final = {
    Dialect.CHAT: b"",
    Dialect.COMPLETIONS: b"",
    Dialect.RESPONSES: b"event: error\n",
    Dialect.MESSAGES: b"event: error\n",
}


def terminal_event(dialect: Dialect, error: ClientError, sequence_number: int | None) -> bytes:
    """The one event that ends a started stream; ``sequence_number`` is the responses dialect's and unused in the others."""
    if dialect is Dialect.RESPONSES:
        body = _encode({"type": "error", "sequence_number": sequence_number or 0, "error": error.fields()})
    else:
        body = error_body(dialect, error)
    return _NAME_LINE[dialect] + b"data: " + body + b"\n\n"


def error_body(dialect: Dialect, error: ClientError) -> bytes:
    """The JSON body of an answer that is an error: OpenAI's shape, or Anthropic's for /v1/messages."""
    if dialect is not Dialect.MESSAGES:
        return _encode({"error": error.fields()})
    fields = error.fields()
    fields["type"] = _ANTHROPIC_TYPES.get(FORMS[error.code].status, "invalid_request_error")
    # Where anthropic-python reads ``APIStatusError.error_code`` from.
    fields["details"] = {"error_code": str(error.code)}
    return _encode({"type": "error", "error": fields, "request_id": error.request_id})


def _encode(value: dict[str, object]) -> bytes:
    """Compact and in ASCII, so that no client's line splitting finds a U+2028 in it (CASES SSE-06)."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
