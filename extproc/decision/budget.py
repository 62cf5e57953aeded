"""The retry budget: a token bucket per model pool, filled by requests and by time (R15).

Every request earns ``percent / 100`` of a repeat and every second ``min_per_second``; a repeat costs one. Under a mass
failure repeats therefore add at most that share to the survivors' load, and a quiet pool can still repeat now and then.
"""

from dataclasses import dataclass, replace

from extproc.decision.policy import RetryBudgetPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """Tokens at a moment of the caller's clock (milliseconds)."""

    tokens: float
    updated_at_ms: int

    @classmethod
    def full(cls, terms: RetryBudgetPolicy, now_ms: int) -> "RetryBudget":
        """A new pool's budget: its whole burst."""
        return cls(tokens=float(terms.burst), updated_at_ms=now_ms)

    def after_request(self, terms: RetryBudgetPolicy, now_ms: int) -> "RetryBudget":
        """One more first attempt was started."""
        refilled = self.refilled(terms, now_ms)
        return replace(refilled, tokens=min(float(terms.burst), refilled.tokens + terms.percent / 100))

    def refilled(self, terms: RetryBudgetPolicy, now_ms: int) -> "RetryBudget":
        """The same budget at a later moment."""
        elapsed_ms = max(0, now_ms - self.updated_at_ms)
        earned = elapsed_ms / 1000 * terms.min_per_second
        return RetryBudget(tokens=min(float(terms.burst), self.tokens + earned), updated_at_ms=max(now_ms, self.updated_at_ms))

    def allows_repeat(self, terms: RetryBudgetPolicy, now_ms: int) -> bool:
        """Whether a repeat may be taken now."""
        return self.refilled(terms, now_ms).tokens >= 1.0

    def after_repeat(self, terms: RetryBudgetPolicy, now_ms: int) -> "RetryBudget":
        """One repeat was started. Only after ``allows_repeat`` said yes."""
        refilled = self.refilled(terms, now_ms)
        assert refilled.tokens >= 1.0, "a repeat was taken that the budget does not hold"
        return replace(refilled, tokens=refilled.tokens - 1.0)
