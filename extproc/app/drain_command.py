"""``deltafence drain``: what a pod's preStop hook runs, so that a stop lets running streams end.

The hook's container is the processor's, and Envoy ends after it (a native sidecar), so that a stream's last bytes, its
terminal event included, still have a way to the client. The hook ends when nothing runs any more or at its limit; then
the processor gets its SIGTERM and ends what is left with the terminal event.
"""

import asyncio
import time
from pathlib import Path
from typing import Final

import aiohttp
import click

from extproc.app.envoy_process import EnvoyAdmin
from extproc.app.parameters import DURATION

POLL_S: Final = 0.1


@click.command()
@click.option("--envoy-admin", "admin_socket", type=click.Path(path_type=Path), required=True, help="Envoy's admin socket.")
@click.option("--settle", default="10s", show_default=True, type=DURATION, help="Load balancers' time to look elsewhere.")
@click.option("--limit", default="60s", show_default=True, type=DURATION, help="How long running streams may take to end.")
def drain(admin_socket: Path, settle: float, limit: float) -> None:
    """Turn new clients away and wait for the running streams of the Envoy beside this process.

    Ends with status 0 in every case that a stop can go on from, an Envoy that is gone included.
    """
    try:
        left = asyncio.run(drain_envoy(admin_socket, settle_s=settle, limit_s=limit))
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        click.echo(f"Envoy does not answer at {admin_socket}: {error}", err=True)
        return
    click.echo(f"{left} streams are left to the processor" if left else "every stream has ended", err=True)


async def drain_envoy(admin_socket: Path, *, settle_s: float, limit_s: float) -> int:
    """How many streams still run at the limit. Times are counted from the call.

    Raises aiohttp.ClientError or OSError where Envoy does not answer.
    """
    deadline = time.monotonic() + limit_s
    async with EnvoyAdmin.at(admin_socket) as admin:
        await admin.start_drain()
        await asyncio.sleep(min(settle_s, limit_s))
        await _streams_left(admin, deadline)
        await admin.close_front()
        # A request may have slipped in between the last look and the closed door.
        return await _streams_left(admin, deadline)


async def _streams_left(admin: EnvoyAdmin, deadline: float) -> int:
    """Waits for none; how many there are at the deadline."""
    while True:
        running = await admin.running_requests()
        if running == 0 or time.monotonic() >= deadline:
            return running
        await asyncio.sleep(POLL_S)
