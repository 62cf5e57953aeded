"""What the toy model says: its own name, counted, so that a reader of an answer knows which replica gave it."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.sim.reading import GenerationRequest


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    name: str
    call_id: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A fragment of the arguments' JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The end-of-sequence token: counted in the usage, without text."""

    text: str = ""


Piece = Text | ToolStart | ToolArguments | Stop
"""What one token adds to an answer."""


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step: a piece for every choice, and why the answer ends with it."""

    pieces: tuple[Piece, ...]
    finish: FinishReason | None


TOOL_CALL_ID_FORMAT: Final = "chatcmpl-tool-{choice}"


def script(request: GenerationRequest, *, name: str, tokens: int, max_model_len: int) -> Iterator[Step]:
    """The steps of an answer of ``tokens`` text tokens and the end-of-sequence token, cut at the request's ``max_tokens``.

    With ``ignore_eos`` it runs to ``max_tokens``. Choice 0 says ``r1:0 r1:1 ...``, choice 1 ``r1/1:0 r1/1:1 ...``.
    """
    room = max(1, max_model_len - request.prompt_tokens)
    limit = min(request.max_tokens or room, room)
    natural = limit if request.ignore_eos else tokens
    for number in range(min(limit, natural + 1)):
        at_end = number == natural and not request.ignore_eos
        pieces = tuple(_piece(request, name, choice, number, natural, at_end=at_end) for choice in range(request.choices))
        finish = FinishReason.STOP if at_end else FinishReason.LENGTH if number == limit - 1 else None
        yield Step(pieces, finish)


def _piece(request: GenerationRequest, name: str, choice: int, number: int, natural: int, *, at_end: bool) -> Piece:
    voice = name if choice == 0 else f"{name}/{choice}"
    if at_end:
        return Stop()
    if request.tool is None:
        return Text(f"{voice}:{number} ")
    if number == 0:
        return ToolStart(request.tool, TOOL_CALL_ID_FORMAT.format(choice=f"{name}-{choice}"))
    opening = '{"answer": "' if number == 1 else ""
    closing = '"}' if number == natural - 1 else ""
    return ToolArguments(f"{opening}{voice}:{number} {closing}")
