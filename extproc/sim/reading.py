"""Requests of the four APIs, read into one shape."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

TOOL_MARK: Final = b'"sim_tool"'
"""A body with this in it makes the replica act as an agent would: it calls its tool URL before it computes a token."""


class Api(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


PATHS: Final = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.RESPONSES: "/v1/responses",
    Api.MESSAGES: "/v1/messages",
}
PROMPT_FIELD: Final = {Api.CHAT: "messages", Api.COMPLETIONS: "prompt", Api.RESPONSES: "input", Api.MESSAGES: "messages"}
COMPLETIONS_MAX_TOKENS_DEFAULT: Final = 16
"""vLLM's and OpenAI's default for /v1/completions; the other three default to what the model can hold."""


class RequestError(Exception):
    """A request that is answered with an error before anything runs."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What a client asks for, whatever API it uses."""

    api: Api
    model: str
    stream: bool
    prompt: str
    choices: int
    max_tokens: int | None
    ignore_eos: bool
    tool: str | None
    """The tool that the model calls instead of answering with text."""
    tool_is_named: bool
    """``tool_choice`` names it: then chat's finish reason is ``stop``, as in vLLM."""
    include_usage: bool
    usage_everywhere: bool
    calls_tool_url: bool

    @property
    def prompt_tokens(self) -> int:
        return len(tokenize(self.prompt))


def tokenize(text: str) -> list[int]:
    """The toy tokenizer: a word is a token, its id is its length."""
    return [len(word) for word in text.split()] or [0]


def read_request(api: Api, body: bytes, *, default_model: str) -> GenerationRequest:
    """Raises RequestError (400) where vLLM would refuse the body."""
    try:
        document = json.loads(body)
    except ValueError as error:
        raise RequestError(400, f"Invalid JSON: {error}") from error
    field = PROMPT_FIELD[api]
    if not isinstance(document, dict) or not isinstance(document.get(field), (str, list)):
        raise RequestError(400, f"Field required: {field}", param=field)
    prompts = document["prompt"] if api is Api.COMPLETIONS and _is_batch(document["prompt"]) else [document[field]]
    tool, tool_is_named = _read_tool(document)
    options = document.get("stream_options") or {}
    return GenerationRequest(
        api=api,
        model=document.get("model") or default_model,
        stream=bool(document.get("stream")),
        prompt=" ".join([_text(document.get("system")), _text(document.get("instructions")), *map(_text, prompts)]).strip(),
        choices=len(prompts) * (document.get("n") or 1) if api in (Api.CHAT, Api.COMPLETIONS) else 1,
        max_tokens=_read_max_tokens(api, document),
        ignore_eos=bool(document.get("ignore_eos")),
        tool=tool,
        tool_is_named=tool_is_named,
        include_usage=bool(options.get("include_usage")),
        usage_everywhere=bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        calls_tool_url=TOOL_MARK in body,
    )


def _is_batch(prompt: Any) -> bool:  # noqa: ANN401  (JSON of any shape)
    """Several prompts, not one prompt of token ids."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))


def _read_max_tokens(api: Api, document: Mapping[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        if document.get(name) is not None:
            if not isinstance(document[name], int) or document[name] < 1:
                raise RequestError(400, f"{name} must be at least 1, got {document[name]}.", param=name)
            return int(document[name])
    return COMPLETIONS_MAX_TOKENS_DEFAULT if api is Api.COMPLETIONS else None


def _read_tool(document: Mapping[str, Any]) -> tuple[str | None, bool]:
    tools = document.get("tools")
    choice = document.get("tool_choice")
    if not tools or choice == "none" or (isinstance(choice, dict) and choice.get("type") == "none"):
        return None, False
    named = _tool_name(choice) if isinstance(choice, dict) else None
    return named or _tool_name(tools[0]), named is not None


def _tool_name(tool: Mapping[str, Any]) -> str | None:
    return tool.get("name") or (tool.get("function") or {}).get("name")


def _text(content: Any) -> str:  # noqa: ANN401  (JSON of any shape)
    """All text of a prompt: a string, a list of messages, of parts, or of token ids."""
    match content:
        case str():
            return content
        case list():
            return " ".join(map(_text, content))
        case dict():
            return " ".join(_text(content[name]) for name in ("content", "text", "output", "arguments") if content.get(name))
        case int():
            return str(content)
        case _:
            return ""
