"""The retry budget bounds what a mass failure adds to the survivors' load (R15); the cost estimate errs high (R16)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.decision.budget import RetryBudget
from extproc.decision.policy import RetryBudgetPolicy
from extproc.decision.replay_cost import PrefillSpeed, estimate

TERMS = RetryBudgetPolicy(percent=20, min_per_second=1.0, burst=3)


def test_a_new_budget_holds_its_burst_and_no_more() -> None:
    budget = RetryBudget.full(TERMS, 0)
    for _ in range(3):
        assert budget.allows_repeat(TERMS, 0)
        budget = budget.after_repeat(TERMS, 0)
    assert not budget.allows_repeat(TERMS, 0)


def test_taking_what_is_not_there_is_a_bug() -> None:
    empty = RetryBudget(tokens=0.5, updated_at_ms=0)
    with pytest.raises(AssertionError, match="does not hold"):
        empty.after_repeat(TERMS, 0)


def test_five_requests_earn_one_repeat_at_twenty_percent() -> None:
    budget = RetryBudget(tokens=0.0, updated_at_ms=0)
    for _ in range(4):
        budget = budget.after_request(TERMS, 0)
    assert not budget.allows_repeat(TERMS, 0)
    assert budget.after_request(TERMS, 0).allows_repeat(TERMS, 0)


def test_a_quiet_pool_earns_its_floor_by_the_second() -> None:
    budget = RetryBudget(tokens=0.0, updated_at_ms=0)
    assert not budget.allows_repeat(TERMS, 999)
    assert budget.allows_repeat(TERMS, 1_000)


def test_a_clock_that_went_back_earns_nothing() -> None:
    budget = RetryBudget(tokens=0.0, updated_at_ms=10_000)
    assert budget.refilled(TERMS, 0) == budget


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=400))
def test_repeats_never_exceed_burst_plus_share_plus_floor(history: list[tuple[int, bool]]) -> None:
    now, requests, repeats = 0, 0, 0
    budget = RetryBudget.full(TERMS, now)
    for elapsed_ms, fails in history:
        now += elapsed_ms
        requests += 1
        budget = budget.after_request(TERMS, now)
        if fails and budget.allows_repeat(TERMS, now):
            budget = budget.after_repeat(TERMS, now)
            repeats += 1
    assert repeats <= TERMS.burst + requests * TERMS.percent / 100 + now / 1000 * TERMS.min_per_second + 1e-6


@pytest.mark.parametrize(
    "text", ["plain English words in a row " * 50, "def f(x):\n    return x + 1\n" * 50, "токены и слова " * 50]
)
def test_the_estimate_is_above_what_real_tokenizers_need(text: str) -> None:
    at_least = len(text) / 4  # no common tokenizer needs more than a token per four characters of such text, nor fewer bytes
    assert estimate(len(text.encode()), PrefillSpeed()).prompt_tokens >= at_least


def test_time_is_not_judged_before_it_was_measured() -> None:
    assert estimate(1_000, PrefillSpeed()).prefill_ms is None
    measured = PrefillSpeed().observe(prompt_tokens=1_000, elapsed_ms=500)
    assert measured.tokens_per_second == 2_000
    assert estimate(1_000, measured).prefill_ms == 250


def test_a_short_prompts_wait_says_nothing_of_a_long_one() -> None:
    """60 tokens after 300 ms are no 200 tokens a second: the wait was the request's, not the prompt's."""
    assert PrefillSpeed().observe(prompt_tokens=60, elapsed_ms=300).tokens_per_second is None


def test_speed_moves_slowly_and_ignores_nothing_readings() -> None:
    speed = PrefillSpeed(tokens_per_second=1_000.0)
    assert speed.observe(prompt_tokens=0, elapsed_ms=10) is speed
    assert speed.observe(prompt_tokens=1_000, elapsed_ms=0) is speed
    assert speed.observe(prompt_tokens=2_000, elapsed_ms=1_000).tokens_per_second == pytest.approx(1_100)


def test_cached_prefix_shortens_the_estimate_but_never_below_nothing() -> None:
    assert estimate(100, PrefillSpeed(), cached_tokens=20).prompt_tokens == 30
    assert estimate(100, PrefillSpeed(), cached_tokens=500).prompt_tokens == 0
