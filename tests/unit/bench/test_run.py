"""How runs are summed up."""

import pytest

from bench.run import Measurement, percentile


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_percentile_of_one_to_hundred(share: float, expected: int) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_percentile_of_nothing_is_nothing() -> None:
    assert percentile([], 0.5) is None


def test_cpu_is_divided_by_the_deltas_of_the_same_stretch() -> None:
    summary = Measurement(deltas=1000, wall_s=2, processor_cpu_s=0.05, envoy_cpu_s=0.1).summary()
    assert (summary["processor_us_per_delta"], summary["envoy_us_per_delta"], summary["deltas_per_s"]) == (50, 100, 500)


def test_contender_without_a_processor_has_no_figure_for_it() -> None:
    assert Measurement(deltas=1000, wall_s=2, envoy_cpu_s=0.1).summary()["processor_us_per_delta"] is None
