"""How a stream that did not finish is told, in the words of its evidence."""

from typing import Final

from extproc.sse.facts import Ending

BAD_ENDINGS: Final[dict[Ending, str]] = {
    Ending.ERROR: "the replica reported an error in the stream",
    Ending.ABORTED: "the replica aborted the request",
    Ending.DONE_WITHOUT_FINISH: "the stream was closed with [DONE] and no finish before it",
    Ending.MALFORMED: "the replica sent an event that is not JSON",
}
EVENT_TOO_LARGE: Final = "event_too_large"
"""The type under which StreamReader.feed reports its own limit; a second copy of such an event would be as large."""
