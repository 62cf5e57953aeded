"""gRPC over HTTP/2 as far as a server of one method without compression needs it (gRPC's PROTOCOL-HTTP2.md): messages in and out
of DATA, and the fields that begin and end a call. Pure."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from extproc.http2.fields import Fields

_PREFIX: Final = struct.Struct(">BL")
PREFIX_BYTES: Final = _PREFIX.size

RESPONSE_HEAD: Final = ((":status", "200"), ("content-type", "application/grpc"))
_OWN_FIELDS: Final = frozenset({"content-type", "te", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"})


class Status(IntEnum):
    """Status codes that this server gives."""

    OK = 0
    UNKNOWN = 2
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFault(Exception):  # noqa: N818  (the peer's fault, not ours)
    """The call can't go on; the status and the text go to the peer."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class MessageReader:
    """Cuts a call's DATA into messages."""

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._rest = bytearray()

    @property
    def is_between_messages(self) -> bool:
        """Whether no message has begun and not ended."""
        return not self._rest

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Every message that is whole now; to be read to the end before more is fed. Raises CallFault."""
        if self._rest:
            self._rest += data
            if len(self._rest) < PREFIX_BYTES or len(self._rest) < PREFIX_BYTES + self._length(self._rest, 0):
                return
            data = bytes(self._rest)
            self._rest.clear()
        position = 0
        while len(data) - position >= PREFIX_BYTES:
            stop = position + PREFIX_BYTES + self._length(data, position)
            if stop > len(data):
                break
            yield data[position + PREFIX_BYTES : stop]
            position = stop
        self._rest += data[position:]

    def _length(self, data: bytes | bytearray, position: int) -> int:
        compressed, length = _PREFIX.unpack_from(data, position)
        if compressed:
            raise CallFault(Status.UNIMPLEMENTED, "a compressed message, which was not offered")
        if length > self._message_bytes_max:
            raise CallFault(Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes; {self._message_bytes_max} are allowed")
        return int(length)


def encode_message(message: bytes) -> bytes:
    """A message as it stands in DATA."""
    return _PREFIX.pack(0, len(message)) + message


def encode_status(status: Status, text: str) -> Fields:
    """Trailers; after ``RESPONSE_HEAD`` they are a whole answer (Trailers-Only)."""
    fields = [("grpc-status", str(int(status)))]
    return [*fields, ("grpc-message", _percent_encoded(text))] if text else fields


def initial_metadata(fields: Fields) -> list[tuple[str, str]]:
    """What the caller says about the call, without what HTTP and gRPC say about themselves."""
    return [(name, value) for name, value in fields if not name.startswith(":") and name not in _OWN_FIELDS]


def refusal_of(fields: Fields, path: str) -> Fields | None:
    """The answer to a head that opens no call of the one method; None for one that does."""
    said = dict(fields)
    if said[":method"] != "POST":
        return [(":status", "405"), ("allow", "POST")]
    if said.get("content-type") not in ("application/grpc", "application/grpc+proto"):
        return [(":status", "415")]
    if said.get(":path") != path:
        return [*RESPONSE_HEAD, *encode_status(Status.UNIMPLEMENTED, f"there is no method {said.get(':path')}")]
    if said.get("grpc-encoding", "identity") != "identity":
        return [*RESPONSE_HEAD, *encode_status(Status.UNIMPLEMENTED, "messages may not be compressed")]
    return None


def _percent_encoded(text: str) -> str:
    return "".join(
        chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in text.encode("utf-8", "replace")
    ).strip()
