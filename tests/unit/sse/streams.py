"""Streams as vLLM 0.32 writes them, and a way to read one to its end.

``R``, ``T``, ``F``, ``E``, ``D`` are the shorthand of the public case list that these tests are named after.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from extproc.sse.reading import Dialect, Ending, StreamReader, UpstreamError

CHAT_ID = "chatcmpl-9f0c2d1e4b5a4f0e8d7c6b5a49382716"


def data(payload: object) -> bytes:
    return b"data: " + json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def named(name: str, payload: object) -> bytes:
    return b"event: " + name.encode() + b"\n" + data(payload)


def typed(payload: dict[str, Any]) -> bytes:
    """An event of the two APIs that write the payload's type as the event's name too."""
    return named(payload["type"], payload)


def chat(delta: dict[str, Any] | None, finish_reason: str | None = None, index: int = 0, **choice: Any) -> bytes:
    said = {} if delta is None else {"delta": delta}
    return chat_chunk([{"index": index, **said, "logprobs": None, "finish_reason": finish_reason, **choice}])


def chat_chunk(choices: list[Any], **fields: Any) -> bytes:
    return data(
        {"id": CHAT_ID, "object": "chat.completion.chunk", "created": 1764460800, "model": "m", "choices": choices, **fields}
    )


def completion(text: str, finish_reason: str | None = None, index: int = 0, **choice: Any) -> bytes:
    fields = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    return data(
        {"id": "cmpl-1", "object": "text_completion", "created": 1764460800, "model": "m", "choices": [{**fields, **choice}]}
    )


def T(text: str) -> bytes:  # noqa: N802
    return chat({"content": text}, token_ids=None)


def F(reason: str) -> bytes:  # noqa: N802
    return chat({"content": ""}, reason, stop_reason=None, token_ids=None)


def usage(completion_tokens: int) -> bytes:
    counts = {"prompt_tokens": 12, "total_tokens": 12 + completion_tokens, "completion_tokens": completion_tokens}
    return chat_chunk([], usage=counts)


R = chat({"role": "assistant", "content": ""})
E = data({"error": {"message": "boom", "type": "InternalServerError", "param": None, "code": 500}})
D = b"data: [DONE]\n\n"
PING = b": keep-alive\n\n"

CHAT_STREAM = R + T("Hel") + T("lo 北") + F("stop") + usage(3) + D
CHAT_TOOL_STREAM = (
    R
    + chat({"tool_calls": [{"id": "call_1", "type": "function", "index": 0, "function": {"name": "run", "arguments": ""}}]})
    + chat({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]})
    + chat({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]})
    + chat({"content": ""}, "tool_calls")
    + D
)
COMPLETIONS_STREAM = completion("Hel") + completion("lo") + completion("", "stop") + D


def message_start() -> bytes:
    message = {"id": CHAT_ID, "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None}
    return typed({"type": "message_start", "message": {**message, "usage": {"input_tokens": 12, "output_tokens": 1}}})


def block_start(block: dict[str, Any], index: int = 0) -> bytes:
    return typed({"type": "content_block_start", "index": index, "content_block": block})


def block_delta(delta: dict[str, Any], index: int = 0) -> bytes:
    return typed({"type": "content_block_delta", "index": index, "delta": delta})


def text_delta(text: str) -> bytes:
    return block_delta({"type": "text_delta", "text": text})


def block_stop(index: int = 0) -> bytes:
    return typed({"type": "content_block_stop", "index": index})


def message_delta(stop_reason: str | None, output_tokens: int = 3) -> bytes:
    return typed(
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": None},
            "usage": {"input_tokens": 12, "output_tokens": output_tokens},
        }
    )


MESSAGE_STOP = typed({"type": "message_stop"})
TEXT_BLOCK = block_start({"type": "text", "text": ""})
MESSAGES_STREAM = (
    message_start() + TEXT_BLOCK + text_delta("Hel") + text_delta("lo") + block_stop() + message_delta("end_turn") + MESSAGE_STOP
)


def response_event(kind: str, sequence_number: int, **fields: Any) -> bytes:
    return typed({**fields, "sequence_number": sequence_number, "type": kind})


def response_object(status: str, **fields: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "model": "m", "status": status, "output": [], "error": None, **fields}


def response_text(text: str, sequence_number: int) -> bytes:
    position = {"content_index": 0, "output_index": 0, "item_id": "msg_1"}
    return response_event("response.output_text.delta", sequence_number, delta=text, logprobs=[], **position)


def response_completed(sequence_number: int, status: str = "completed", **fields: Any) -> bytes:
    counts = {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15}
    return response_event("response.completed", sequence_number, response=response_object(status, **{"usage": counts, **fields}))


MESSAGE_ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "status": "in_progress"}
RESPONSES_OPENING = (
    response_event("response.created", 0, response=response_object("in_progress", usage=None))
    + response_event("response.in_progress", 1, response=response_object("in_progress", usage=None))
    + response_event("response.output_item.added", 2, output_index=0, item=MESSAGE_ITEM)
    + response_event("response.content_part.added", 3, output_index=0, part={"type": "output_text", "text": ""})
)
RESPONSES_STREAM = (
    RESPONSES_OPENING
    + response_text("Hel", 4)
    + response_text("lo", 5)
    + response_event("response.output_text.done", 6, output_index=0, text="Hello")
    + response_completed(7)
)

WHOLE_STREAMS = {
    Dialect.CHAT: CHAT_STREAM,
    Dialect.COMPLETIONS: COMPLETIONS_STREAM,
    Dialect.MESSAGES: MESSAGES_STREAM,
    Dialect.RESPONSES: RESPONSES_STREAM,
}

WHOLE_ANSWER = {
    **response_object("completed", incomplete_details={"reason": "max_output_tokens"}),
    "choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop", "logprobs": {"content": [{}]}}],
    "stop_reason": "end_turn",
    "usage": {"completion_tokens": 3, "output_tokens": 3},
}
"""Every field that a whole answer of any dialect is read for."""


@dataclass(frozen=True)
class Outcome:
    """Everything that a stream amounted to."""

    forward: bytes
    content: bool
    tokens: int
    usage_tokens: int | None
    ending: Ending | None
    error: UpstreamError | None
    last: bool
    finished: bool
    delivered_tokens: int
    token_source: str
    next_sequence_number: int


def read(chunks: bytes | Iterable[bytes], dialect: Dialect = Dialect.CHAT, **options: int) -> Outcome:
    """Feed ``chunks`` and then the stream's end."""
    reader = StreamReader(dialect, **options)
    batches = [reader.feed(chunk) for chunk in ([chunks] if isinstance(chunks, bytes) else chunks)]
    batches.append(reader.end())
    end = batches[-1]
    return Outcome(
        forward=b"".join(batch.forward for batch in batches),
        content=any(batch.content for batch in batches),
        tokens=sum(batch.tokens for batch in batches),
        usage_tokens=end.usage_tokens,
        ending=end.ending,
        error=end.error,
        last=end.last,
        finished=reader.finished,
        delivered_tokens=reader.delivered_tokens,
        token_source=reader.token_source,
        next_sequence_number=reader.next_sequence_number,
    )
