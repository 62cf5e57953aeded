"""Who is told what happens to requests: logs, metrics, traces, the status page. Told, never asked: nothing here decides."""

from collections.abc import Sequence
from typing import Final, Protocol

from extproc.contract.errors import ErrorCode
from extproc.journal.records import JournalEvent


class Observer(Protocol):
    """Called on the event loop, once per transition and never per delta; must neither wait nor raise."""

    def saw(self, event: JournalEvent) -> None:
        """The journal has taken this event."""

    def turned_away(self, *, request_id: str, api: str, code: ErrorCode) -> None:
        """A request was answered before it was admitted, so the journal does not know it."""

    def attempt_headers(self, attempt_id: str) -> Sequence[tuple[str, str]]:
        """Headers that join the attempt to its request's trace (W3C Trace Context); they replace the client's of that name.

        Asked once, after the attempt's ATTEMPT_STARTED was seen. Empty: the client's own go on unchanged.
        """


class Unobserved:
    """Nobody is told."""

    def saw(self, event: JournalEvent) -> None:
        """Nothing."""

    def turned_away(self, *, request_id: str, api: str, code: ErrorCode) -> None:
        """Nothing."""

    def attempt_headers(self, attempt_id: str) -> Sequence[tuple[str, str]]:
        """None."""
        return ()


UNOBSERVED: Final = Unobserved()
