"""/v1/messages, which vLLM makes out of its own chat stream."""

import json
from typing import Final

from extproc.sim.dialects.writer import Event, EventKind, Json, Writer, named_event
from extproc.sim.script import FinishReason, Piece, Stop, ToolArguments, ToolStart

STOP_REASONS: Final = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens"}
"""Any other finish, such as ``abort``, gives a null stop reason and an ordinary-looking end."""

CHAT_CHUNK_NOT_VALID: Final = (
    "2 validation errors for ChatCompletionStreamResponse: model: Field required, choices: Field required"
)
"""What vLLM really says here: it reads the chat stream's error as a chunk and reports why it is none (ERR-07)."""


class MessagesWriter(Writer):
    """``message_start`` with the first token; the content block opens with the first text; no ``[DONE]``."""

    _has_block = False

    def started(self) -> list[Event]:
        message: Json = {
            "id": f"chatcmpl-{self.answer.id}",
            "content": [],
            "model": self.request.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self.request.prompt_tokens, "output_tokens": 0},
        }
        return [named_event(EventKind.ROLE, {"type": "message_start", "message": message})]

    def piece(self, choice: int, piece: Piece, finish: FinishReason | None) -> list[Event]:
        events: list[Event] = []
        if not isinstance(piece, Stop) and not self._has_block:
            self._has_block = True
            start = {"type": "content_block_start", "index": 0, "content_block": self._block(piece)}
            # A text block's start is empty; a tool's start names the tool, which is output already (ID-01).
            kind = EventKind.DELTA if isinstance(piece, ToolStart) else EventKind.ROLE
            events.append(named_event(kind, start))
        if piece.text:
            delta = {"type": "content_block_delta", "index": 0, "delta": self._delta(piece)}
            events.append(named_event(EventKind.DELTA, delta, piece.text))
        return events if finish is None else events + self._finish(finish)

    def done(self) -> list[Event]:
        return [named_event(EventKind.DONE, {"type": "message_stop"})]

    def error(self, message: str) -> list[Event]:
        error = {"type": "internal_error", "message": CHAT_CHUNK_NOT_VALID}
        return [named_event(EventKind.ERROR, {"type": "error", "error": error})]

    def body(self, finish: FinishReason) -> Json:
        pieces = self.answer.pieces[0]
        first = pieces[0] if pieces else Stop()
        blocks: list[Json] = []
        if isinstance(first, ToolStart):
            blocks.append(self._block(first) | {"input": self._input()})
        elif self.answer.text():
            blocks.append({"type": "text", "text": self.answer.text()})
        return {
            "id": f"chatcmpl-{self.answer.id}",
            "type": "message",
            "role": "assistant",
            "content": blocks,
            "model": self.request.model,
            "stop_reason": self._stop_reason(finish),
            "stop_sequence": None,
            "usage": {"input_tokens": self.request.prompt_tokens, "output_tokens": self.answer.completion_tokens},
        }

    def _finish(self, finish: FinishReason) -> list[Event]:
        usage = {"input_tokens": self.request.prompt_tokens, "output_tokens": self.answer.completion_tokens}
        delta = {"type": "message_delta", "delta": {"stop_reason": self._stop_reason(finish)}, "usage": usage}
        events = [named_event(EventKind.FINISH, delta)]
        if self._has_block:
            events.insert(0, named_event(EventKind.FINISH, {"type": "content_block_stop", "index": 0}))
        return events

    def _stop_reason(self, finish: FinishReason) -> str | None:
        if self.request.tool is not None and finish is FinishReason.STOP:
            return "tool_use"
        return STOP_REASONS.get(finish)

    def _block(self, piece: Piece) -> Json:
        if isinstance(piece, ToolStart):
            return {"type": "tool_use", "id": piece.call_id, "name": piece.name, "input": {}}
        return {"type": "text", "text": ""}

    def _delta(self, piece: Piece) -> Json:
        if isinstance(piece, ToolArguments):
            return {"type": "input_json_delta", "partial_json": piece.text}
        return {"type": "text_delta", "text": piece.text}

    def _input(self) -> Json:
        try:
            arguments: Json = json.loads(self.answer.text())
        except ValueError:
            return {}  # cut by max_tokens
        return arguments
