"""Every bound of a connection, and the reason for each number.

None of them needs a clock. Work is bounded by what is outstanding, and idle chatter by what of substance came with it, so a
keep-alive PING every other second for a day is as welcome as the first one.
"""

from dataclasses import dataclass
from typing import Final

from extproc.http2.errors import Code, ConnectionFault

WINDOW_MAX: Final = 2**31 - 1
"""The largest flow-control window (section 6.9.1)."""
WINDOW_DEFAULT: Final = 65_535
"""Every window before anything was said about it (section 6.9.2)."""
FRAME_BYTES_DEFAULT: Final = 16_384
"""The largest payload before anything was said about it, and the only size that we take (section 4.2): larger frames would only
keep other streams waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one connection takes from its peer."""

    streams_max: int = 100
    """Streams of the peer's that are served at once. One that the peer has reset counts until our work for it has ended: that
    is what makes a rapid reset harmless (CVE-2023-44487)."""
    stream_window: int = 262_144
    """Bytes of one stream that may be under way unread; Envoy's buffers have the same size."""
    connection_window: int = 4_194_304
    """Given back on arrival, so that a stream which nobody reads blocks no other; large enough never to be waited for."""
    header_bytes_max: int = 262_144
    """Of one header list, before and after decompression. Decoding can't be broken off for one stream alone, so this is far
    above what Envoy lets through (60 KiB and 100 fields): whoever gets here is no Envoy."""
    header_frames_max: int = 64
    """CONTINUATION frames of one header block: twice what ``header_bytes_max`` fills (CVE-2024-27316)."""
    replies_max: int = 1_000
    """Answers to PING and SETTINGS that wait to be sent (CVE-2019-9512, CVE-2019-9515); Envoy allows as many."""
    idle_frames_max: int = 1_000
    """Frames without substance: empty DATA, PRIORITY, unknown types, WINDOW_UPDATE, frames on closed streams (CVE-2019-9513,
    CVE-2019-9518). Each frame of substance, in either direction, excuses ten, as Envoy counts them."""

    def __post_init__(self) -> None:
        assert WINDOW_DEFAULT <= self.stream_window <= WINDOW_MAX, "a peer uses the default window until it has our SETTINGS"
        assert WINDOW_DEFAULT <= self.connection_window <= WINDOW_MAX
        assert self.streams_max > 0


EXCUSED_BY_SUBSTANCE: Final = 10


class Patience:
    """How many more frames without substance are borne."""

    __slots__ = ("_left", "_most")

    def __init__(self, idle_frames_max: int) -> None:
        self._most = idle_frames_max
        self._left = idle_frames_max

    def try_with(self, what: str) -> None:
        """A frame without substance came. Raises ConnectionFault when it was one too many."""
        self._left -= 1
        if self._left < 0:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, f"too many frames without substance, the last one {what}")

    def restore(self) -> None:
        """Something of substance was exchanged."""
        if self._left < self._most:
            self._left = min(self._most, self._left + EXCUSED_BY_SUBSTANCE)
