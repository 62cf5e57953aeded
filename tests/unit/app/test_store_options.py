"""What the operator may say of journal and keys, and what contradicts itself."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from extproc.app.store_options import require_takeover_after_leases, store_options
from extproc.app.stores import KeySettings, StoreSettings
from extproc.journal.availability import WhenUnavailable
from extproc.journal.housekeeping import Retention

given: list[tuple[StoreSettings, KeySettings]] = []


@click.command()
@store_options
@click.option("--other")
def command(stores: StoreSettings, keys: KeySettings, other: str | None) -> None:
    given.append((stores, keys))


def run(*arguments: str) -> Result:
    given.clear()
    return CliRunner().invoke(command, list(arguments), env={"DELTAFENCE_JOURNAL": ""})


def test_without_options_the_settings_are_the_defaults() -> None:
    assert run("--other", "x").exit_code == 0
    assert given == [(StoreSettings(), KeySettings())]


def test_every_option_reaches_its_setting(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    options = {
        "--journal": "j.db",
        "--journal-unavailable": "serve_without_journal",
        "--journal-keep": "2h",
        "--journal-bytes-max": str(2 << 20),
        "--takeover-after": "5s",
        "--key-secret-file": str(secret),
        "--key-ttl": "30m",
        "--caller-header": "X-User",
    }
    result = run(*(word for option in options.items() for word in option))
    assert result.exit_code == 0, result.output
    ((stores, keys),) = given
    assert stores == StoreSettings(
        url="j.db",
        when_unavailable=WhenUnavailable.SERVE_WITHOUT_JOURNAL,
        retention=Retention(age_ms_max=7_200_000, bytes_max=2 << 20),
        owner_ttl_ms=5_000,
    )
    assert keys == KeySettings(secret=b"hush", ttl_ms=1_800_000, caller_header="x-user")


@pytest.mark.parametrize("option", ["--journal-keep", "--key-ttl", "--takeover-after"])
def test_a_time_that_is_too_short_is_refused_by_its_name(option: str) -> None:
    result = run(option, "500ms")
    assert result.exit_code == 2
    assert f"Invalid value for {option}: at least 1s" in result.output


def test_a_takeover_waits_longer_than_a_lease_lasts() -> None:
    require_takeover_after_leases(StoreSettings(url="j.db", owner_ttl_ms=1_000), 1_000)
    require_takeover_after_leases(StoreSettings(owner_ttl_ms=1_000), 10_000)
    with pytest.raises(click.ClickException, match=r"--takeover-after 1000ms is shorter than .* 10000"):
        require_takeover_after_leases(StoreSettings(url="j.db", owner_ttl_ms=1_000), 10_000)
