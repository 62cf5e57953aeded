"""What `deltafence up` was asked for, and what follows from it before anything is started."""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.envoy_config import GENERATION_ROUTES, SOCKET_PATH_BYTES_MAX, EnvoySettings
from extproc.decision.policy import Mode
from extproc.telemetry.logs import LogFormat

OWN_COMMAND: Final = (sys.executable, "-m", "extproc.app", "processor")
PROCESSORS_MAX: Final = 64
LONGEST_SOCKET_NAME: Final = "deltafence-xxxxxxxx/processor-64.sock"


class StartRefusedError(Exception):
    """Something that the user can mend stands in the way; nothing is left running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """One `deltafence up`."""

    replicas: tuple[ReplicaAddress, ...]
    listen: Address
    admin: Address
    envoy: Path
    policy: Path | None = None
    mode: Mode = Mode.ENFORCE
    """What the policy file says of routes that say nothing else; all of them, here."""
    token_file: Path | None = None
    replica_ca: Path | None = None
    processors: int = 1
    access_log: str | None = None
    drain_limit_s: float = 30.0
    processor_options: tuple[str, ...] = ()
    """Further options of `deltafence processor`, handed on as they are."""
    log_format: LogFormat = LogFormat.TEXT
    processor_command: tuple[str, ...] = OWN_COMMAND

    @property
    def envoy_concurrency(self) -> int:
        """Envoy's worker threads: the cores that the processors leave, since more of them only compete."""
        return max(1, len(os.sched_getaffinity(0)) - self.processors)

    def envoy_settings(self, directory: Path) -> EnvoySettings:
        """Raises StartRefusedError."""
        try:
            return EnvoySettings(
                listen=(self.listen,),
                replicas=self.replicas,
                processor_sockets=tuple(directory / f"processor-{number}.sock" for number in range(1, self.processors + 1)),
                egress_socket=directory / "egress.sock",
                admin_socket=directory / "envoy-admin.sock",
                access_log=self.access_log,
                replica_ca=self.replica_ca,
                routes=tuple(replace(route, default_mode=self.mode) for route in GENERATION_ROUTES),
            )
        except ValueError as refusal:
            raise StartRefusedError(str(refusal)) from refusal

    def processor_arguments(self, envoy: EnvoySettings, number: int) -> list[str]:
        """The command line of processor ``number``, from 1; only the first has an HTTP interface.

        Its own drain limit is 0: it is told to stop when the running requests have had their time.
        """
        optional = {
            "--admin": self.admin if number == 1 else None,
            "--policy": self.policy,
            "--token-file": self.token_file,
        }
        return [
            *self.processor_command,
            *("--socket", str(envoy.processor_sockets[number - 1])),
            *("--egress", str(envoy.egress_socket)),
            *("--drain-limit", "0s"),
            *("--log-format", str(self.log_format)),
            *(word for replica in self.replicas for word in ("--replica", str(replica))),
            *(word for option, value in optional.items() if value is not None for word in (option, str(value))),
            *self.processor_options,
        ]

    def require_free_ports(self) -> None:
        """Raises StartRefusedError, naming the port and its option.

        Envoy binds with SO_REUSEPORT, so a second gateway of the same user would silently share the port with the first.
        """
        if self.listen.port and self.listen == self.admin:
            raise StartRefusedError(f"--listen and --admin are both {self.listen}")
        for option, address in (("--listen", self.listen), ("--admin", self.admin)):
            obstacle = address.find_obstacle()
            if obstacle is not None:
                raise StartRefusedError(
                    f"{option} {address}: cannot listen on port {address.port}: {os.strerror(obstacle.errno or 0)}"
                )


@contextmanager
def run_directory() -> Iterator[Path]:
    """A directory for this run's sockets that only this user can enter (mode 0700).

    Under XDG_RUNTIME_DIR where sockets' names still fit there, else under /tmp; TMPDIR may be long, so it is not asked.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    fits = len(os.fsencode(base)) + 1 + len(LONGEST_SOCKET_NAME) <= SOCKET_PATH_BYTES_MAX
    usable = os.path.isabs(base) and os.access(base, os.W_OK | os.X_OK) and fits
    with tempfile.TemporaryDirectory(prefix="deltafence-", dir=base if usable else "/tmp", ignore_cleanup_errors=True) as name:  # noqa: S108
        yield Path(name)


def free_port(host: str) -> int:
    """A port that was free a moment ago."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
