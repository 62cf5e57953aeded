"""The one chunk that nearly every chunk of a running stream is: one event, one choice, one token of text, no news.

Parsing it would tell nothing that these bytes don't: see ``is_plain_delta``. Whatever fails the test takes the ordinary way, so
the test may refuse anything; it must only never accept a chunk that the ordinary way reads differently.
"""

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


def count_plain_deltas(chunk: bytes, opening: bytes) -> int:
    """How many plain deltas a chunk that begins at an event's beginning is made of; 0 where any of it is something else.

    Several come in one read when the machine is busy. What is between two blank lines is an event, as no CR is in it.
    """
    if is_plain_delta(chunk, opening):
        return 1
    *events, rest = chunk.split(b"\n\n")
    if rest or len(events) < 2:
        return 0
    return len(events) if all(is_plain_delta(event + b"\n\n", opening) for event in events) else 0
