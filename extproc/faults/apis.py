"""One small request for each API, and where its answer keeps the text."""

import json
from collections.abc import Mapping
from typing import Any, Final

from extproc.sse.dialects import GENERATION_PATHS, Dialect

PATHS: Final[Mapping[Dialect, str]] = {dialect: path for path, dialect in GENERATION_PATHS.items()}
QUESTION: Final = "Tell me which replica you are."
_CHAT: Final = [{"role": "user", "content": QUESTION}]
_BODIES: Final[Mapping[Dialect, Mapping[str, Any]]] = {
    Dialect.CHAT: {"messages": _CHAT},
    Dialect.COMPLETIONS: {"prompt": QUESTION, "max_tokens": 100},
    Dialect.RESPONSES: {"input": QUESTION},
    Dialect.MESSAGES: {"messages": _CHAT, "max_tokens": 100},
}


def request_body(dialect: Dialect, *, model: str, stream: bool, **more: object) -> bytes:
    """A valid request of an API; ``more`` are further fields of its JSON."""
    return json.dumps({"model": model, "stream": stream, **_BODIES[dialect], **more}).encode()


def streamed_text(dialect: Dialect, events: list[Any]) -> str:
    """The text of a stream's events (their decoded data)."""
    return "".join(delta_text(dialect, event) for event in events if isinstance(event, dict))


def whole_text(dialect: Dialect, answer: Any) -> str:  # noqa: ANN401  (JSON)
    """The text of an answer that was not streamed."""
    match dialect:
        case Dialect.CHAT:
            return str(answer["choices"][0]["message"]["content"])
        case Dialect.COMPLETIONS:
            return str(answer["choices"][0]["text"])
        case Dialect.RESPONSES:
            return "".join(part["text"] for item in answer["output"] for part in item["content"])
        case Dialect.MESSAGES:
            return "".join(str(block["text"]) for block in answer["content"])


def delta_text(dialect: Dialect, event: dict[str, Any]) -> str:
    """The text that one event of a stream adds."""
    match dialect:
        case Dialect.CHAT:
            return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
        case Dialect.COMPLETIONS:
            return "".join(choice["text"] for choice in event.get("choices", ()))
        case Dialect.RESPONSES:
            return str(event["delta"]) if event.get("type") == "response.output_text.delta" else ""
        case Dialect.MESSAGES:
            return str(event["delta"].get("text", "")) if event.get("type") == "content_block_delta" else ""
