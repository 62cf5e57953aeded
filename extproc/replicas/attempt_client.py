"""What a session needs of the way to a replica: one request out, its answer back, whatever carries them.

Two clients stand behind it: http1_attempt_client (a connection an attempt) and http2_attempt_client (a stream an attempt).
"""

from dataclasses import dataclass
from typing import Final, Protocol

EOF_GRACE_S: Final = 0.1
"""When Envoy itself dies, its egress connections, or the streams on them, and its ext_proc streams break at once. The session is
cancelled within 7 ms on a machine at rest (FACTS C12), and by another thread, which on a busy one waits for a core; waiting this
long before blaming the replica keeps that from looking like a replica's death. Before the answer's head no replica's death is
told so: Envoy answers for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRequest:
    """One request, whole. ``headers`` are lower-case names and latin-1 values, without ``host`` and framing headers."""

    method: str
    path: str
    authority: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """A response's status and headers: lower-case names in order, repeated as they came, latin-1 text."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """The first value of a header, or None."""
        return next((value for key, value in self.headers if key == name), None)


class AttemptListener(Protocol):
    """Told what an attempt's connection does, in order, from the event loop. ``attempt_ended`` comes last and once."""

    def response_started(self, head: ResponseHead) -> None:
        """The response's headers are here."""

    def body_received(self, data: bytes) -> None:
        """A piece of the response's body, as large as it came: what the loop read at once, or a frame of it."""

    def attempt_ended(self, broken: str | None) -> None:
        """The response is over: whole as HTTP sees it (None), or broken, with the evidence in words."""


class AttemptConnection(Protocol):
    """The way of one exchange."""

    def close(self) -> None:
        """Break the exchange off: the egress closes the replica's connection, and the listener hears nothing more."""

    def pause_reading(self) -> None:
        """Let the replica wait: what it sends stays in Envoy's bounded buffers, but for what is under way already."""

    def resume_reading(self) -> None:
        """Take more of the response again."""


class AttemptClient(Protocol):
    """Opens attempts over the egress listener."""

    async def open(self, request: AttemptRequest, listener: AttemptListener) -> AttemptConnection:
        """Send a request; the listener hears the rest.

        Raises OSError where the egress itself can't be reached, and ValueError for a header that could not be sent as one, which
        Envoy lets no client send.
        """
