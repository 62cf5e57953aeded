"""Whether what a client received is what it must receive. Reads the client's bytes only, not the processor's word.

The event reader here is on purpose not ours: a framer that judged itself would find itself right.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from extproc.app.demonstration.apis import streamed_text, whole_text
from extproc.app.demonstration.scenarios import Received, Scenario
from extproc.contract import headers as names
from extproc.sse.dialects import Dialect

TERMINAL_FIELDS: Final = {
    "code": "upstream_decode_interrupted",
    "partial_output": True,
    "retryable": False,
}
LAST_MARKS: Final = {
    Dialect.CHAT: "[DONE]",
    Dialect.COMPLETIONS: "[DONE]",
    Dialect.RESPONSES: "response.completed",
    Dialect.MESSAGES: "message_stop",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request as its client saw it. ``broken`` is the transport's complaint where the body had no proper end."""

    status: int
    headers: dict[str, str]
    body: bytes
    broken: str | None = None

    @property
    def request_id(self) -> str:
        return self.headers.get(names.REQUEST_ID, "")

    @property
    def attempts(self) -> int:
        return int(self.headers.get(names.ATTEMPTS, "0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was received, in words and numbers, and everything that is wrong with it."""

    text: str
    ending: str
    problems: tuple[str, ...]

    @property
    def is_ok(self) -> bool:
        return not self.problems


def judge(scenario: Scenario, dialect: Dialect, exchange: Exchange, *, stream: bool, tokens: int) -> Finding:
    """Compare one exchange with its scenario. ``tokens`` is how many a whole answer has."""
    problems: list[str] = []
    if exchange.broken is not None:
        problems.append(f"the body had no proper end: {exchange.broken}")
    if exchange.status != 200:
        problems.append(f"status {exchange.status}: {exchange.body[:300]!r}")
        return Finding(text="", ending=f"status {exchange.status}", problems=tuple(problems))
    if not exchange.request_id.startswith("req_"):
        problems.append(f"no request id among {sorted(exchange.headers)}")
    if stream:
        text, ending = _judge_stream(scenario, dialect, exchange, tokens, problems)
    else:
        text, ending = whole_text(dialect, json.loads(exchange.body)), "whole JSON body"
    expected_whole = not stream or scenario.received is Received.COMPLETE
    _judge_text(text, tokens if expected_whole else None, problems)
    expected_attempts = scenario.attempts if stream else (1 if not scenario.whole_faults else 2)
    if exchange.attempts != expected_attempts:
        problems.append(f"{exchange.attempts} attempts, not {expected_attempts}")
    return Finding(text=text, ending=ending, problems=tuple(problems))


def read_events(body: bytes) -> list[Any]:
    """The decoded data of an LF-framed event stream; the string ``[DONE]`` where that came."""
    events = []
    for block in body.decode().split("\n\n"):
        data = "\n".join(line[5:].strip() for line in block.split("\n") if line.startswith("data:"))
        if data:
            events.append("[DONE]" if data == "[DONE]" else json.loads(data))
    return events


def terminal_error(dialect: Dialect, event: Any) -> dict[str, Any] | None:  # noqa: ANN401  (JSON)
    """The error inside a terminal event of the dialect, or None where the event is none."""
    if not isinstance(event, dict) or not isinstance(event.get("error"), dict):
        return None
    typed = dialect in (Dialect.RESPONSES, Dialect.MESSAGES)
    return event["error"] if not typed or event.get("type") == "error" else None


def _judge_stream(scenario: Scenario, dialect: Dialect, exchange: Exchange, tokens: int, problems: list[str]) -> tuple[str, str]:
    events = read_events(exchange.body)
    text = streamed_text(dialect, events)
    errors = [error for error in (terminal_error(dialect, event) for event in events) if error is not None]
    last = events[-1] if events else None
    if scenario.received is Received.COMPLETE:
        if errors:
            problems.append(f"an error inside a complete answer: {errors[0]}")
        mark = last if isinstance(last, str) else (last or {}).get("type")
        if mark != LAST_MARKS[dialect]:
            problems.append(f"the stream's last event is {last!r}")
        return text, "finish, last event" if not problems else "?"
    if len(errors) != 1 or terminal_error(dialect, last) is None:
        problems.append(f"not exactly one terminal event at the end: {events[-2:]!r}")
        return text, "no terminal event"
    _judge_terminal(errors[0], exchange, text, problems)
    return text, str(errors[0].get("code"))


def _judge_terminal(error: dict[str, Any], exchange: Exchange, text: str, problems: list[str]) -> None:
    delivered = len(text.split())
    for field, expected in {**TERMINAL_FIELDS, "request_id": exchange.request_id, "delivered_output_tokens": delivered}.items():
        if error.get(field) != expected:
            problems.append(f"terminal event has {field}={error.get(field)!r}, not {expected!r}")
    problems.extend(f"terminal event has no {field}" for field in ("message", "reason") if not error.get(field))


def _judge_text(text: str, tokens: int | None, problems: list[str]) -> None:
    """The look-alike's tokens are ``name:0 name:1 ...``: one name, counted from 0 without a gap or a repeat."""
    words = text.split()
    names_seen = {word.partition(":")[0] for word in words}
    if len(names_seen) > 1:
        problems.append(f"text of several replicas: {text!r}")
    if [word.partition(":")[2] for word in words] != [str(number) for number in range(len(words))]:
        problems.append(f"a gap or a repeat: {text!r}")
    if not words or (tokens is not None and len(words) != tokens):
        problems.append(f"{len(words)} tokens, not {tokens}: {text!r}")
