"""Evidence of one request as a test wants it: an answer that went well, unless it is told otherwise."""

import json
from dataclasses import replace
from typing import Any

from extproc.faults.evidence import (
    AccessLine,
    AttemptEvidence,
    Bounds,
    ClientEvidence,
    Evidence,
    JournalEntry,
    Peer,
    Piece,
    Published,
)
from extproc.sse.dialects import Dialect

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-deltafence-request-id: req_1\r\n"
    b"x-deltafence-attempts: 1\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def data(document: Any) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def delta(text: str, finish: str | None = None) -> bytes:
    return data({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


def chunk(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


WHOLE = [delta("a:0 "), delta("a:1 "), delta("", "stop"), DONE]


def client(*pieces: bytes, begin: float = 10.0, step: float = 1.0, **fields: Any) -> ClientEvidence:
    """Pieces that arrive one second after another, from ``begin`` + 1 on; then the connection's proper end."""
    arrived = tuple(Piece(at=begin + step * number, data=piece) for number, piece in enumerate(pieces, start=1))
    own: dict[str, Any] = {"left_at": None, "closed_at": begin + step * (len(pieces) + 1), "peer": Peer.FIN, "wall_offset_s": 0.0}
    return ClientEvidence(sent_at=begin, pieces=arrived, **(own | fields))


def streamed(*events: bytes, **fields: Any) -> ClientEvidence:
    return client(HEAD, *map(chunk, events), END, **fields)


def attempt(replica: str = "a", **fields: Any) -> AttemptEvidence:
    own: dict[str, Any] = {
        "request_id": "req_1",
        "attempt_id": f"att_{replica}",
        "received_at": 10.5,
        "slot_taken_at": 10.5,
        "slot_freed_at": 14.0,
        "ended_at": 14.0,
        "ended": "finished",
        "status": 200,
        "fault": "mid_decode:slow",
        "published": (
            Published(at=11.0, kind="delta", size=1, text=f"{replica}:0 "),
            Published(at=12.0, kind="delta", size=1, text=f"{replica}:1 "),
        ),
        "tool_calls": 0,
    }
    return AttemptEvidence(replica=replica, **(own | fields))


def entry(
    kind: str, at_ms: int = 10_000, attempt_id: str | None = None, replica: str | None = None, **detail: Any
) -> JournalEntry:
    return JournalEntry(kind=kind, at_ms=at_ms, attempt_id=attempt_id, replica=replica, detail=detail)


JOURNAL = (
    entry("admitted"),
    entry("attempt_started", attempt_id="att_a", replica="1.1.1.1:1", number=1, retry_budget=1.0),
    entry("first_delta_sent", 11_500, "att_a", "1.1.1.1:1"),
    entry(
        "ended",
        14_000,
        outcome="completed",
        reason="finished",
        delivered_output_tokens=2,
        delivered_output_tokens_source="counted",
    ),
)
FRONT = AccessLine(
    listener="front",
    request_id="req_1",
    attempt_id="att_a",
    status=200,
    flags="-",
    details=None,
    outcome="completed",
    attempts=1,
    delivered_output_tokens=2,
)


def evidence(**fields: Any) -> Evidence:
    own: dict[str, Any] = {
        "key": "slow.chat.stream.mid_decode-1.1",
        "name": "slow.chat.stream.mid_decode-1.1~1",
        "api": Dialect.CHAT,
        "stream": True,
        "tokens": 2,
        "client": streamed(*WHOLE),
        "attempts": (attempt(),),
        "access": (FRONT, replace(FRONT, listener="egress", outcome=None)),
        "journal": JOURNAL,
        "tool": (),
        "bounds": Bounds(attempts_max=2, over_within_s=5),
    }
    return Evidence(**(own | fields))
