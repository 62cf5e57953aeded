"""``deltafence drain``: what a pod's preStop hook runs, so that a stop lets running streams end.

The hook's container is the processor's, and Envoy ends after it (a native sidecar), so that a stream's last bytes, its
terminal event included, still have a way to the client. The hook ends when nothing runs any more or at its limit; then
the processor gets its SIGTERM and ends what is left with the terminal event.
"""

import asyncio
from pathlib import Path

import aiohttp
import click

from extproc.app.envoy_drain import drain_envoy
from extproc.app.envoy_process import EnvoyAdmin
from extproc.app.parameters import DURATION


@click.command()
@click.option("--envoy-admin", "admin_socket", type=click.Path(path_type=Path), required=True, help="Envoy's admin socket.")
@click.option("--settle", default="10s", show_default=True, type=DURATION, help="Load balancers' time to look elsewhere.")
@click.option("--limit", default="60s", show_default=True, type=DURATION, help="How long running streams may take to end.")
def drain(admin_socket: Path, settle: float, limit: float) -> None:
    """Turn new clients away and wait for the running streams of the Envoy beside this process.

    Ends with status 0 in every case that a stop can go on from, an Envoy that is gone included.
    """
    try:
        left = asyncio.run(drain_at(admin_socket, settle_s=settle, limit_s=limit))
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        click.echo(f"Envoy does not answer at {admin_socket}: {error}", err=True)
        return
    click.echo(f"{left} streams are left to the processor" if left else "every stream has ended", err=True)


async def drain_at(admin_socket: Path, *, settle_s: float, limit_s: float) -> int:
    """How many streams still run at the limit. Raises as ``drain_envoy`` does."""
    async with EnvoyAdmin.at(admin_socket) as admin:
        return await drain_envoy(admin, settle_s=settle_s, limit_s=limit_s)
