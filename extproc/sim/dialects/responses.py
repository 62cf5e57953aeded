"""/v1/responses."""

from extproc.sim.dialects.writer import Event, EventKind, Json, Writer, named_event
from extproc.sim.script import FinishReason, Piece, Stop, ToolStart


class ResponsesWriter(Writer):
    """``response.created`` and ``.in_progress`` go out before prefill; the item opens with its first delta; no ``[DONE]``.

    A length finish is ``response.completed`` with the status ``incomplete`` inside, an abort one with ``cancelled``, as in vLLM.
    """

    _sequence_number = 0
    _has_item = False

    def opened(self) -> list[Event]:
        response = self._response("in_progress", output=[], usage=None)
        return [
            self._event(EventKind.OPENED, "response.created", response=response),
            self._event(EventKind.OPENED, "response.in_progress", response=response),
        ]

    def piece(self, choice: int, piece: Piece, finish: FinishReason | None) -> list[Event]:
        events: list[Event] = []
        if not isinstance(piece, Stop) and not self._has_item:
            self._has_item = True
            events += self._item_added(piece)
        if piece.text:
            events.append(self._delta(piece))
        return events if finish is None else events + self._finish(finish)

    def error(self, message: str) -> list[Event]:
        # vLLM has no valid event for this; FC-09 is the shape that was seen on the wire.
        error = {"type": "server_error", "code": None, "message": message, "param": None}
        return [self._event(EventKind.ERROR, "error", error=error)]

    def body(self, finish: FinishReason) -> Json:
        return self._response(*self._status(finish), output=self._output(), usage=self._usage())

    def _event(self, kind: EventKind, event_type: str, said: str = "", **fields: object) -> Event:
        number = self._sequence_number
        self._sequence_number += 1
        return named_event(kind, {"type": event_type, "sequence_number": number, **fields}, said)

    def _item_added(self, piece: Piece) -> list[Event]:
        if isinstance(piece, ToolStart):
            # Names the tool, which is output already (ID-01).
            item = self._call("", status="in_progress")
            return [self._event(EventKind.DELTA, "response.output_item.added", output_index=0, item=item)]
        item = {"id": self._item_id, "type": "message", "role": "assistant", "content": [], "status": "in_progress"}
        return [
            self._event(EventKind.ROLE, "response.output_item.added", output_index=0, item=item),
            self._event(EventKind.ROLE, "response.content_part.added", **self._place, part=self._part("")),
        ]

    def _delta(self, piece: Piece) -> Event:
        if self.request.tool is not None:
            place: Json = {"output_index": 0, "item_id": self._item_id}
            return self._event(EventKind.DELTA, "response.function_call_arguments.delta", piece.text, **place, delta=piece.text)
        return self._event(
            EventKind.DELTA, "response.output_text.delta", piece.text, **self._place, delta=piece.text, logprobs=[]
        )

    def _finish(self, finish: FinishReason) -> list[Event]:
        events: list[Event] = []
        text = self.answer.text()
        if self._has_item and self.request.tool is not None:
            place: Json = {"output_index": 0, "item_id": self._item_id, "name": self.request.tool}
            events.append(self._event(EventKind.FINISH, "response.function_call_arguments.done", **place, arguments=text))
        elif self._has_item:
            events.append(self._event(EventKind.FINISH, "response.output_text.done", **self._place, text=text, logprobs=[]))
            events.append(self._event(EventKind.FINISH, "response.content_part.done", **self._place, part=self._part(text)))
        events += [
            self._event(EventKind.FINISH, "response.output_item.done", output_index=0, item=item) for item in self._output()
        ]
        return [*events, self._event(EventKind.FINISH, "response.completed", response=self.body(finish))]

    @property
    def _item_id(self) -> str:
        return f"msg_{self.answer.id}"

    @property
    def _place(self) -> Json:
        return {"output_index": 0, "item_id": self._item_id, "content_index": 0}

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _call(self, arguments: str, status: str) -> Json:
        start = self.answer.pieces[0][0]
        assert isinstance(start, ToolStart)
        return {
            "id": self._item_id,
            "type": "function_call",
            "call_id": start.call_id,
            "name": start.name,
            "arguments": arguments,
            "status": status,
        }

    def _output(self) -> list[Json]:
        pieces = self.answer.pieces[0]
        text = self.answer.text()
        if pieces and isinstance(pieces[0], ToolStart):
            return [self._call(text, status="completed")]
        if not text:
            return []
        message = {"id": self._item_id, "type": "message", "role": "assistant", "status": "completed"}
        return [message | {"content": [self._part(text)]}]

    def _status(self, finish: FinishReason) -> tuple[str, Json | None]:
        match finish:
            case FinishReason.LENGTH:
                return "incomplete", {"reason": "max_output_tokens"}
            case FinishReason.ABORT:
                return "cancelled", None
            case _:
                return "completed", None

    def _usage(self) -> Json:
        usage = self.answer.usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }

    def _response(self, status: str, incomplete_details: Json | None = None, *, output: list[Json], usage: Json | None) -> Json:
        return {
            "id": f"resp_{self.answer.id}",
            "created_at": self.answer.created,
            "incomplete_details": incomplete_details,
            "instructions": None,
            "metadata": None,
            "model": self.request.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self.request.max_tokens,
            "previous_response_id": None,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": usage,
        }
