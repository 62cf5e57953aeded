"""What all writers share: events, the answer's identity and growth, error bodies."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from extproc.sim.reading import Api, GenerationRequest
from extproc.sim.script import FinishReason, Piece, Stop

Json = dict[str, Any]


class EventKind(StrEnum):
    """What a chunk of a body is, in /sim/log."""

    OPENED = "opened"
    ROLE = "role"
    DELTA = "delta"
    FINISH = "finish"
    USAGE = "usage"
    DONE = "done"
    ERROR = "error"
    GARBAGE = "garbage"
    FRAGMENT = "fragment"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Event:
    """One chunk of a body: one SSE event, a part of one, or a whole JSON body."""

    kind: EventKind
    data: bytes
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Answer:
    """One answer as it grows."""

    request: GenerationRequest
    id: str
    """A hexadecimal id or the client's x-request-id; each API puts its own prefix before it."""
    created: int
    pieces: list[list[Piece]] = field(init=False)
    """For each choice, what was computed so far."""

    def __post_init__(self) -> None:
        self.pieces = [[] for _ in range(self.request.choices)]

    @property
    def completion_tokens(self) -> int:
        return sum(map(len, self.pieces))

    def text(self, choice: int = 0) -> str:
        return "".join(piece.text for piece in self.pieces[choice])

    def usage(self) -> Json:
        prompt = self.request.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }


class Writer(ABC):
    """Writes one answer. The calls come in the order of the methods; ``error`` may come at any point and ends the stream."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.request = answer.request

    def opened(self) -> list[Event]:
        """Sent with the headers, before prefill."""
        return []

    def started(self) -> list[Event]:
        """Sent with the first token, before its own event."""
        return []

    @abstractmethod
    def piece(self, choice: int, piece: Piece, finish: FinishReason | None) -> list[Event]:
        """One choice's new piece, which the answer already holds; with ``finish``, also that choice's finish."""

    def usage(self) -> list[Event]:
        return []

    def done(self) -> list[Event]:
        return []

    @abstractmethod
    def error(self, message: str) -> list[Event]:
        """The in-band error of a failed engine."""

    @abstractmethod
    def body(self, finish: FinishReason) -> Json:
        """The whole answer, not streamed."""

    def finish_now(self, finish: FinishReason) -> list[Event]:
        """A finish without a token, as for an abort."""
        return [event for choice in range(self.request.choices) for event in self.piece(choice, Stop(), finish)]


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)  # json.dumps would make one for each event


def encode_json(document: Any) -> bytes:  # noqa: ANN401  (any JSON)
    return _ENCODER.encode(document).encode()


def data_event(kind: EventKind, document: Json, text: str = "") -> Event:
    return Event(kind, b"data: " + encode_json(document) + b"\n\n", text)


def named_event(kind: EventKind, document: Json, text: str = "") -> Event:
    """An event whose ``event:`` line repeats the document's type, as responses and messages have it."""
    return Event(kind, b"event: " + document["type"].encode() + b"\ndata: " + encode_json(document) + b"\n\n", text)


DONE: Final = Event(EventKind.DONE, b"data: [DONE]\n\n")

ERROR_TYPES: Final[Mapping[int, str]] = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "TooManyRequestsError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


def error_object(status: int, message: str, param: str | None = None) -> Json:
    return {"message": message, "type": ERROR_TYPES.get(status, "InternalServerError"), "param": param, "code": status}


def error_body(api: Api, status: int, message: str, param: str | None = None) -> Json:
    """The JSON body of an error status."""
    if api is Api.MESSAGES:
        return {"type": "error", "error": {"type": ERROR_TYPES.get(status, "internal_error"), "message": message}}
    return {"error": error_object(status, message, param)}
