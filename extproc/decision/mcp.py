"""Tool calls inside MCP's Streamable HTTP transport (modelcontextprotocol.io, 2025-06-18): JSON-RPC 2.0 in POST bodies.

Two attempts number their JSON-RPC messages each for itself, so the same tool call comes with another ``id``, and the stored
answer has to be given the caller's. Everything else that travels over the transport (initialize, listings, notifications) is no
action and is left alone.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

KEY_IN_META: Final = "deltafence.io/idempotency-key"
"""In ``params._meta``: where an MCP client can put a key of its own for one call, since its HTTP headers are the session's."""

JsonId = str | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpMessage:
    """One JSON-RPC message towards a tool server. ``key`` is what the call's own ``_meta`` gives."""

    id: JsonId
    is_tool_call: bool
    key: str | None
    identity: bytes
    """What is equal for equal calls: method and parameters without ``_meta``, in one spelling."""


def read_message(body: bytes) -> McpMessage | None:
    """The message in a request's body; None where the body is no single JSON-RPC 2.0 message."""
    document = _read_object(body)
    if document is None or document.get("jsonrpc") != "2.0":
        return None
    parameters = document.get("params")
    parameters = dict(parameters) if isinstance(parameters, dict) else {}
    meta = parameters.pop("_meta", None)
    key = meta.get(KEY_IN_META) if isinstance(meta, dict) else None
    message_id = document.get("id")
    return McpMessage(
        id=message_id if isinstance(message_id, str | int) else None,
        is_tool_call=document.get("method") == "tools/call" and "id" in document,
        key=key if isinstance(key, str) else None,
        identity=_spell({"method": document.get("method"), "params": parameters}),
    )


def find_response(payloads: Iterable[bytes], message_id: JsonId) -> bytes | None:
    """The JSON-RPC response to ``message_id`` among an event stream's payloads; None where the stream ended without it."""
    for payload in payloads:
        document = _read_object(payload)
        if document is not None and document.get("id") == message_id and ("result" in document or "error" in document):
            return _spell(document)
    return None


def readdress(response: bytes, message_id: JsonId) -> bytes:
    """A stored response as the answer to another message. Bytes that are no JSON object are left as they are."""
    document = _read_object(response)
    return response if document is None else _spell({**document, "id": message_id})


def _read_object(data: bytes) -> dict[str, object] | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _spell(document: dict[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
