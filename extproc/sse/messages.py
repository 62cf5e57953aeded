"""/v1/messages: the events of one message, as Anthropic defines them and vLLM writes them."""

from typing import Final

from extproc.sse.facts import NOTHING, ONE_TOKEN, Answer, Ending, Payload, Reading, bad_ending, carries, token_count

_DELTA: Final = ("text", "thinking", "partial_json")
_BLOCK: Final = ("text", "thinking", "data", "name", "content")
"""A text or thinking block opens empty; a tool_use block opens with its id and name, which is content (CASES ID-01)."""

_WHOLE: Final = Reading(ending=Ending.FINISHED, last=True)
_UNPROVED: Final = Reading(ending=Ending.DONE_WITHOUT_FINISH, last=True)


class MessageAnswer(Answer):
    """One message. Where the engine's reason was no finish, vLLM has ``stop_reason: null`` and ``message_stop`` all the same."""

    def read(self, payload: Payload) -> Reading:
        match payload.get("type"):
            case "content_block_delta":
                return ONE_TOKEN if carries(payload.get("delta"), _DELTA) else NOTHING
            case "content_block_start":
                return ONE_TOKEN if carries(payload.get("content_block"), _BLOCK) else NOTHING
            case "message_delta":
                return self._read_message_delta(payload)
            case "message_stop":
                return _WHOLE if self.finished else _UNPROVED
        # message_start is here on purpose: the output tokens in its usage are a placeholder.
        return NOTHING

    def _read_message_delta(self, payload: Payload) -> Reading:
        delta = payload.get("delta")
        reason = delta.get("stop_reason") if isinstance(delta, dict) else None
        bad = bad_ending(reason)
        if bad is not None:
            return bad
        self.finished = self.finished or bool(reason)
        return Reading(usage_tokens=token_count(payload.get("usage"), "output_tokens"))
