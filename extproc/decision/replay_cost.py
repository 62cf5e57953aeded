"""What a repeated prefill would cost, estimated so that it errs high (R16)."""

import math
from dataclasses import dataclass
from typing import Final

from extproc.decision.policy import ReplayCostPolicy

PROMPT_BYTES_PER_TOKEN: Final = 2.0
"""Bytes of JSON-decoded prompt text per token. English runs at about 4, dense code near 3, CJK near 3 bytes a character and
about one token each; 2 overestimates all of them, which is the safe side: a repeat is refused too early, never too late."""

MEASURED_PROMPT_TOKENS_MIN: Final = 1_000
"""Most of the wait after a shorter prompt is what every request waits; it would make all prompts look slow to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSpeed:
    """Measured on the pool; None until there is a measurement, and then seconds are not judged."""

    tokens_per_second: float | None = None

    def observe(self, prompt_tokens: int, elapsed_ms: int) -> "PrefillSpeed":
        """The speed after one more prefill: a slow moving average, since batches make single readings jump."""
        if prompt_tokens < MEASURED_PROMPT_TOKENS_MIN or elapsed_ms <= 0:
            return self
        measured = prompt_tokens * 1000 / elapsed_ms
        before = self.tokens_per_second
        return PrefillSpeed(tokens_per_second=measured if before is None else before * 0.9 + measured * 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCost:
    """One repeat's price: prompt tokens to read again, and the time that takes at the measured speed."""

    prompt_tokens: int
    prefill_ms: int | None = None

    def over(self, limits: ReplayCostPolicy, client_deadline_left_ms: int) -> str | None:
        """Which limit this cost exceeds, in words; None where it fits all of them."""
        if self.prompt_tokens > limits.max_prompt_tokens:
            return f"{self.prompt_tokens} prompt tokens (estimate) exceed the route's limit of {limits.max_prompt_tokens}"
        if self.prefill_ms is None:
            return None
        if self.prefill_ms > limits.max_prefill_ms:
            return f"a prefill of {self.prefill_ms} ms (estimate) exceeds the route's limit of {limits.max_prefill_ms} ms"
        if self.prefill_ms > client_deadline_left_ms:
            return f"a prefill of {self.prefill_ms} ms (estimate) exceeds the {client_deadline_left_ms} ms left for the request"
        return None


def estimate(prompt_bytes: int, speed: PrefillSpeed, cached_tokens: int = 0) -> ReplayCost:
    """The cost of reading a prompt of so many bytes again; ``cached_tokens`` only where the fingerprints are equal (R8)."""
    tokens = max(0, math.ceil(prompt_bytes / PROMPT_BYTES_PER_TOKEN) - cached_tokens)
    if speed.tokens_per_second is None:
        return ReplayCost(prompt_tokens=tokens)
    return ReplayCost(prompt_tokens=tokens, prefill_ms=math.ceil(tokens * 1000 / speed.tokens_per_second))
