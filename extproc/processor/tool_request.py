"""Reads one call off a tool's route: what it is, whose, and what of it goes on to the tool."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from extproc.contract import headers as names
from extproc.contract.errors import ErrorCode
from extproc.decision.idempotency import InvalidKey, fingerprint, hash_key
from extproc.decision.mcp import McpMessage, read_message
from extproc.decision.tool_call import SAFE_METHODS, NoKey, ToolKey, ToolRoute, read_key
from extproc.processor.intake import RequestRejected, forwardable_headers
from extproc.processor.messages import RequestHeaders
from extproc.replicas.attempt_client import AttemptRequest
from extproc.tools.interface import ToolCall

_HANDED_ON: Final = (names.REQUEST_ID, names.TOOL_CALL)
"""Of our own headers, what a tool may want for keys of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """One request to a tool. ``call`` is None where there is nothing to protect; ``mcp`` where it is an MCP message."""

    route: ToolRoute
    head: RequestHeaders
    body: bytes
    mcp: McpMessage | None
    key: ToolKey | None
    call: ToolCall | None

    def to_tool(self) -> AttemptRequest:
        """The request as it goes to the tool."""
        return self._request(self.head.method, self.head.path, self.body)

    def status_question(self) -> AttemptRequest:
        """The question whether the tool has carried this call out, asked with the caller's own credentials."""
        assert self.route.status_path is not None
        assert self.key is not None
        return self._request("GET", self.route.status_path.replace("{key}", quote(self.key.key, safe="")), b"")

    def _request(self, method: str, path: str, body: bytes) -> AttemptRequest:
        own = [(name, value) for name, value in self.head.headers if name in _HANDED_ON]
        headers = (
            *forwardable_headers(self.head.headers),
            *own,
            ("accept-encoding", "identity"),
            (names.TOOL, self.route.name),
        )
        authority = self.head.authority or self.route.name
        return AttemptRequest(method=method, path=path, authority=authority, headers=headers, body=body)


def read_tool_request(route: ToolRoute, head: RequestHeaders, body: bytes, secret: bytes) -> ToolRequest:
    """Raises RequestRejected where the call can't be named, or its route wants a name."""
    mcp = read_message(body) if head.method == "POST" else None
    key = None
    if head.method not in SAFE_METHODS and (mcp is None or mcp.is_tool_call):
        key = _read_key(route, head, mcp)
    call = None if key is None else _call(route, head, body, mcp, key, secret)
    return ToolRequest(route=route, head=head, body=body, mcp=mcp, key=key, call=call)


def _read_key(route: ToolRoute, head: RequestHeaders, mcp: McpMessage | None) -> ToolKey | None:
    values: dict[str, list[str]] = {}
    for name, value in head.headers:
        values.setdefault(name, []).append(value)
    try:
        key = read_key(values, mcp.key if mcp is not None else None)
    except InvalidKey as error:
        raise RequestRejected(ErrorCode.INVALID_IDEMPOTENCY_KEY, str(error)) from error
    except NoKey:
        message = f"a call that sends {names.REQUEST_ID} must name itself too: send {names.TOOL_CALL} or Idempotency-Key"
        raise RequestRejected(ErrorCode.IDEMPOTENCY_KEY_REQUIRED, message) from None
    if key is None and route.require_key:
        message = f"calls to {route.name} need an Idempotency-Key, or {names.REQUEST_ID} and {names.TOOL_CALL}"
        raise RequestRejected(ErrorCode.IDEMPOTENCY_KEY_REQUIRED, message)
    return key


def _call(route: ToolRoute, head: RequestHeaders, body: bytes, mcp: McpMessage | None, key: ToolKey, secret: bytes) -> ToolCall:
    caller = "" if key.names_request else next((value for name, value in head.headers if name == route.caller_header), "")
    hashed = hash_key(secret, caller, f"{route.name}\0{key.key}")
    # A key of the caller's own is never shown: it may be all that keeps others from asking for its answer.
    shown = key.key if key.names_request else f"key_{hashed.hex()[:24]}"
    return ToolCall(
        key_hash=hashed,
        call_key=f"{route.name}/{shown}",
        tool=route.name,
        request_id=key.request_id,
        fingerprint=fingerprint(head.method, head.path, body if mcp is None else mcp.identity),
        keep_ms=route.keep_ms,
    )
