"""Reads Envoy's messages and builds ours: one small function each, no state, no I/O.

Rules that all of it keeps:
1. Header values are bytes on the wire and text here, one character a byte (latin-1), so that any value survives the way
   through us unchanged, UTF-8 or not.
2. In full-duplex mode a body is only ever answered with ``streamed_response`` (CASES EN-04).
3. An answer of our own is a series of ``StreamedImmediateResponse``: headers once, bodies, one end of stream. None begins before
   the whole request has come: its head would let the request go on, and Envoy 1.40 would cut the answer for the route's.
   ``immediate`` refuses at any time.

The messages that hold nothing of their request are built once and shared: whoever gets one must not change it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from extproc.processor.protobuf import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMap,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpHeaders,
    ImmediateResponse,
    ProcessingRequest,
    ProcessingResponse,
    StreamedBodyResponse,
    StreamedImmediateResponse,
    TrailersResponse,
    http_status,
)
from extproc.replicas.attempt_client import ResponseHead

METADATA_NAMESPACE: Final = "deltafence"
"""Where the access log finds our facts: ``%DYNAMIC_METADATA(deltafence)%`` (FACTS C11)."""

_CONTINUE_HEADERS: Final = ProcessingResponse(request_headers=HeadersResponse(response=CommonResponse()))
_CONTINUE_TRAILERS: Final = ProcessingResponse(request_trailers=TrailersResponse(header_mutation=HeaderMutation()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeaders:
    """A request's head. Pseudo headers have their own fields and are not among ``headers``.

    ``headers`` are (lower-case name, value) in the order of arrival, a repeated name as often as it came;
    ``end_of_stream`` says that no body follows.
    """

    method: str
    path: str
    authority: str
    headers: tuple[tuple[str, str], ...]
    end_of_stream: bool


def request_headers(message: ProcessingRequest) -> RequestHeaders:
    """The head out of a ``request_headers`` message; a pseudo header that is missing reads as empty."""
    head = message.request_headers
    pseudo: dict[str, str] = {}
    headers: list[tuple[str, str]] = []
    for header in head.headers.headers:
        name, value = header.key.lower(), _header_text(header)
        if name.startswith(":"):
            pseudo[name] = value
        else:
            headers.append((name, value))
    return RequestHeaders(
        method=pseudo.get(":method", ""),
        path=pseudo.get(":path", ""),
        authority=pseudo.get(":authority", ""),
        headers=tuple(headers),
        end_of_stream=head.end_of_stream,
    )


def response_head(message: ProcessingRequest) -> ResponseHead:
    """The head out of a ``response_headers`` message; a status that is missing or no number reads as 0."""
    status, headers = "", []
    for header in message.response_headers.headers.headers:
        name, value = header.key.lower(), _header_text(header)
        if name == ":status":
            status = value
        else:
            headers.append((name, value))
    return ResponseHead(status=int(status) if status.isascii() and status.isdigit() else 0, headers=tuple(headers))


def number_attribute(message: ProcessingRequest, name: str) -> float:
    """The number of attribute ``name``, 0 where Envoy sent none."""
    return next((values.fields[name].number_value for values in message.attributes.values() if name in values.fields), 0.0)


def attribute(message: ProcessingRequest, name: str) -> str | None:
    """The text of attribute ``name`` (``xds.route_name``, ``request.id``, ...), None where Envoy sent none or no text.

    ``xds.route_metadata`` is a ``Metadata`` message in protobuf text format (FACTS C). Envoy files attributes under its
    filter's configured name, which a mesh may choose, so every entry is looked at.
    """
    for values in message.attributes.values():
        if name in values.fields:
            value = values.fields[name]
            return value.string_value if value.HasField("string_value") else None
    return None


def passthrough_headers() -> ProcessingResponse:
    """Lets the request's headers go on as they are."""
    return _CONTINUE_HEADERS


def passthrough_body(body: bytes, end_of_stream: bool) -> ProcessingResponse:
    """Lets a piece of the request's body go on as it is."""
    streamed = StreamedBodyResponse(body=body, end_of_stream=end_of_stream)
    return ProcessingResponse(
        request_body=BodyResponse(response=CommonResponse(body_mutation=BodyMutation(streamed_response=streamed)))
    )


def passthrough_trailers() -> ProcessingResponse:
    """Lets the request's trailers go on as they are; they are the end of the body."""
    return _CONTINUE_TRAILERS


def answer_headers(
    status: int,
    headers: Iterable[tuple[str, str]],
    end_of_stream: bool = False,
    dynamic_metadata: Mapping[str, str | float] | None = None,
) -> ProcessingResponse:
    """The head of an answer of our own. Once per request, and never after the request's headers were let go on."""
    values = [HeaderValue(key=":status", raw_value=b"%d" % status)]
    values += [HeaderValue(key=name, raw_value=value.encode("latin-1")) for name, value in headers]
    response = ProcessingResponse(
        streamed_immediate_response=StreamedImmediateResponse(
            headers_response=HttpHeaders(headers=HeaderMap(headers=values), end_of_stream=end_of_stream)
        )
    )
    if dynamic_metadata is not None:
        response.dynamic_metadata.get_or_create_struct(METADATA_NAMESPACE).update(dynamic_metadata)
    return response


def answer_body(
    body: bytes, end_of_stream: bool = False, dynamic_metadata: Mapping[str, str | float] | None = None
) -> ProcessingResponse:
    """A piece of an answer of our own. Of ``dynamic_metadata`` the access log keeps the last value of each key."""
    response = ProcessingResponse()
    piece = response.streamed_immediate_response.body_response
    piece.body = body
    if end_of_stream:
        piece.end_of_stream = True
    if dynamic_metadata is not None:
        response.dynamic_metadata.get_or_create_struct(METADATA_NAMESPACE).update(dynamic_metadata)
    return response


def encode_delta(body: bytes) -> bytes:
    """The wire form of ``answer_body(body)``, written by hand for the one message that is sent once per delta."""
    return _before_delta(len(body)) + body


@lru_cache(maxsize=4_096)
def _before_delta(size: int) -> bytes:
    """What stands before a body of ``size`` bytes: deltas come in few sizes.

    Three nested length-delimited fields, each with a tag of one byte (protobuf's encoding guide): ProcessingResponse's
    streamed_immediate_response, its body_response, and that one's body.
    """
    before_body = b"\x0a" + _varint(size) if size else b""
    before_piece = b"\x12" + _varint(len(before_body) + size) + before_body
    return b"\x5a" + _varint(len(before_piece) + size) + before_piece


def immediate(
    status: int,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    details: str,
    dynamic_metadata: Mapping[str, str | float] | None = None,
) -> ProcessingResponse:
    """A whole answer in one message; ``details`` becomes the access log's response code details.

    Each header replaces Envoy's own of that name (it would say ``content-type: text/plain``), so of a name given twice
    the last one stays. Only before the answer's headers: afterwards Envoy cuts the stream (FACTS C11).
    """
    replaced = [
        HeaderValueOption(
            header=HeaderValue(key=name, raw_value=value.encode("latin-1")),
            append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        for name, value in headers
    ]
    response = ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=http_status(status), headers=HeaderMutation(set_headers=replaced), body=body, details=details
        )
    )
    if dynamic_metadata is not None:
        response.dynamic_metadata.get_or_create_struct(METADATA_NAMESPACE).update(dynamic_metadata)
    return response


def _header_text(header: HeaderValue) -> str:
    """Envoy fills raw_value; value is the older form, and both may not be set at once."""
    return header.raw_value.decode("latin-1") or header.value


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
