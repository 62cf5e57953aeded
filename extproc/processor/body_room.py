"""How much of clients' bodies one process holds, all requests together.

Each body alone is bounded (``request_bytes_max``), but clients choose how many come at once, and a body is kept as long as its
request may be repeated: many large ones that never end would fill any memory.
"""

from typing import Final

BODIES_BYTES_MAX: Final = 512 << 20
"""Eight of the largest bodies that are taken by default, or some ten thousand of the usual size."""


class BodyRoom:
    """The bytes that are taken. Invariant: ``taken_bytes`` is the sum of all shares, and never above ``bytes_max``."""

    __slots__ = ("bytes_max", "taken_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken_bytes = 0


class BodyShare:
    """One request's part of the room; given back at the boundary, or with the request's end."""

    __slots__ = ("_bytes", "_room")

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._bytes = 0

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes more; they are taken then."""
        if self._room.taken_bytes + size > self._room.bytes_max:
            return False
        self._room.taken_bytes += size
        self._bytes += size
        return True

    def give_back(self) -> None:
        """All of it, once; a second call does nothing."""
        self._room.taken_bytes -= self._bytes
        self._bytes = 0
