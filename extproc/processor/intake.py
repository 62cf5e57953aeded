"""Reads one request off the ext_proc stream: head, body up to a limit, and what of it the decisions need.

Everything a client sent that is not understood ends here, with an answer that names the field and the fix; nothing
reaches a replica half-read.
"""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from extproc.contract import headers as names
from extproc.contract.errors import ErrorCode
from extproc.contract.text import bounded
from extproc.processor.body_room import BodyShare
from extproc.processor.messages import RequestHeaders
from extproc.processor.protobuf import ProcessingRequest
from extproc.sse.reading import Dialect

MODEL_CHARACTERS_MAX: Final = 256
"""Of a model's name as it is written down; clients choose it, and thousands are kept."""
DATA_URL_BYTES: Final = 8_192
"""What an inlined picture or sound counts for in the prompt estimate: its base64 length says nothing about its tokens."""

_TRACE_PARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Read = Callable[[], Awaitable[ProcessingRequest | None]]
"""The next message of the stream, None at its end."""


class RequestBody:
    """A client's bytes, as long as an attempt may still need them: a prompt of megabytes may have an answer of minutes."""

    __slots__ = ("_share", "data")

    def __init__(self, data: bytes, share: BodyShare | None = None) -> None:
        self.data = data
        self._share = share

    def release(self) -> None:
        """No further attempt can follow."""
        self.data = b""
        if self._share is not None:
            self._share.give_back()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One generation request, whole. ``headers`` may be sent on; ``body`` is byte-identical to what came."""

    dialect: Dialect
    method: str
    path: str
    authority: str
    headers: tuple[tuple[str, str], ...]
    body: RequestBody
    model: str
    """As it is written down; the replica reads it in the body."""
    stream: bool
    choices: int
    prompt_bytes: int


class RequestRejected(Exception):  # noqa: N818  (an answer, not a fault)
    """The request can't be served; ``code`` and the message go to the client."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ClientGone(Exception):  # noqa: N818  (an event, not a fault)
    """The stream ended before the request did (FACTS C8: while uploading, a disconnect is an end without end_of_stream)."""


async def read_body(read: Read, bytes_max: int, share: BodyShare | None = None) -> bytes:
    """The request's body. Raises RequestRejected above the limit or where the share can't take it, and ClientGone where it never
    ends."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await read()
        if message is None:
            raise ClientGone
        kind = message.WhichOneof("request")
        if kind == "request_trailers":
            return b"".join(pieces)
        if kind != "request_body":
            raise RequestRejected(ErrorCode.INTERNAL_ERROR, f"Envoy sent {kind} inside a request body; check processing_mode")
        piece = message.request_body
        size += len(piece.body)
        if size > bytes_max:
            raise RequestRejected(
                ErrorCode.REQUEST_TOO_LARGE,
                f"the request body is larger than {bytes_max} bytes; send a smaller one or raise --max-request-bytes",
            )
        if share is not None and not share.take(len(piece.body)):
            raise RequestRejected(ErrorCode.OVERLOADED, "this gateway holds as much of request bodies as it may")
        pieces.append(piece.body)
        if piece.end_of_stream:
            return b"".join(pieces)


def check_head(head: RequestHeaders, bytes_max: int) -> None:
    """Refuse what can be refused before the body is read. Raises RequestRejected."""
    for name, value in head.headers:
        if name == "content-encoding" and value.strip().lower() not in ("", "identity"):
            raise RequestRejected(
                ErrorCode.UNSUPPORTED_CONTENT_ENCODING,
                f"content-encoding {value!r} is not supported on generation requests; send the body unencoded",
            )
        if name == "content-length" and value.isascii() and value.isdigit() and int(value) > bytes_max:
            raise RequestRejected(
                ErrorCode.REQUEST_TOO_LARGE,
                f"content-length: {value} is larger than {bytes_max} bytes; send a smaller body or raise --max-request-bytes",
            )


def read_request(dialect: Dialect, head: RequestHeaders, body: bytes, share: BodyShare | None = None) -> GenerationRequest:
    """What the decisions need of a whole request. Raises RequestRejected where the body is no JSON object."""
    document = _decode_body(body)
    model = document.get("model")
    return GenerationRequest(
        dialect=dialect,
        method=head.method,
        path=head.path,
        authority=head.authority.rpartition("@")[2],  # user information has no place there (RFC 9113 section 8.3.1)
        headers=forwardable_headers(head.headers),
        body=RequestBody(body, share),
        model=bounded(model, MODEL_CHARACTERS_MAX) if isinstance(model, str) else "",
        stream=document.get("stream") is True,
        choices=choices_asked(dialect, document),
        prompt_bytes=prompt_bytes(document),
    )


def forwardable_headers(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """A client's headers without those that are between two neighbours, ours, Envoy's, or about framing and encoding.

    ``connection`` may name further hop-by-hop headers (RFC 9110 section 7.6.1).
    """
    listed = {name.strip().lower() for key, value in headers if key == "connection" for name in value.split(",") if name.strip()}
    dropped = names.HOP_BY_HOP | listed | {"content-length", "accept-encoding", "host", "content-encoding"}
    return tuple(
        (name, value) for name, value in headers if name not in dropped and not name.startswith(names.STRIPPED_FROM_CLIENTS)
    )


def trace_parent(headers: Sequence[tuple[str, str]]) -> str | None:
    """The client's trace, where its header is well-formed and came once (W3C Trace Context section 3.2)."""
    found = [value for name, value in headers if name == "traceparent"]
    return found[0] if len(found) == 1 and _TRACE_PARENT.fullmatch(found[0]) else None


def choices_asked(dialect: Dialect, document: dict[str, object]) -> int:
    """How many choices the answer has: ``n``, for each prompt of a completions batch (a list of texts or of token lists)."""
    if dialect not in (Dialect.CHAT, Dialect.COMPLETIONS):
        return 1
    asked = document.get("n")
    each = asked if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0 else 1
    prompt = document.get("prompt") if dialect is Dialect.COMPLETIONS else None
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return each * len(prompt)
    return each


def prompt_bytes(document: dict[str, object]) -> int:
    """How much text a replica has to read again for a repeat, in bytes of UTF-8; errs high (R16)."""
    total = 0
    waiting: list[object] = [document.get(key) for key in ("messages", "prompt", "input", "system", "instructions", "tools")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            total += DATA_URL_BYTES if value.startswith("data:") else len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, int):
            total += 2  # a token id, counted as the estimate's bytes per token
    return total


def _decode_body(body: bytes) -> dict[str, object]:
    """vLLM reads bodies with the standard library, which takes more than orjson does (NaN, other UTFs): so do we."""
    if not body:
        raise RequestRejected(ErrorCode.INVALID_REQUEST_BODY, "the request body is empty; send a JSON object")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RequestRejected(ErrorCode.INVALID_REQUEST_BODY, f"the request body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestRejected(ErrorCode.INVALID_REQUEST_BODY, "the request body is JSON but not an object")
    return document
