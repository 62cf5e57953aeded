"""What is compared. A new contender is a function that starts it and a line in ``CONTENDERS``."""

import json
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench import envoy_config, measure, peers
from bench.contender import Contender
from bench.processes import read_line, running, running_module, wait_until_answering
from bench.scenarios import PEERS, SCENARIOS, STEPS, Scenario
from extproc.links.listening import free_port, free_ports

_BIN: Final = Path(sys.executable).parent
PROCESSORS_MAX: Final = 2
"""Of one contender: so many admin ports follow each other."""


@contextmanager
def deltafence(
    upstream_port: int, folder: Path, name: str = "deltafence", *options: str, up_options: tuple[str, ...] = ()
) -> Iterator[Contender]:
    """``deltafence up`` as a user starts it, with these options of the processor and of its own; all its processes but Envoy
    are the processor's share."""
    # A second processor's admin port is the one after the first's.
    port, admin_port, log = free_port(), free_ports(PROCESSORS_MAX)[0], folder / f"{name}.log"
    addresses = ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin_port}"]
    replica = ["--replica", f"http://127.0.0.1:{upstream_port}"]
    with running([_BIN / "deltafence", "up", *replica, *addresses, *up_options, "--", *options], log) as child:
        word, _, url = read_line(child, log).strip().partition(" ")
        assert (word, urllib.parse.urlsplit(url).port) == ("ready", port), f"unexpected line: {word} {url}"
        pids = measure.family(child.pid)
        yield Contender(
            port=port,
            processor_pids=tuple(pid for pid in pids if not measure.is_envoy(pid)),
            envoy_pids=tuple(pid for pid in pids if measure.is_envoy(pid)),
        )


def deltafence_egress(upstream_port: int, folder: Path) -> AbstractContextManager[Contender]:
    """The reference transport, with the attempts as HTTP/2 streams."""
    return deltafence(upstream_port, folder, "deltafence_egress", "--egress-protocol", "h2")


def deltafence_http2(upstream_port: int, folder: Path) -> AbstractContextManager[Contender]:
    """Our own HTTP/2 on both sides of the processor."""
    return deltafence(upstream_port, folder, "deltafence_http2", "--transport", "http2", "--egress-protocol", "h2")


@contextmanager
def echo(upstream_port: int, folder: Path, *loop: str) -> Iterator[Contender]:
    """Envoy with a no-op external processor in Python (echo.py), on asyncio's own event loop."""
    port = free_port()
    # Not in folder: a socket's path holds 107 bytes and no more.
    with tempfile.TemporaryDirectory() as short_path:
        socket = f"{short_path}/echo.sock"
        with (
            running_module("bench.echo", socket, *loop, log=folder / "echo.log") as processor,
            _envoy(envoy_config.with_echo(port, upstream_port, socket), port, folder / "envoy_echo") as envoy_pid,
        ):
            yield Contender(port=port, processor_pids=(processor.pid,), envoy_pids=(envoy_pid,))


def echo_uvloop(upstream_port: int, folder: Path) -> AbstractContextManager[Contender]:
    """The same no-op on uvloop: what the faster loop alone brings."""
    return echo(upstream_port, folder, "uvloop")


@contextmanager
def envoy_alone(upstream_port: int, folder: Path) -> Iterator[Contender]:
    """Envoy as a plain proxy: the floor."""
    port = free_port()
    with _envoy(envoy_config.alone(port, upstream_port), port, folder / "envoy_alone") as envoy_pid:
        yield Contender(port=port, processor_pids=(), envoy_pids=(envoy_pid,))


@contextmanager
def _envoy(config: envoy_config.Config, port: int, name: Path) -> Iterator[int]:
    """One worker: on two cores that it shares with everything else, a second one only adds contention (FACTS C14)."""
    file, log = name.with_suffix(".json"), name.with_suffix(".log")
    file.write_text(json.dumps(config))
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
    with running([_BIN / "envoy", "-c", file, *options], log) as child:
        wait_until_answering(port, child, log)
        yield child.pid


Start = Callable[[int, Path], AbstractContextManager[Contender]]

CONTENDERS: Final[dict[str, Start]] = {
    "deltafence": deltafence,
    "deltafence_egress": deltafence_egress,
    "deltafence_http2": deltafence_http2,
    "echo": echo,
    "echo_uvloop": echo_uvloop,
    "envoy": envoy_alone,
    "vllm_router": peers.vllm_router,
    "litellm": peers.litellm,
}
"""Name to how it starts, given the replica's port and a folder for its files."""


def loads_of(name: str) -> tuple[Scenario, ...]:
    """LiteLLM's proxy fills a core near 1,500 deltas a second: under the larger loads its queue would be what is measured."""
    return (PEERS, STEPS) if name == "litellm" else SCENARIOS


@contextmanager
def started(names: list[str], upstream_port: int, folder: Path) -> Iterator[dict[str, Contender]]:
    """All of them at once: an idle contender costs the others nothing, and turns can be short."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(CONTENDERS[name](upstream_port, folder)) for name in names}
