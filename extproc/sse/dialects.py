"""The four APIs whose answers are generations, by their path."""

from enum import StrEnum
from typing import Final


class Dialect(StrEnum):
    """Whose events a stream is made of."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


GENERATION_PATHS: Final[dict[str, Dialect]] = {
    "/v1/chat/completions": Dialect.CHAT,
    "/v1/completions": Dialect.COMPLETIONS,
    "/v1/responses": Dialect.RESPONSES,
    "/v1/messages": Dialect.MESSAGES,
}


def dialect_of_path(path: str) -> Dialect | None:
    """The dialect of a request's ``:path``, or None where it asks for no generation.

    The path is compared as vLLM's router does: exactly, with the query left out. ``/v1/messages/count_tokens`` generates nothing.
    """
    return GENERATION_PATHS.get(path.partition("?")[0])
