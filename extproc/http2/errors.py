"""What can be wrong with a connection or with one of its streams (RFC 9113 sections 5.4 and 7)."""

from enum import IntEnum


class Code(IntEnum):
    """Error codes (section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def code_name(code: int) -> str:
    """The name of a code, for evidence; codes that nobody registered are numbers."""
    return Code(code).name if code in Code._value2member_map_ else f"0x{code:x}"


class ConnectionFault(Exception):  # noqa: N818  (the RFC's connection error; the peer's fault, not ours)
    """The peer broke a rule after which nothing on the connection can be trusted (section 5.4.1)."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class StreamFault(Exception):  # noqa: N818  (the RFC's stream error)
    """The peer broke a rule that concerns one stream only (section 5.4.2)."""

    def __init__(self, stream_id: int, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code
