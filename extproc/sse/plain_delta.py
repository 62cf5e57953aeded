"""The one chunk that nearly every chunk of a running stream is: one event, one choice, one token of text, no news.

Parsing it would tell nothing that these bytes don't: see ``is_plain_delta``. Whatever fails the test takes the ordinary way, so
the test may refuse anything; it must only never accept a chunk that the ordinary way reads differently.
"""

import re
from typing import Final

from extproc.sse.dialects import Dialect

OPENINGS: Final[dict[Dialect, bytes]] = {
    Dialect.CHAT: b'"choices":[{"index":0,"delta":{"content":"',
    Dialect.COMPLETIONS: b'"choices":[{"index":0,"text":"',
}
"""What stands before the text in vLLM's chunks. The other two dialects have none: their events are told apart by type."""
CLOSINGS: Final = tuple(
    b'"finish_reason":null' + rest + b"}]}\n\n"
    for rest in (b"", b',"token_ids":null', b',"stop_reason":null', b',"stop_reason":null,"token_ids":null')
)
"""What stands after it, by version and API."""
_SIMPLE_TEXT: Final = re.compile(rb'[^"\\\x00-\x1f]+')


def is_plain_delta(chunk: bytes, opening: bytes) -> bool:
    """Whether a chunk that begins at an event's beginning is one event whose only choice, number 0, adds one text token.

    Why bytes are enough. Inside a JSON string a quote is escaped, so ``"name":`` with bare quotes is a member's name wherever it
    stands. The event is one line (two LF, no CR) and ends in one of CLOSINGS, so that ``finish_reason`` is a member of the last
    choice and null, and with one ``"finish_reason"`` in all there is only one choice. ``opening`` makes it number 0 and its
    text the first member; the byte after it is no quote, so the text is not empty. None of the names that count otherwise occurs.
    A payload that isn't JSON after all is forwarded unread on the ordinary way too.
    """
    if not chunk.startswith(b"data: {") or not chunk.endswith(CLOSINGS):
        return False
    text = chunk.find(opening) + len(opening)
    return (
        text > len(opening)
        and chunk[text] != 0x22
        and chunk.count(b"\n") == 2
        and b"\r" not in chunk
        and chunk.count(b'"finish_reason"') == 1
        and b'"error"' not in chunk
        and b'"token_ids":[' not in chunk
        and b'"logprobs":{' not in chunk
        and b'"usage"' not in chunk
    )


class PlainDeltas:
    """Knows the plain deltas of one stream. They differ in their texts alone, so what is around the text is learned from one
    that has passed ``is_plain_delta``, and the next ones are compared with that: a fifth of the work.

    A text without quotes, escapes and control characters can't end early or hide a member, so a chunk of the learned shape is
    read by the ordinary way as the one was from which the shape comes.
    """

    __slots__ = ("_after", "_before", "_opening")

    def __init__(self, opening: bytes) -> None:
        self._opening = opening
        self._before = b""
        self._after = b""

    def count(self, chunk: bytes) -> int:
        """How many plain deltas a chunk that begins at an event's beginning is made of; 0 where any of it is something else.

        Several come in one read when the machine is busy. What is between two blank lines is an event, as no CR is in it.
        """
        if self._is_one(chunk):
            return 1
        *events, rest = chunk.split(b"\n\n")
        if rest or len(events) < 2:
            return 0
        return len(events) if all(self._is_one(event + b"\n\n") for event in events) else 0

    def _is_one(self, chunk: bytes) -> bool:
        if (
            self._before
            and chunk.startswith(self._before)
            and chunk.endswith(self._after)
            # A chunk too short for both has no text between them, which is no match either.
            and _SIMPLE_TEXT.fullmatch(chunk, len(self._before), len(chunk) - len(self._after))
        ):
            return True
        if not is_plain_delta(chunk, self._opening):
            return False
        self._learn(chunk)
        return True

    def _learn(self, chunk: bytes) -> None:
        start = chunk.index(self._opening) + len(self._opening)
        end = chunk.index(b'"', start)
        if _SIMPLE_TEXT.fullmatch(chunk, start, end):
            self._before, self._after = chunk[:start], chunk[end:]
