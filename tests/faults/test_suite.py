"""The command itself: a selection through the real Envoy is green, and leaves a report and traces that can be replayed."""

import json
from pathlib import Path

from click.testing import CliRunner

from extproc.app.faults_command import faults
from extproc.faults.points import KINDS, Kind

POINTS = 200


def test_a_selection_is_green_and_can_be_replayed(tmp_path: Path) -> None:
    result = CliRunner().invoke(faults, ["run", "--limit", str(POINTS), "--seed", "1", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["green"], report["distinct_points"]) == (True, POINTS)
    assert {Kind(point["point"].split(".")[0]) for point in report["points"]} >= {
        kind for kind, row in KINDS.items() if not row.only_before_headers and kind not in (Kind.NOTHING, Kind.TOOL_KILLED)
    }
    assert "every promise was kept" in (tmp_path / "index.html").read_text()

    decided = [point for point in report["points"] if point["attempts"]]
    for point in decided[:20]:
        again = CliRunner().invoke(faults, ["replay", str(tmp_path / point["trace"])])
        assert again.exit_code == 0, again.output


def test_a_point_again_on_a_stage_of_its_own(tmp_path: Path) -> None:
    ran = CliRunner().invoke(faults, ["run", "--select", "tool_killed.chat.stream.*", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    (trace,) = (tmp_path / "traces").iterdir()
    again = CliRunner().invoke(faults, ["replay", str(trace), "--real", "--out", str(tmp_path / "again")])
    assert again.exit_code == 0, again.output
    assert "recorded: complete, 2 attempts; again: complete, 2 attempts" in again.output


def test_no_such_point(tmp_path: Path) -> None:
    result = CliRunner().invoke(faults, ["run", "--select", "nothing-like-it", "--out", str(tmp_path)])
    assert (result.exit_code, "no point has such a key" in result.output) == (2, True)
