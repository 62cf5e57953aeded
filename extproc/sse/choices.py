"""/v1/chat/completions and /v1/completions: answers made of choices, streamed or whole.

What is content is a closed list. An unknown field is not, and that errs on the safe side: before the first content nothing was
delivered, so an unlisted kind of output is at worst held back a little longer, never doubled (R2).
"""

from typing import Final

from extproc.sse.facts import NOTHING, ONE_TOKEN, Answer, Payload, Reading, bad_ending, carries, token_count

_OUTPUT: Final = ("content", "reasoning", "reasoning_content", "refusal", "audio")
"""``reasoning`` in new vLLM, ``reasoning_content`` in old vLLM, SGLang and DeepSeek (CASES FC-02)."""
_CALL: Final = ("name", "arguments")


class ChoicesAnswer(Answer):
    """An answer of one or more choices, each with its own finish."""

    def __init__(self, choices: int) -> None:
        self._finished_min = choices
        # Invariant: an index is in at most one of the two; a choice that was seen counts even beyond the number asked for.
        self._open: set[int] = set()
        self._closed: set[int] = set()
        self._usage_by_choice: dict[int, int] = {}

    def read(self, payload: Payload) -> Reading:
        choices = payload.get("choices")
        usage = payload.get("usage")
        if not isinstance(choices, list) or not choices:
            return NOTHING if usage is None else Reading(usage_tokens=token_count(usage, "completion_tokens"))
        content = False
        tokens = 0
        finishes: list[int] = []
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            index = index_of(choice)
            if index not in self._open and index not in self._closed:
                self._open.add(index)
                self.only_first_open = self._open == {0} and not self._closed
            reason = choice.get("finish_reason")
            if reason:
                bad = bad_ending(reason)
                if bad is not None:
                    return bad
                finishes.append(index)
            output = choice_output(choice)
            content = content or output.content
            tokens += output.tokens
        if finishes:
            self._open.difference_update(finishes)
            self._closed.update(finishes)
            self.only_first_open = False
            self.finished = not self._open and len(self._closed) >= self._finished_min
        usage_tokens = None if usage is None else self._add_usage(choices, usage)
        if tokens == 1 and content and usage_tokens is None:
            return ONE_TOKEN
        return Reading(content=content, tokens=tokens, usage_tokens=usage_tokens)

    def _add_usage(self, choices: list[object], usage: object) -> int | None:
        """``continuous_usage_stats`` counts each choice by itself; only the chunk without choices counts the whole answer."""
        counted = token_count(usage, "completion_tokens")
        if counted is None:
            return None
        self._usage_by_choice[index_of(choices[0])] = counted
        return sum(self._usage_by_choice.values())


def index_of(choice: object) -> int:
    """A choice's index; the first where it has none."""
    index = choice.get("index") if isinstance(choice, dict) else None
    return index if isinstance(index, int) else 0


def choice_output(choice: Payload) -> Reading:
    """The output in one choice: of a chunk (``delta`` or ``text``) or of a whole answer (``message`` or ``text``).

    Tokens are the generated token ids where the request asked for them, else the logprobs, else 1 for anything at all.
    """
    delta = choice.get("delta") or choice.get("message")
    content = bool(choice.get("text")) or (isinstance(delta, dict) and _has_output(delta))
    token_ids = choice.get("token_ids")
    if isinstance(token_ids, list):
        return Reading(content=content or bool(token_ids), tokens=len(token_ids))
    logprobs = choice.get("logprobs")
    listed = (logprobs.get("content") or logprobs.get("tokens")) if isinstance(logprobs, dict) else None
    if isinstance(listed, list) and listed:
        return Reading(content=True, tokens=len(listed))
    return ONE_TOKEN if content else NOTHING


def _has_output(delta: Payload) -> bool:
    if delta.get("content"):
        return True
    calls = delta.get("tool_calls")
    return (
        carries(delta, _OUTPUT)
        or carries(delta.get("function_call"), _CALL)
        or (isinstance(calls, list) and any(_is_call(call) for call in calls))
    )


def _is_call(call: object) -> bool:
    """A tool call's first chunk has a name and an id and no arguments; the client may act on it already (CASES ID-01)."""
    return isinstance(call, dict) and (carries(call, ("id", "custom")) or carries(call.get("function"), _CALL))
