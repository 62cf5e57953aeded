"""What the replicas of one model share: the retry budget and the measured prefill speed (R15, R16)."""

from collections import OrderedDict
from typing import Final

from extproc.decision.budget import RetryBudget
from extproc.decision.policy import RetryBudgetPolicy
from extproc.decision.replay_cost import PrefillSpeed, ReplayCost, estimate

MODELS_MAX: Final = 256
"""Model names come from clients; a name beyond this many pushes out the one that was unused longest."""


class Pool:
    """One model's shared numbers."""

    def __init__(self) -> None:
        self._budget: RetryBudget | None = None
        self._speed = PrefillSpeed()

    def note_request(self, terms: RetryBudgetPolicy, now_ms: int) -> None:
        """A first attempt was started."""
        self._budget = self._current(terms, now_ms).after_request(terms, now_ms)

    def allows_repeat(self, terms: RetryBudgetPolicy, now_ms: int) -> bool:
        """Whether the budget holds a repeat."""
        return self._current(terms, now_ms).allows_repeat(terms, now_ms)

    def take_repeat(self, terms: RetryBudgetPolicy, now_ms: int) -> None:
        """A repeat was started."""
        self._budget = self._current(terms, now_ms).after_repeat(terms, now_ms)

    def repeats_left(self, terms: RetryBudgetPolicy, now_ms: int) -> float:
        """The budget's content, for the journal."""
        return round(self._current(terms, now_ms).refilled(terms, now_ms).tokens, 2)

    def note_prefill(self, prompt_tokens: int, elapsed_ms: int) -> None:
        """A first delta came ``elapsed_ms`` after its attempt began."""
        self._speed = self._speed.observe(prompt_tokens, elapsed_ms)

    def cost_of(self, prompt_bytes: int) -> ReplayCost:
        """What reading a prompt again would cost."""
        return estimate(prompt_bytes, self._speed)

    def _current(self, terms: RetryBudgetPolicy, now_ms: int) -> RetryBudget:
        return self._budget or RetryBudget.full(terms, now_ms)


class Pools:
    """Pools by model name, bounded."""

    def __init__(self, models_max: int = MODELS_MAX) -> None:
        self._models_max = models_max
        self._pools: OrderedDict[str, Pool] = OrderedDict()

    def of(self, model: str) -> Pool:
        """The model's pool; made on first use."""
        pool = self._pools.pop(model, None) or Pool()
        self._pools[model] = pool
        if len(self._pools) > self._models_max:
            self._pools.popitem(last=False)
        return pool
