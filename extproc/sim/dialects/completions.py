"""/v1/completions."""

from extproc.sim.dialects.writer import DONE, Event, EventKind, Json, Writer, data_event, error_object
from extproc.sim.script import FinishReason, Piece


class CompletionsWriter(Writer):
    """No role chunk: the first event of this API is content."""

    def piece(self, choice: int, piece: Piece, finish: FinishReason | None) -> list[Event]:
        kind = EventKind.DELTA if finish is None else EventKind.FINISH
        entry = self._choice(choice, piece.text, finish)
        more: Json = {}
        if self.request.usage_everywhere:
            prompt, computed = self.request.prompt_tokens, len(self.answer.pieces[choice])
            more["usage"] = {"prompt_tokens": prompt, "total_tokens": prompt + computed, "completion_tokens": computed}
        return [data_event(kind, self._envelope([entry], **more), piece.text)]

    def usage(self) -> list[Event]:
        if not self.request.include_usage:
            return []
        return [data_event(EventKind.USAGE, self._envelope([], usage=self.answer.usage()))]

    def done(self) -> list[Event]:
        return [DONE]

    def error(self, message: str) -> list[Event]:
        return [data_event(EventKind.ERROR, {"error": error_object(500, message)}), DONE]

    def body(self, finish: FinishReason) -> Json:
        choices = [
            self._choice(choice, self.answer.text(choice), finish) | {"prompt_logprobs": None, "prompt_token_ids": None}
            for choice in range(self.request.choices)
        ]
        return self._envelope(choices, service_tier=None, system_fingerprint=None, usage=self.answer.usage())

    def _choice(self, choice: int, text: str, finish: FinishReason | None) -> Json:
        return {
            "index": choice,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": None,
        }

    def _envelope(self, choices: list[Json], **more: object) -> Json:
        return {
            "id": f"cmpl-{self.answer.id}",
            "object": "text_completion",
            "created": self.answer.created,
            "model": self.request.model,
            "choices": choices,
            **more,
        }
