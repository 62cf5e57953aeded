"""What a run's figures are held against, and that every table has its figures."""

import json

import pytest

from bench import report, targets
from bench.studies import SOAK_JUDGED_S, growth_mib
from tests.unit.bench.documents import everything


def words(document: report.Document) -> list[str]:
    return [judgement.word for judgement in targets.judge(document)]


def test_figures_below_their_targets_hold() -> None:
    assert words(everything()) == ["held"] * len(targets.TARGETS)


def test_ratios_are_of_the_same_load() -> None:
    reached = [judgement.reached for judgement in targets.judge(everything())]
    # 70/100 and 25/100 of the echo; (70 + 80)/1,000 and (25 + 80)/1,000 of LiteLLM; 22 ms beside Envoy's 20.
    assert reached[:7] == [0.7, 0.25, 0.15, 0.105, 0.15, 0.105, 2.0]


def test_a_figure_above_its_target_is_missed() -> None:
    document = everything()
    document["contenders"]["deltafence"]["deltas"]["processor_us_per_delta"] = 80.0
    document["studies"]["saturation"]["twice"] |= {"failures": {"status 503": 1}}
    missed = [judgement.target.name for judgement in targets.judge(document) if judgement.word == "missed"]
    assert missed == [targets.TARGETS[0].name, "failures at twice the load that one process carries"]


def test_what_was_not_measured_is_neither_held_nor_missed() -> None:
    document = report.report({}, {}, rounds=1, load_average=0)
    assert words(document) == ["not measured"] * len(targets.TARGETS)
    assert [sheet.title for sheet in report.sheets(document)] == ["Targets"]


def test_every_table_has_a_cell_under_every_heading() -> None:
    sheets = report.sheets(json.loads(json.dumps(everything())))
    assert len(sheets) == 11
    for sheet in sheets:
        assert {len(cells) + 1 for _, cells in sheet.rows} == {len(sheet.headings)}, sheet.title


def test_a_failed_request_is_told_with_its_load() -> None:
    document = everything()
    document["contenders"]["echo"]["burst"] |= {"failures": {"status 503": 2}}
    (sheet,) = [sheet for sheet in report.sheets(document) if sheet.title == "What failed"]
    assert sheet.rows == [("echo", ("burst", "2", "status 503"))]


@pytest.mark.parametrize(("last_mib", "grown_mib"), [(90.0, 0.0), (97.5, 7.5)])
def test_a_soak_has_grown_by_what_its_last_quarter_has_above_its_second(last_mib: float, grown_mib: float) -> None:
    memory_mib = [50.0] * 10 + [90.0] * 20 + [last_mib] * 10
    assert growth_mib([{"processor_mib": each} for each in memory_mib], SOAK_JUDGED_S) == grown_mib


def test_a_short_soak_says_nothing() -> None:
    assert growth_mib([{"processor_mib": 50.0}] * 40, SOAK_JUDGED_S - 1) is None
