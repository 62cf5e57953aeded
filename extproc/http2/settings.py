"""SETTINGS parameters: what the peer has said, and what it may not say (RFC 9113 section 6.5)."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from extproc.http2.errors import Code, ConnectionFault
from extproc.http2.limits import FRAME_BYTES_DEFAULT, WINDOW_DEFAULT, WINDOW_MAX

_PARAMETER: Final = struct.Struct(">HL")
FRAME_BYTES_MAX: Final = 2**24 - 1


class Setting(IntEnum):
    """Parameters (section 6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


STREAMS_UNLIMITED: Final = 2**31 - 1
"""What a peer allows that has named no number."""


@dataclass(slots=True, kw_only=True)
class PeerSettings:
    """What the peer allows, as far as we heed it. Its header table size is moot: we never index (fields.FieldEncoder)."""

    streams_max: int = STREAMS_UNLIMITED
    initial_window: int = WINDOW_DEFAULT
    frame_bytes_max: int = FRAME_BYTES_DEFAULT

    def apply(self, parameter: int, value: int, *, from_server: bool) -> None:
        """Heed one parameter; unknown ones are ignored. Raises ConnectionFault."""
        match parameter:
            case Setting.ENABLE_PUSH:
                if value > 1 or (value and from_server):
                    raise ConnectionFault(Code.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH {value}")
            case Setting.MAX_CONCURRENT_STREAMS:
                self.streams_max = value
            case Setting.INITIAL_WINDOW_SIZE:
                if value > WINDOW_MAX:
                    raise ConnectionFault(Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE {value}")
                self.initial_window = value
            case Setting.MAX_FRAME_SIZE:
                if not FRAME_BYTES_DEFAULT <= value <= FRAME_BYTES_MAX:
                    raise ConnectionFault(Code.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE {value}")
                self.frame_bytes_max = value


def decode_settings(payload: bytes) -> list[tuple[int, int]]:
    """(parameter, value) pairs in their order. Raises ConnectionFault."""
    if len(payload) % _PARAMETER.size:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a SETTINGS frame of {len(payload)} bytes")
    return list(_PARAMETER.iter_unpack(payload))


def encode_settings(parameters: Iterable[tuple[Setting, int]]) -> bytes:
    """The payload of a SETTINGS frame."""
    return b"".join(_PARAMETER.pack(parameter, value) for parameter, value in parameters)
