"""What the lease guard costs a replica per delta: the same server with and without it, in turns (issue 3: below 20 us).

``python -m bench.guard [--rounds N] [--out FILE]`` starts two uvicorn servers on uvloop, as vLLM runs its own, whose app
streams deltas as fast as it can: one with the guard and its leases, one without. It reads their CPU time from /proc, so
that waiting costs nothing. Exit status 1 where the guard costs more than the limit.
"""

import argparse
import asyncio
import json
import os
import secrets
import socket
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

import aiohttp
import uvicorn

from bench.measure import cpu_s
from bench.processes import read_json, running_module
from bench.upstream import DELTA
from extproc.contract import headers
from extproc.contract.guard import HEARTBEAT_PATH
from extproc.worker import LeaseGuard
from extproc.worker.asgi import App, Receive, Scope, Send

LIMIT_US: Final = 20.0
STREAMS: Final = 50
DELTAS: Final = 1_000
TOKEN: Final = "bench"
BODY: Final = DELTA.split(b"\r\n")[1]


async def stream_deltas(scope: Scope, receive: Receive, send: Send) -> None:
    """One delta per turn of the loop, so that the streams run side by side."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(DELTAS):
        await send({"type": "http.response.body", "body": BODY, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


def serve(is_guarded: bool) -> None:
    """The child's part: print the port, then serve until it is stopped."""
    app: App = LeaseGuard(stream_deltas) if is_guarded else stream_deltas
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    config = uvicorn.Config(app, lifespan="off", log_level="warning", loop="uvloop", http="httptools")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


async def load(port: int, *, is_guarded: bool) -> None:
    """``STREAMS`` answers at once, each read to its end; raises where one is not whole."""
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=STREAMS)) as session:
        lease = await granted(session, url) if is_guarded else {}

        async def read_one() -> None:
            attempt = {headers.ATTEMPT_ID: f"att_{secrets.token_hex(13)}"} if is_guarded else {}
            async with session.post(url, headers=lease | attempt) as response:
                body = await response.read()
            assert body.count(BODY) == DELTAS

        await asyncio.gather(*(read_one() for _ in range(STREAMS)))


async def granted(session: aiohttp.ClientSession, url: str) -> dict[str, str]:
    """The headers of a lease from a fresh stamp, without the attempt's id."""
    async with session.post(url + HEARTBEAT_PATH, headers={headers.TOKEN: TOKEN}, json={"leases": []}) as response:
        stamp = await response.json()
    return {
        headers.TOKEN: TOKEN,
        headers.BOOT_ID: stamp["boot_id"],
        headers.VALID_UNTIL_MS: str(stamp["now_ms"] + 60_000),
    }


def measure(rounds: int) -> dict[bool, list[float]]:
    """Microseconds of CPU per delta in each round, guarded and not."""
    figures: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="bench") as temporary:
        folder = Path(temporary)
        os.environ |= {"DELTAFENCE_TOKEN": TOKEN, "DELTAFENCE_STATE_DIR": temporary}
        with (
            running_module("bench.guard", "--serve", "guarded", log=folder / "guarded.log") as guarded,
            running_module("bench.guard", "--serve", "bare", log=folder / "bare.log") as bare,
        ):
            servers = {True: (guarded, folder / "guarded.log"), False: (bare, folder / "bare.log")}
            ports = {is_guarded: int(read_json(child, log)["port"]) for is_guarded, (child, log) in servers.items()}
            for _ in range(rounds + 1):
                for is_guarded, (child, _log) in servers.items():
                    before_s = cpu_s([child.pid])
                    asyncio.run(load(ports[is_guarded], is_guarded=is_guarded))
                    figures[is_guarded].append((cpu_s([child.pid]) - before_s) / (STREAMS * DELTAS) * 1e6)
    return {is_guarded: values[1:] for is_guarded, values in figures.items()}  # the first round warms up


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description="What the lease guard costs per delta.")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each server (default: 5)")
    parser.add_argument("--out", type=Path, default=Path("out/bench-guard.json"), help="default: out/bench-guard.json")
    parser.add_argument("--serve", choices=["guarded", "bare"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(is_guarded=arguments.serve == "guarded")
        return
    figures = measure(arguments.rounds)
    with_us, without_us = statistics.median(figures[True]), statistics.median(figures[False])
    added_us = with_us - without_us
    document = {
        "with_us": with_us,
        "without_us": without_us,
        "added_us": added_us,
        "limit_us": LIMIT_US,
        "rounds_us": {"with": figures[True], "without": figures[False]},
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=2) + "\n")
    print(f"CPU per delta: {without_us:.1f} us without the guard, {with_us:.1f} us with it")
    print(f"the guard adds {added_us:.1f} us (limit {LIMIT_US:.0f})")
    sys.exit(1 if added_us > LIMIT_US else 0)


if __name__ == "__main__":
    main()
