"""Header blocks: put together, decoded, judged (RFC 9113 sections 4.3, 8.2 and 8.3), and encoded.

Text is latin-1, one character a byte, as everywhere in this program, so that any value survives its way unchanged.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import hpack

from extproc.http2 import frames
from extproc.http2.errors import Code, ConnectionFault
from extproc.http2.limits import Limits

Fields = Sequence[tuple[str, str]]
"""Lower-case names and their values in order, pseudo fields first."""

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE: Final = re.compile(rb"(?![ \t])[^\x00\r\n]*(?<![ \t])")
_STATUS: Final = re.compile(rb"[1-5][0-9][0-9]")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_BETWEEN_NEIGHBOURS: Final = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
_SENSITIVE: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie", b"x-api-key", b"x-deltafence-token"})


class Section(Enum):
    """What a header block is, by the pseudo fields that it may have."""

    REQUEST = frozenset({b":method", b":scheme", b":authority", b":path"})
    RESPONSE = frozenset({b":status"})
    TRAILERS = frozenset[bytes]()


class MalformedFields(ValueError):  # noqa: N818  (the RFC's word)
    """A header list that section 8 calls malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A whole header block, not yet judged."""

    stream_id: int
    end_stream: bool
    raw: list[tuple[bytes, bytes]]


class BlockReader:
    """HEADERS and CONTINUATION frames in, decoded blocks out, each in its order whatever becomes of its stream: the
    decompression state is the connection's (section 4.3)."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._decoder = hpack.Decoder(max_header_list_size=limits.header_bytes_max)
        self._stream_id = 0
        self._end_stream = False
        self._fragments: list[bytes] = []
        self._size = 0

    def begin(self, flags: int, stream_id: int, payload: bytes) -> Block | None:
        """A HEADERS frame; the block, if that was all of it. Raises ConnectionFault."""
        if stream_id == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "HEADERS on stream 0")
        self._stream_id = stream_id
        self._end_stream = bool(flags & frames.END_STREAM)
        return self._add(flags, frames.strip_priority(frames.strip_padding(payload, flags), flags))

    def extend(self, flags: int, stream_id: int, payload: bytes) -> Block | None:
        """A CONTINUATION frame; the block, if that was the rest of it. Raises ConnectionFault."""
        if not self._fragments:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS before it")
        if stream_id != self._stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION on another stream than its HEADERS")
        return self._add(flags, payload)

    def _add(self, flags: int, fragment: bytes) -> Block | None:
        self._fragments.append(fragment)
        self._size += len(fragment)
        if self._size > self._limits.header_bytes_max or len(self._fragments) > self._limits.header_frames_max + 1:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "a header block without end")
        if not flags & frames.END_HEADERS:
            return None
        encoded = b"".join(self._fragments)
        self._fragments.clear()
        self._size = 0
        return Block(stream_id=self._stream_id, end_stream=self._end_stream, raw=self._decode(encoded))

    def _decode(self, encoded: bytes) -> list[tuple[bytes, bytes]]:
        try:
            return list(self._decoder.decode(encoded, raw=True))
        except hpack.OversizedHeaderListError as error:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, str(error)) from error
        except hpack.HPACKError as error:
            raise ConnectionFault(Code.COMPRESSION_ERROR, str(error)) from error


def judge(raw: list[tuple[bytes, bytes]], section: Section) -> Fields:
    """The fields as text. Raises MalformedFields."""
    pseudo: dict[bytes, bytes] = {}
    regular_seen = False
    for name, value in raw:
        if name.startswith(b":"):
            if name not in section.value:
                raise MalformedFields(f"pseudo field {name!r} in {section.name.lower()}")
            if regular_seen or name in pseudo:
                raise MalformedFields(f"pseudo field {name!r} late or twice")
            pseudo[name] = value
        else:
            regular_seen = True
            _judge_regular(name, value)
        if _VALUE.fullmatch(value) is None:
            raise MalformedFields(f"the value of {name!r}")
    if section is Section.REQUEST:
        _judge_request(pseudo)
    elif section is Section.RESPONSE and _STATUS.fullmatch(pseudo.get(b":status", b"")) is None:
        raise MalformedFields("a response without a status")
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in raw]


def content_length(fields: Fields) -> int | None:
    """The length that the fields promise, None where they promise none. Raises MalformedFields (section 8.1.1)."""
    promised = {value for name, value in fields if name == "content-length"}
    if not promised:
        return None
    if len(promised) > 1 or _LENGTH.fullmatch(value := promised.pop()) is None:
        raise MalformedFields("content-length is not one number")
    return int(value)


def _judge_regular(name: bytes, value: bytes) -> None:
    if _NAME.fullmatch(name) is None:
        raise MalformedFields(f"field name {name!r}")
    if name in _BETWEEN_NEIGHBOURS or (name == b"te" and value != b"trailers"):
        raise MalformedFields(f"{name!r} has no meaning in HTTP/2")


def _judge_request(pseudo: dict[bytes, bytes]) -> None:
    if pseudo.get(b":method") == b"CONNECT":
        complete = b":authority" in pseudo and b":scheme" not in pseudo and b":path" not in pseudo
    else:
        complete = b":method" in pseudo and b":scheme" in pseudo and bool(pseudo.get(b":path"))
    if not complete:
        raise MalformedFields("a request whose pseudo fields are not those of its method")


class FieldEncoder:
    """Encodes without the dynamic table and without Huffman codes: both ends are on one machine, where compression costs more
    than it saves, and what is never indexed can't be guessed from sizes (RFC 7541 section 7.1)."""

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()
        self._encoder.header_table_size = 0

    def encode(self, fields: Iterable[tuple[str, str]]) -> bytes:
        """A header block. Raises ValueError for a name or value that HTTP/2 doesn't allow."""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
        for name, value in raw:
            if _NAME.fullmatch(name.removeprefix(b":")) is None or _VALUE.fullmatch(value) is None:
                raise ValueError(f"the field {name!r} can't be sent")
        return self._encoder.encode([(name, value, name in _SENSITIVE) for name, value in raw], huffman=False)
