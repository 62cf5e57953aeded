"""``python -m extproc.worker.probe``: the liveness probe beside a vLLM container (``deltafence probe`` is the same).

Asks the server's own metrics first, sends a request only to an idle engine, and tells the kubelet to restart only what is proved
hung or dead (R20-R27). Needs the standard library alone. Keeps its record in memory: it is its own container, so it outlives
the model container's restarts. It restarts nothing itself.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from extproc.decision.liveness import LivenessSettings
from extproc.decision.verdicts import HealthSettings
from extproc.worker.plain_http import Target, tls_context
from extproc.worker.probe_server import ProbeServer
from extproc.worker.watch import Note, Watch, WatchSettings

API_KEY_VARIABLE: Final = "VLLM_API_KEY"
"""The server's own variable, so that one Secret serves both containers of the pod."""
MS_PER_UNIT: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
RESTART_WATCH_AFTER_S: Final = 5.0


def parse_listen(text: str) -> tuple[str | None, int]:
    """``HOST:PORT``, ``[IPV6]:PORT``, or ``:PORT`` for every interface, which the kubelet needs. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT or :PORT")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:9091")
    return host.strip("[]") or None, int(port)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Exits with a usage message where they are wrong, as argparse does."""
    defaults = default_settings()
    health, liveness = defaults.health, defaults.liveness
    parser = argparse.ArgumentParser(
        prog="deltafence probe",
        description="A liveness probe for a vLLM pod that asks nothing of a busy engine.",
        epilog=f"The key in {API_KEY_VARIABLE}, if set, is sent to the target's /v1 paths. Pages: /livez /readyz /verdict.",
    )
    parser.add_argument("--target", default="http://127.0.0.1:8000", help="the vLLM server (default: %(default)s)")
    parser.add_argument(
        "--listen", default="127.0.0.1:9091", help="HOST:PORT, or :9091 for every interface (default: %(default)s)"
    )

    def duration(name: str, default_ms: int, description: str) -> None:
        parser.add_argument(
            name, type=_duration, default=default_ms, metavar="DURATION", help=f"{description} (default: {default_ms // 1000}s)"
        )

    duration("--interval", health.interval_ms, "between two readings")
    duration("--hung-after", health.hung_after_ms, "work in flight and nothing moving for so long is hung, after two waits")
    duration("--answer-deadline", health.answer_deadline_ms, "for one token of an idle engine")
    duration("--answer-every", health.answer_every_ms, "an idle engine is asked at most so often")
    duration("--load-time", liveness.refused_after_ms, "a refused connection for less than this may be a model that loads")
    duration("--read-timeout", defaults.read_timeout_ms, "for one reading")
    parser.add_argument(
        "--restarts-per-hour",
        type=int,
        default=liveness.restarts_per_hour_max,
        metavar="N",
        help="after so many /livez only reports; 0: it never fails (default: %(default)s)",
    )
    parser.add_argument("--ca-file", help="for an https target: the certificates to trust")
    parser.add_argument("--insecure", action="store_true", help="for an https target: do not verify its certificate")
    return parser.parse_args(arguments)


def default_settings() -> WatchSettings:
    """More patient than a gateway's monitor: what follows from its proof is a restart of minutes."""
    return WatchSettings(
        health=HealthSettings(interval_ms=10_000, hung_after_ms=180_000, stale_after_ms=40_000),
        liveness=LivenessSettings(),
        read_timeout_ms=5_000,
    )


def read_settings(given: argparse.Namespace) -> WatchSettings:
    """Raises ValueError where the options contradict each other."""
    return WatchSettings(
        health=HealthSettings(
            interval_ms=given.interval,
            hung_after_ms=given.hung_after,
            stale_after_ms=4 * given.interval,
            answer_deadline_ms=given.answer_deadline,
            answer_every_ms=given.answer_every,
        ),
        liveness=LivenessSettings(restarts_per_hour_max=given.restarts_per_hour, refused_after_ms=given.load_time),
        read_timeout_ms=given.read_timeout,
    )


def parse_duration_ms(text: str) -> int:
    """``500ms``, ``30s``, ``5m`` or ``1h``; a bare number is refused, since its unit would be a guess. Raises ValueError."""
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a whole number with a unit (500ms, 30s, 5m, 1h)")
    return int(found[1]) * MS_PER_UNIT[found[2]]


def _duration(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(str(refusal)) from refusal


def note(word: str, facts: dict[str, object]) -> None:
    """One JSON line on stderr."""
    line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": word} | facts
    print(json.dumps(line), file=sys.stderr, flush=True)  # noqa: T201  (the container's log)


async def run_probe(target: Target, settings: WatchSettings, host: str | None, port: int) -> None:
    """Watch and serve until SIGTERM or SIGINT. Raises OSError where it can't listen."""
    watch = Watch(target, settings, note)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ProbeServer(watch).listening(host, port) as addresses:
        note("listening", {"addresses": addresses, "target": target.authority})
        watching = asyncio.create_task(keep_watching(watch.run, note), name="watch")
        await stop.wait()
        watching.cancel()


async def keep_watching(run: Callable[[], Awaitable[None]], note: Note) -> None:
    """Run the watch for ever. A fault of ours must not end the process: the kubelet would restart the model for it."""
    while True:
        try:
            await run()
        except Exception as error:
            note("watch_failed", {"error": f"{type(error).__name__}: {error}"})
            await asyncio.sleep(RESTART_WATCH_AFTER_S)


def main(arguments: Sequence[str]) -> int:
    """Run the probe; 0 when it was told to stop, 1 where it can't listen, 2 for wrong options."""
    given = parse_arguments(arguments)
    try:
        settings = read_settings(given)
        host, port = parse_listen(given.listen)
        tls = tls_context(ca_file=given.ca_file, insecure=given.insecure)
        target = Target.parse(given.target, tls=tls, api_key=os.environ.get(API_KEY_VARIABLE, ""))
    except (ValueError, OSError) as error:
        print(f"deltafence probe: {error}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        asyncio.run(run_probe(target, settings, host, port))
    except OSError as error:
        print(f"deltafence probe: can't listen on {given.listen}: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
