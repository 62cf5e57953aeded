"""deltafence drain: what it says, and an Envoy that is gone."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.app import drain_command
from extproc.app.drain_command import drain


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


def test_an_envoy_that_is_gone_does_not_hold_up_a_stop(socket: Path) -> None:
    result = CliRunner().invoke(drain, ["--envoy-admin", str(socket)])
    assert result.exit_code == 0
    assert "Envoy does not answer" in result.output


@pytest.mark.parametrize(("left", "said"), [(0, "every stream has ended"), (2, "2 streams are left to the processor")])
def test_it_says_how_it_ended(socket: Path, monkeypatch: pytest.MonkeyPatch, left: int, said: str) -> None:
    async def ended(admin_socket: Path, *, settle_s: float, limit_s: float) -> int:
        assert (admin_socket, settle_s, limit_s) == (socket, 3.0, 90.0)
        return left

    monkeypatch.setattr(drain_command, "drain_at", ended)
    result = CliRunner().invoke(drain, ["--envoy-admin", str(socket), "--settle", "3s", "--limit", "90s"])
    assert (result.exit_code, result.output) == (0, f"{said}\n")
