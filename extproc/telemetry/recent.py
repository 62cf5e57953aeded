"""What a person on call asks about first, kept in memory: what runs, what was decided lately, and how each ended request went.

The journal knows more and keeps it longer; this answers also while the journal's database is away.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from extproc.decision.effects import Outcome
from extproc.journal.records import EventKind, JournalEvent, RequestFacts
from extproc.telemetry.witness import Transition, TurnedAway

ENDED_MAX: Final = 200
DECISIONS_MAX: Final = 100

_DECISIONS: Final = frozenset({EventKind.ATTEMPT_FAILED, EventKind.FENCE_GIVEN_UP, EventKind.REPEAT_REFUSED})
"""A fence's proof is told with the repeat that it allowed, a cancel with the end that it was part of."""


@dataclass(slots=True)
class Story:
    """One request as it is known now. ``events`` are in order."""

    facts: RequestFacts
    events: list[JournalEvent]
    trace_id: str


class Recent:
    """A subscriber that remembers a little. Everything is bounded: what runs by the processor's own stream limit."""

    def __init__(self, ended_max: int = ENDED_MAX, decisions_max: int = DECISIONS_MAX) -> None:
        self._ended_max = ended_max
        self._running: dict[str, Story] = {}
        self._ended: OrderedDict[str, Story] = OrderedDict()
        self._decisions: deque[Transition] = deque(maxlen=decisions_max)

    @property
    def running(self) -> Sequence[Story]:
        """Requests without an outcome, oldest first."""
        return tuple(self._running.values())

    @property
    def ended(self) -> Sequence[Story]:
        """Requests that ended lately, newest first."""
        return tuple(reversed(self._ended.values()))

    @property
    def decisions(self) -> Sequence[Transition]:
        """What was decided lately, newest first: failures, repeats, refusals, and ends that are no answer."""
        return tuple(reversed(self._decisions))

    def story(self, request_id: str) -> Story | None:
        """One request, or None where it was never here or has been pushed out."""
        return self._running.get(request_id) or self._ended.get(request_id)

    def saw(self, transition: Transition) -> None:
        """An admitted request has moved."""
        event = transition.event
        story = self._running.get(event.request_id)
        if story is None:
            story = self._running[event.request_id] = Story(transition.after, [], transition.trace_id)
        story.facts = transition.after
        story.events.append(event)
        if is_decision(transition):
            self._decisions.append(transition)
        if event.kind is EventKind.ENDED:
            self._ended[event.request_id] = self._running.pop(event.request_id)
            if len(self._ended) > self._ended_max:
                self._ended.popitem(last=False)

    def turned_away(self, turned_away: TurnedAway) -> None:
        """The log and the metrics have it."""


def is_decision(transition: Transition) -> bool:
    """Whether somebody may want to know why."""
    event = transition.event
    if event.kind is EventKind.ATTEMPT_STARTED:
        return len(transition.after.attempts) > 1
    if event.kind is EventKind.ENDED:
        return transition.after.outcome != Outcome.COMPLETED
    return event.kind in _DECISIONS
