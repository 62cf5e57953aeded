"""Options of what is durable: the journal, the keys and the ledger, and how long each is kept."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from extproc.app.database_options import DATABASE_VARIABLE
from extproc.app.parameters import DURATION, read_secret
from extproc.app.stores import KeySettings, StoreSettings
from extproc.journal.availability import WhenUnavailable
from extproc.journal.housekeeping import Retention

TAKEOVER_S_MIN: Final = 1.0
"""A busy process renews its name four times in that time; below it, it might come too late."""

OPTIONS: Final = (
    click.option(
        "--journal",
        envvar=DATABASE_VARIABLE,
        show_envvar=True,
        metavar="URL",
        help="A SQLite file's path, or postgresql://user@host/name.  [default: in memory]",
    ),
    click.option(
        "--journal-unavailable",
        type=click.Choice([str(choice) for choice in WhenUnavailable]),
        default=str(WhenUnavailable.REFUSE),
        show_default=True,
        help="What becomes of new generations while the journal can't be written.",
    ),
    click.option("--journal-keep", type=DURATION, default="720h", show_default=True, help="How long ended requests are kept."),
    click.option(
        "--journal-bytes-max",
        type=click.IntRange(1 << 20),
        default=4 << 30,
        show_default=True,
        help="The oldest ended requests go when more is stored; a SQLite file of twice the size counts as a full disk.",
    ),
    click.option(
        "--takeover-after",
        type=DURATION,
        default="20s",
        show_default=True,
        help="After so long without a sign of life others settle what this process left; longer than any lease.",
    ),
    click.option(
        "--key-secret-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Secret that hashes Idempotency-Keys; the same in all gateways that share a database.",
    ),
    click.option(
        "--key-ttl", type=DURATION, default="24h", show_default=True, help="How long a key is remembered after its run."
    ),
    click.option("--caller-header", default="authorization", show_default=True, help="The header that tells callers apart."),
)


def store_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets them as ``stores`` (StoreSettings) and ``keys`` (KeySettings)."""

    @functools.wraps(command)
    def with_settings(
        *,
        journal: str | None,
        journal_unavailable: str,
        journal_keep: float,
        journal_bytes_max: int,
        takeover_after: float,
        key_secret_file: Path | None,
        key_ttl: float,
        caller_header: str,
        **others: Any,  # noqa: ANN401  (the command's own)
    ) -> None:
        for option, seconds in (("--journal-keep", journal_keep), ("--key-ttl", key_ttl), ("--takeover-after", takeover_after)):
            if seconds < TAKEOVER_S_MIN:
                raise click.BadParameter(f"at least {TAKEOVER_S_MIN:g}s", param_hint=option)
        stores = StoreSettings(
            url=journal,
            when_unavailable=WhenUnavailable(journal_unavailable),
            retention=Retention(age_ms_max=round(journal_keep * 1000), bytes_max=journal_bytes_max),
            owner_ttl_ms=round(takeover_after * 1000),
        )
        keys = KeySettings(
            secret=read_secret(key_secret_file, "--key-secret-file").encode(),
            ttl_ms=round(key_ttl * 1000),
            caller_header=caller_header.lower(),
        )
        command(stores=stores, keys=keys, **others)

    for option in reversed(OPTIONS):
        option(with_settings)
    return with_settings


def require_takeover_after_leases(stores: StoreSettings, lease_ttl_ms: int) -> None:
    """Raises click.ClickException where others would settle a request whose attempt may still publish (R6)."""
    if stores.url is not None and stores.owner_ttl_ms < lease_ttl_ms:
        raise click.ClickException(
            f"--takeover-after {stores.owner_ttl_ms}ms is shorter than the policy's lease.ttl_ms, {lease_ttl_ms}:"
            " a request would be taken over while an attempt of it may still run"
        )
