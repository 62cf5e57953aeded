"""One request driven by the real table, as processor/session.py drives it: events in, effects carried out in order."""

from abc import ABC, abstractmethod

from extproc.decision.effects import Effect
from extproc.decision.events import Event
from extproc.decision.policy import Policy
from extproc.decision.request import Phase, RequestState, step


class DecidedRequest(ABC):
    """A request whose every turn is ``decision.request.step``'s."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.state = RequestState()

    @property
    def phase(self) -> Phase:
        """Where it is."""
        return self.state.phase

    def feed(self, event: Event | None) -> None:
        """Decide ``event`` and what its effects bring about at once."""
        while event is not None:
            self.state, effects = self.decide(event)
            event = None
            for effect in effects:
                assert event is None, "an effect after one that has produced an event"
                event = self.carry_out(effect)

    def decide(self, event: Event) -> tuple[RequestState, tuple[Effect, ...]]:
        """The table's word."""
        return step(self.state, event, self.policy)

    @abstractmethod
    def carry_out(self, effect: Effect) -> Event | None:
        """Do one effect; the event that it produced itself, if any."""
