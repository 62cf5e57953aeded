"""The nine bytes before every frame, and what follows them (RFC 9113 sections 4.1 and 6)."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from extproc.http2.errors import Code, ConnectionFault

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES: Final = 9
STREAM_ID_MAX: Final = 2**31 - 1

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

_HEADER: Final = struct.Struct(">BHBBL")
"""A length of 24 bits (8 + 16), type, flags, a reserved bit and the stream's id."""
_NUMBER: Final = struct.Struct(">L")


class Kind(IntEnum):
    """Frame types (section 6)."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


class FrameReader:
    """Cuts a byte stream into frames, however it was cut before.

    Bytes of an unfinished frame are kept and looked at again only when enough of them are there, so a peer that sends them one
    at a time costs no more than one that doesn't.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        self._needed = HEADER_BYTES

    def feed(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """(type, flags, stream id, payload) of every frame that is whole now; to be read to the end before more is fed.

        Raises ConnectionFault as soon as the length of a frame is seen to be too large.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        position, end = 0, len(data)
        needed = HEADER_BYTES
        while end - position >= HEADER_BYTES:
            length_high, length_low, kind, flags, stream_id = _HEADER.unpack_from(data, position)
            length = length_high << 16 | length_low
            if length > self._frame_bytes_max:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes; {self._frame_bytes_max} are allowed")
            stop = position + HEADER_BYTES + length
            if stop > end:
                needed = HEADER_BYTES + length
                break
            yield kind, flags, stream_id & STREAM_ID_MAX, data[position + HEADER_BYTES : stop]
            position = stop
        if position < end:
            self._rest += data[position:]
        self._needed = needed


def encode_frame(kind: Kind, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A frame; the caller sees to it that the payload is no longer than the peer allows."""
    length = len(payload)
    return _HEADER.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id) + payload


def encode_window_update(stream_id: int, increment: int) -> bytes:
    """Room for ``increment`` more bytes; stream 0 is the connection."""
    return encode_frame(Kind.WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(increment))


def encode_reset(stream_id: int, code: int) -> bytes:
    """The end of a stream, at once."""
    return encode_frame(Kind.RST_STREAM, 0, stream_id, _NUMBER.pack(code))


def encode_go_away(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    """No stream above ``last_stream_id`` will be served."""
    return encode_frame(Kind.GOAWAY, 0, 0, _NUMBER.pack(last_stream_id) + _NUMBER.pack(code) + debug)


def encode_header_block(stream_id: int, block: bytes, *, end_stream: bool, frame_bytes_max: int) -> bytes:
    """HEADERS and as many CONTINUATION frames as the block needs."""
    pieces = [block[start : start + frame_bytes_max] for start in range(0, len(block), frame_bytes_max)] or [b""]
    frames = []
    for index, piece in enumerate(pieces):
        kind = Kind.CONTINUATION if index else Kind.HEADERS
        flags = END_STREAM if end_stream and not index else 0
        flags |= END_HEADERS if index == len(pieces) - 1 else 0
        frames.append(encode_frame(kind, flags, stream_id, piece))
    return b"".join(frames)


def decode_number(payload: bytes, kind: Kind) -> int:
    """The one 32-bit number that a frame holds. Raises ConnectionFault where its length is another."""
    if len(payload) != _NUMBER.size:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a {kind.name} frame of {len(payload)} bytes")
    return int(_NUMBER.unpack(payload)[0])


def decode_go_away(payload: bytes) -> tuple[int, int, bytes]:
    """(last stream id, code, debug data). Raises ConnectionFault."""
    if len(payload) < 2 * _NUMBER.size:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a GOAWAY frame of {len(payload)} bytes")
    last_stream_id, code = struct.unpack_from(">LL", payload)
    return last_stream_id & STREAM_ID_MAX, code, payload[2 * _NUMBER.size :]


def strip_padding(payload: bytes, flags: int) -> bytes:
    """What a DATA or HEADERS frame holds besides padding. Raises ConnectionFault (sections 6.1 and 6.2)."""
    if not flags & PADDED:
        return payload
    if not payload:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a padded frame without its pad length")
    end = len(payload) - payload[0]
    if end < 1:
        raise ConnectionFault(Code.PROTOCOL_ERROR, "as much padding as payload")
    return payload[1:end]


def strip_priority(payload: bytes, flags: int) -> bytes:
    """What a HEADERS frame holds besides its deprecated priority fields. Raises ConnectionFault."""
    if not flags & PRIORITY_FLAG:
        return payload
    if len(payload) < 5:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a HEADERS frame too short for its priority fields")
    return payload[5:]
