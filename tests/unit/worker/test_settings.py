"""The guard's settings: what can't be read stops the server with the variable's name."""

from pathlib import Path

import pytest

from extproc.routes.schema import LEAVES
from extproc.worker import LeaseGuard
from extproc.worker.settings import LEASE_TTL_MAX_MS_DEFAULT, GuardSettings, SettingsError, default_state_dir

MINIMAL = {"DELTAFENCE_TOKEN": "secret"}


def test_only_the_secret_must_be_given() -> None:
    settings = GuardSettings.from_environment(MINIMAL)
    assert settings == GuardSettings(
        token=b"secret", require_lease=False, lease_ttl_max_ms=300_000, state_dir=default_state_dir()
    )


def test_secret_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    settings = GuardSettings.from_environment({"DELTAFENCE_TOKEN_FILE": str(tmp_path / "token")})
    assert settings.token == b"from-a-file"


def test_everything_can_be_set() -> None:
    settings = GuardSettings.from_environment(
        MINIMAL
        | {
            "DELTAFENCE_REQUIRE_LEASE": " True ",
            "DELTAFENCE_LEASE_TTL_MAX_MS": "120000",
            "DELTAFENCE_STATE_DIR": "/var/lib/guard",
        }
    )
    assert (settings.require_lease, settings.lease_ttl_max_ms, settings.state_dir) == (True, 120_000, Path("/var/lib/guard"))


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "DELTAFENCE_TOKEN"),
        ({"DELTAFENCE_TOKEN": ""}, "DELTAFENCE_TOKEN"),
        ({"DELTAFENCE_TOKEN": "  "}, "DELTAFENCE_TOKEN is empty"),
        ({"DELTAFENCE_TOKEN": "a", "DELTAFENCE_TOKEN_FILE": "/b"}, "exactly one"),
        ({"DELTAFENCE_TOKEN_FILE": "/nowhere/token"}, "DELTAFENCE_TOKEN_FILE"),
        (MINIMAL | {"DELTAFENCE_REQUIRE_LEASE": "yes"}, "DELTAFENCE_REQUIRE_LEASE"),
        (MINIMAL | {"DELTAFENCE_REQUIRE_LEASE": "1"}, "DELTAFENCE_REQUIRE_LEASE"),
        *(
            (MINIMAL | {"DELTAFENCE_LEASE_TTL_MAX_MS": text}, "DELTAFENCE_LEASE_TTL_MAX_MS")
            for text in ("abc", "NaN", "inf", "-1", "5s")
        ),
        *(
            (MINIMAL | {"DELTAFENCE_LEASE_TTL_MAX_MS": text}, "DELTAFENCE_LEASE_TTL_MAX_MS")
            for text in ("0", "1_000", "1e3", "٣")
        ),
    ],
)
def test_what_cannot_be_read_is_named(environment: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        GuardSettings.from_environment(environment)


def test_secret_is_not_shown() -> None:
    assert "secret" not in repr(GuardSettings.from_environment(MINIMAL))


def test_guard_without_a_secret_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    monkeypatch.delenv("DELTAFENCE_TOKEN", raising=False)
    with pytest.raises(SettingsError):
        LeaseGuard(app)


def test_no_policy_may_ask_for_a_longer_lease_than_a_guard_accepts() -> None:
    assert LEAVES["lease.ttl_ms"].rules["maximum"] == LEASE_TTL_MAX_MS_DEFAULT
