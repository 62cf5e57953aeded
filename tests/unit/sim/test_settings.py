import pytest

from extproc.sim.faults import parse_fault
from extproc.sim.settings import FAULTS_VARIABLE, MetricsMode, Settings, parse_settings


def test_settings_survive_the_command_line() -> None:
    settings = Settings(
        name="r2",
        port=8123,
        tokens=3,
        token_interval_ms=0.5,
        adapters=("a", "b"),
        guard=True,
        token="-secret-",
        metrics=MetricsMode.EMPTY,
        faults=(parse_fault("mid_decode:reset,deltas=3,times=1"), parse_fault("after_role:kill")),
        die_with_parent=True,
    )
    assert parse_settings(settings.arguments()) == settings


def test_defaults_need_no_arguments() -> None:
    assert Settings().arguments() == []
    assert parse_settings([]) == Settings()


def test_environment_adds_faults() -> None:
    environment = {FAULTS_VARIABLE: "after_role:kill mid_decode:eof,deltas=1"}
    settings = parse_settings(["--fault", "before_finish:abort"], environment=environment)
    assert [fault.label for fault in settings.faults] == ["before_finish:abort", "after_role:kill", "mid_decode:eof"]


@pytest.mark.parametrize("arguments", [["--fault", "nowhere:kill"], ["--metrics", "odd"], ["--tokens", "few"], ["--unknown"]])
def test_wrong_argument_ends_with_a_usage_message(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(arguments)
    assert "usage: python -m extproc.sim" in capsys.readouterr().err
