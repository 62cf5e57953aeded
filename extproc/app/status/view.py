"""What the pages, their JSON and ``deltafence top`` show of one processor: plain data, made when it is asked for."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from extproc import __version__
from extproc.app.status.replicas import ReplicaRow
from extproc.app.status.story import sentence, title
from extproc.journal.interface import Journal
from extproc.journal.records import RequestFacts
from extproc.telemetry.recent import Recent, Story
from extproc.telemetry.witness import Transition

PHASES: Final = ("admitted", "prefill", "fencing", "decode")
RUNNING_SHOWN_MAX: Final = 50
ENDED_SHOWN_MAX: Final = 50
DECISIONS_SHOWN_MAX: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the view looks. None of it waits or changes anything."""

    recent: Recent
    journal: Journal
    replicas: Callable[[], Sequence[ReplicaRow]]
    routes: Callable[[], dict[str, Any]]
    """The route report's document (app/route_report.py)."""
    is_draining: Callable[[], bool]
    wall_ms: Callable[[], int]
    started_at_ms: int


def status_document(sources: Sources) -> dict[str, Any]:
    """What this process knows: the JSON of ``GET /deltafence/v1/status``, and what the status page is made of."""
    recent, now_ms = sources.recent, sources.wall_ms()
    phases = Counter(story.facts.phase for story in recent.running)
    routes = sources.routes()
    return {
        "version": __version__,
        "processes": {"answering": 1, "silent": []},
        "state": "draining" if sources.is_draining() else "serving",
        "up_s": round((now_ms - sources.started_at_ms) / 1000, 1),
        "at_ms": now_ms,
        "journal": {"available": sources.journal.available, "waiting_events": sources.journal.backlog.events},
        "active": {phase: phases.get(phase, 0) for phase in PHASES},
        "ended": dict(Counter(str(story.facts.outcome) for story in recent.ended)),
        "replicas": [asdict(row) for row in sources.replicas()],
        "decisions": [decision_line(each, now_ms) for each in recent.decisions[:DECISIONS_SHOWN_MAX]],
        "running": [request_line(story, now_ms) for story in recent.running[:RUNNING_SHOWN_MAX]],
        "recent": [request_line(story, now_ms) for story in recent.ended[:ENDED_SHOWN_MAX]],
        "routes": {"known": len(routes["routes"]), "refused": refused_sources(routes)},
    }


def refused_sources(routes: dict[str, Any]) -> list[str]:
    """Every policy source that is refused now, in words."""
    of_routes = [f"{entry['name']}: {error}" for entry in routes["routes"] for error in entry["errors"]]
    return of_routes + [f"{entry['object']}: {problem}" for entry in routes["objects"] for problem in entry["refused"]]


def decision_line(transition: Transition, now_ms: int) -> dict[str, Any]:
    """One decision, with its why."""
    event = transition.event
    return {
        "at_ms": event.at_ms,
        "s_ago": _seconds_ago(event.at_ms, now_ms),
        "kind": str(event.kind),
        "request_id": event.request_id,
        "replica": event.replica,
        "what": sentence(event, transition.after),
    }


def request_line(story: Story, now_ms: int) -> dict[str, Any]:
    """One request in a list."""
    return facts_line(story.facts, now_ms)


def facts_line(facts: RequestFacts, now_ms: int) -> dict[str, Any]:
    """The same of a request that only the journal remembers."""
    end_ms = now_ms if facts.ended_at_ms is None else facts.ended_at_ms
    return {
        "request_id": facts.request_id,
        "title": title(facts),
        "phase": facts.phase,
        "outcome": facts.outcome,
        "reason": facts.reason,
        "model": facts.model,
        "route": facts.route,
        "attempts": len(facts.attempts),
        "replica": facts.attempts[-1].replica if facts.attempts else None,
        "delivered_output_tokens": facts.delivered_output_tokens,
        "admitted_at_ms": facts.admitted_at_ms,
        "s_ago": _seconds_ago(end_ms if facts.ended_at_ms is not None else facts.admitted_at_ms, now_ms),
        "took_s": round(max(0, end_ms - facts.admitted_at_ms) / 1000, 3),
    }


def _seconds_ago(at_ms: int, now_ms: int) -> float:
    return round(max(0, now_ms - at_ms) / 1000, 1)
