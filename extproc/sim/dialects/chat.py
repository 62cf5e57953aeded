"""/v1/chat/completions."""

from extproc.sim.dialects.writer import DONE, Event, EventKind, Json, Writer, data_event, error_object
from extproc.sim.script import FinishReason, Piece, Stop, Text, ToolArguments, ToolStart


class ChatWriter(Writer):
    """Role-only chunks with the first token; a length finish rides on the last text, a stop has an empty delta (FC-05)."""

    def started(self) -> list[Event]:
        delta: Json = {"role": "assistant", "content": ""}
        return [self._chunk(EventKind.ROLE, choice, delta, tokens=0) for choice in range(self.request.choices)]

    def piece(self, choice: int, piece: Piece, finish: FinishReason | None) -> list[Event]:
        if finish is None:
            return [self._chunk(EventKind.DELTA, choice, self._delta(piece), text=piece.text)]
        fields: Json = {"finish_reason": self._reason(finish), "stop_reason": None, "token_ids": None}
        return [self._chunk(EventKind.FINISH, choice, self._delta(piece), fields, text=piece.text)]

    def usage(self) -> list[Event]:
        if not self.request.include_usage:
            return []
        return [data_event(EventKind.USAGE, self._envelope("chat.completion.chunk", [], usage=self.answer.usage()))]

    def done(self) -> list[Event]:
        return [DONE]

    def error(self, message: str) -> list[Event]:
        return [data_event(EventKind.ERROR, {"error": error_object(500, message)}), DONE]

    def body(self, finish: FinishReason) -> Json:
        choices = [
            {
                "index": choice,
                "message": self._message(choice),
                "logprobs": None,
                "finish_reason": self._reason(finish),
                "stop_reason": None,
                "token_ids": None,
            }
            for choice in range(self.request.choices)
        ]
        return self._envelope("chat.completion", choices, service_tier=None, system_fingerprint=None, usage=self.answer.usage())

    def _envelope(self, kind: str, choices: list[Json], **more: object) -> Json:
        return {
            "id": f"chatcmpl-{self.answer.id}",
            "object": kind,
            "created": self.answer.created,
            "model": self.request.model,
            "choices": choices,
            **more,
        }

    def _chunk(
        self, kind: EventKind, choice: int, delta: Json, fields: Json | None = None, *, text: str = "", tokens: int | None = None
    ) -> Event:
        entry = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None, **(fields or {})}
        more: Json = {}
        if self.request.usage_everywhere:
            computed = len(self.answer.pieces[choice]) if tokens is None else tokens
            prompt = self.request.prompt_tokens
            more["usage"] = {"prompt_tokens": prompt, "total_tokens": prompt + computed, "completion_tokens": computed}
        return data_event(kind, self._envelope("chat.completion.chunk", [entry], **more), text)

    def _delta(self, piece: Piece) -> Json:
        match piece:
            case ToolStart(name=name, call_id=call_id):
                call = {"id": call_id, "type": "function", "index": 0, "function": {"name": name, "arguments": ""}}
                return {"tool_calls": [call]}
            case ToolArguments(text=text):
                return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
            case Stop() if self.request.tool is not None:
                return {}
            case Text() | Stop():
                return {"content": piece.text}

    def _reason(self, finish: FinishReason) -> str:
        is_tool_call = self.request.tool is not None and not self.request.tool_is_named
        return "tool_calls" if is_tool_call and finish is FinishReason.STOP else str(finish)

    def _message(self, choice: int) -> Json:
        pieces = self.answer.pieces[choice]
        calls = [
            {"id": piece.call_id, "type": "function", "function": {"name": piece.name, "arguments": self.answer.text(choice)}}
            for piece in pieces
            if isinstance(piece, ToolStart)
        ]
        return {
            "role": "assistant",
            "content": None if calls else self.answer.text(choice),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": calls,
            "reasoning": None,
        }
