"""What adds up here is what a scrape shows, in a bounded number of series."""

import pytest

from extproc.decision.verdicts import Verdict
from extproc.telemetry import instruments as metric
from extproc.telemetry.series import SERIES_MAX

AWAY = "deltafence_requests_turned_away_total"


def test_labels_in_any_order_are_one_series(scrape) -> None:
    scrape.meters.count(metric.TURNED_AWAY, {"api": "chat", "code": "draining"})
    scrape.meters.count(metric.TURNED_AWAY, {"code": "draining", "api": "chat"}, 2)
    assert scrape.value(AWAY, api="chat", code="draining") == 3


def test_words_of_an_enumeration_and_the_same_plain_text_are_one_series(scrape) -> None:
    scrape.meters.count(metric.VERDICT_CHANGES, {"verdict": Verdict.HUNG})
    scrape.meters.count(metric.VERDICT_CHANGES, {"verdict": "hung"})
    assert scrape.value("deltafence_replica_verdict_changes_total", verdict="hung") == 2


def test_what_goes_up_and_down_and_what_is_set_shows_as_it_is_at_each_scrape(scrape) -> None:
    seen = []
    for by, left in ((1, 9.0), (1, 8.0), (-2, 8.5)):
        scrape.meters.move(metric.ACTIVE, {"phase": "decode"}, by)
        scrape.meters.set(metric.BUDGET, {"model": "llama"}, left)
        active = scrape.value("deltafence_requests_active", phase="decode")
        seen.append((active, scrape.value("deltafence_retry_budget_repeats", model="llama")))
    assert seen == [(1, 9.0), (2, 8.0), (0, 8.5)]


def test_series_that_begins_at_0_shows_until_it_counts_and_afterwards(scrape) -> None:
    scrape.meters.begin(metric.UNRECORDED, {})
    assert scrape.value("deltafence_journal_unrecorded_total") == 0
    scrape.meters.count(metric.UNRECORDED, {})
    assert [scrape.value("deltafence_journal_unrecorded_total") for _ in range(2)] == [1, 1]


def test_series_beyond_the_bound_share_one_and_the_first_ones_go_on(scrape) -> None:
    for number in range(SERIES_MAX + 40):
        scrape.meters.count(metric.TURNED_AWAY, {"api": "chat", "code": f"c{number}"})
    scrape.meters.count(metric.TURNED_AWAY, {"api": "chat", "code": "c7"})
    samples = [each for family in scrape.registry.collect() for each in family.samples if each.name == AWAY]
    counted = {each.labels["code"]: each.value for each in samples if each.labels["otel_metric_overflow"] == ""}
    assert (len(counted), counted["c7"]) == (SERIES_MAX, 2)
    assert scrape.value(AWAY, api="", code="", otel_metric_overflow="true") == 40


@pytest.mark.parametrize("instrument", [metric.ATTEMPTS, metric.DURATION], ids=lambda instrument: instrument.name)
def test_label_that_the_table_does_not_know_is_a_mistake(scrape, instrument) -> None:
    tell = scrape.meters.count if instrument.kind is metric.Kind.COUNTER else scrape.meters.record
    with pytest.raises(AssertionError, match="request_id"):
        tell(instrument, {"request_id": "req_1"}, 1)
