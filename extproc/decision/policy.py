"""What a route allows (R14-R16, DESIGN section 7), already checked: routes/ turns documents into these or refuses them.

All times are milliseconds. The relations that the values must keep among each other are asserted here once.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Mode(StrEnum):
    """What the processor does with a route's traffic."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    """Out of the data path: journals what ``enforce`` would have done."""
    OFF = "off"
    """Passed through untouched."""


class ToolsMode(StrEnum):
    """Whether a request during whose attempt a tool call was recorded may be repeated (R12)."""

    REFUSE = "refuse"
    LEDGER = "ledger"
    """The route's tools go through the ledger, so a repeated call finds that it was carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudgetPolicy:
    """Repeats that a model pool may cost in addition to its requests (R15)."""

    percent: int = 20
    min_per_second: float = 1.0
    burst: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCostPolicy:
    """Above either limit a repeat is answered with a controlled error instead of being started (R16)."""

    max_prompt_tokens: int = 131_072
    max_prefill_ms: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    """How long an attempt may publish without a renewal, and how long a cancel's acknowledgement is waited for (R6, R7)."""

    ttl_ms: int = 10_000
    cancel_timeout_ms: int = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinesPolicy:
    """Limits on one request. Slowness is not a failure (R5), so the defaults only bound what nobody waits for any more."""

    first_delta_ms: int = 600_000
    """From admission to the first delta, over all attempts, and to the end of an answer that is not streamed; then 504."""
    total_ms: int = 3_600_000
    """From admission to the end of the answer."""
    idle_ms: int = 0
    """Between two chunks after the first delta; 0 means no limit, since slow is not dead."""
    finish_linger_ms: int = 5_000
    """For the stream's last event after every choice has finished; then the answer counts as whole (CASES SSE-11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlivePolicy:
    """Headers and comments before the first delta, for clients with a header timeout (CASES CAN-03). 0 means off."""

    after_ms: int = 0
    interval_ms: int = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPolicy:
    """What may be stored of a request beyond its facts."""

    store_text: bool = False
    replay: bool = False
    """Answer a repeated Idempotency-Key with the stored answer; implies that whole answers are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One route's policy. What is not a field is not a choice: after the first delta nothing is ever repeated (R10)."""

    mode: Mode = Mode.ENFORCE
    retry_before_first_delta: bool = True
    max_attempts: int = 2
    retry_budget: RetryBudgetPolicy = field(default_factory=RetryBudgetPolicy)
    replay_cost: ReplayCostPolicy = field(default_factory=ReplayCostPolicy)
    lease: LeasePolicy = field(default_factory=LeasePolicy)
    tools: ToolsMode = ToolsMode.REFUSE
    deadlines: DeadlinesPolicy = field(default_factory=DeadlinesPolicy)
    keep_alive: KeepAlivePolicy = field(default_factory=KeepAlivePolicy)
    journal: JournalPolicy = field(default_factory=JournalPolicy)

    def __post_init__(self) -> None:
        assert self.max_attempts >= 1
        assert 0 < self.lease.cancel_timeout_ms <= self.lease.ttl_ms
        assert 0 < self.deadlines.first_delta_ms <= self.deadlines.total_ms
        assert self.keep_alive.after_ms >= 0
        assert self.keep_alive.interval_ms > 0

    @property
    def attempts_allowed(self) -> int:
        """How many attempts one request may have in all."""
        return self.max_attempts if self.retry_before_first_delta else 1


DEFAULT_POLICY: Final = Policy()
