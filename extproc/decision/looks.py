"""How a replica is looked at, and what came of it: the requests that health sends, and their answers as facts.

None but ``SHORT_ANSWER`` reaches the engine's slots (R20). The shells in worker/ and replicas/ carry these out and know
nothing of their meaning.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from extproc.decision.exposition import Page, read_page

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one answer. A page of 64 data-parallel engines is about 2 MB."""


class Look(StrEnum):
    """One way of looking."""

    METRICS = "metrics"
    MODELS = "models"
    """All that a proxy is asked (R25)."""
    HEALTH = "health"
    """vLLM answers 503 here once its engine is dead, and 200 while the engine hangs (FACTS A)."""
    PAUSED = "paused"
    """Only in vLLM's development mode; 404 elsewhere (HL-09)."""
    SHORT_ANSWER = "short_answer"
    """One token of a real generation: only ever for an idle engine (R21)."""


class Outcome(StrEnum):
    """How a look ended."""

    ANSWERED = "answered"
    """With an HTTP status, whatever it was."""
    REFUSED = "refused"
    """Nothing listens there."""
    CONNECT_TIMEOUT = "connect_timeout"
    """The backlog is full, or packets are dropped: says nothing about the process (HL-02)."""
    READ_TIMEOUT = "read_timeout"
    CLOSED = "closed"
    """Connected, then closed or reset before a whole answer, or an answer that is not HTTP or too large."""
    UNREACHABLE = "unreachable"
    """No route, no such name, TLS refused."""
    GAVE_WAY = "gave_way"
    """Broken off by us because real work arrived."""


OUTCOME_WORDS: Final[dict[Outcome, str]] = {
    Outcome.ANSWERED: "answered",
    Outcome.REFUSED: "connection refused",
    Outcome.CONNECT_TIMEOUT: "no connection within the time limit",
    Outcome.READ_TIMEOUT: "no answer within the time limit",
    Outcome.CLOSED: "connection closed without a whole answer",
    Outcome.UNREACHABLE: "not reachable",
    Outcome.GAVE_WAY: "broken off for real work",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LookRequest:
    """What to send; ``body`` is JSON or empty."""

    method: str
    path: str
    body: bytes = b""


_PATHS: Final[dict[Look, str]] = {
    Look.METRICS: "/metrics",
    Look.MODELS: "/v1/models",
    Look.HEALTH: "/health",
    Look.PAUSED: "/is_paused",
}


def request_for(look: Look, model: str) -> LookRequest:
    """The HTTP request of a look. ``model`` is the served name, used by the short answer alone."""
    if look is Look.SHORT_ANSWER:
        question = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
        return LookRequest(method="POST", path="/v1/completions", body=json.dumps(question).encode())
    return LookRequest(method="GET", path=_PATHS[look])


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What came of one look.

    ``status`` is 0 unless ``outcome`` is ANSWERED. ``page``, ``models`` and ``paused`` are read from a 200 of their own look
    only, and None where its body was not what the look asks for. ``detail`` adds the transport's own words.
    """

    look: Look
    outcome: Outcome
    status: int = 0
    took_ms: int = 0
    page: Page | None = None
    models: int | None = None
    paused: bool | None = None
    detail: str = ""

    @property
    def is_ok(self) -> bool:
        return self.status == 200

    @property
    def words(self) -> str:
        """How the look ended, for a person."""
        if self.outcome is Outcome.ANSWERED:
            return f"answered {self.status}"
        return OUTCOME_WORDS[self.outcome] + (f" ({self.detail})" if self.detail else "")


def read_answer(look: Look, status: int, body: bytes, took_ms: int) -> Observation:
    """The observation of a whole HTTP answer. Raises nothing, whatever the body is."""
    ok = status == 200
    return Observation(
        look=look,
        outcome=Outcome.ANSWERED,
        status=status,
        took_ms=took_ms,
        page=read_page(body) if ok and look is Look.METRICS else None,
        models=_count_models(body) if ok and look is Look.MODELS else None,
        paused=_read_paused(body) if ok and look is Look.PAUSED else None,
    )


def _count_models(body: bytes) -> int | None:
    document = _read_object(body)
    models = document.get("data")
    return len(models) if isinstance(models, list) else None


def _read_paused(body: bytes) -> bool | None:
    paused = _read_object(body).get("is_paused")
    return paused if isinstance(paused, bool) else None


def _read_object(body: bytes) -> dict[str, object]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
