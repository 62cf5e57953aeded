"""What `deltafence up` was asked for, and what follows from it before anything is started."""

import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from extproc.app.addresses import Address, ReplicaAddress
from extproc.app.database_options import DATABASE_VARIABLE
from extproc.app.envoy_config import GENERATION_ROUTES, SOCKET_PATH_BYTES_MAX, EnvoySettings, ToolEndpoint
from extproc.decision.policy import Mode
from extproc.decision.verdicts import HealthSettings
from extproc.links.listening import free_ports
from extproc.telemetry.logs import LogFormat

OWN_COMMAND: Final = (sys.executable, "-m", "extproc.app", "processor")
PROCESSORS_MAX: Final = 64
DEFAULT_TOOLS_LISTEN: Final = Address(host="127.0.0.1", port=8081)
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
    journal: str | None = None
    """The database of every processor; None keeps the journal in the one processor's memory."""
    tools: tuple[ToolEndpoint, ...] = ()
    tools_listen: Address = DEFAULT_TOOLS_LISTEN
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
                tools=self.tools,
                tools_listen=self.tools_listen if self.tools else None,
            )
        except ValueError as refusal:
            raise StartRefusedError(str(refusal)) from refusal

    def processor_arguments(self, envoy: EnvoySettings, number: int) -> list[str]:
        """The command line of processor ``number``, from 1.

        Its own drain limit is 0: it is told to stop when the running requests have had their time. A database that the
        environment names stays there, since its address may hold a password and command lines are everybody's to read.
        """
        optional = {
            "--admin": self.admins[number - 1],
            "--policy": self.policy,
            "--token-file": self.token_file,
            "--replica-ca": self.replica_ca,
            "--journal": None if self.journal == os.environ.get(DATABASE_VARIABLE) else self.journal,
            # Each process looks at each replica for itself; together they look as often as one would.
            "--health-interval": f"{self.processors * HealthSettings().interval_ms}ms" if self.processors > 1 else None,
        }
        return [
            *self.processor_command,
            *("--socket", str(envoy.processor_sockets[number - 1])),
            *("--egress", str(envoy.egress_socket)),
            *("--drain-limit", "0s"),
            *("--log-format", str(self.log_format)),
            *(word for replica in self.replicas for word in ("--replica", str(replica))),
            *(
                word
                for place, admin in enumerate(self.admins, 1)
                if place != number
                for word in ("--sibling", str(admin.reachable))
            ),
            *(word for option, value in optional.items() if value is not None for word in (option, str(value))),
            *self.processor_options,
        ]

    @property
    def admins(self) -> tuple[Address, ...]:
        """Where each processor serves its pages and metrics: ``admin``, and the ports that follow it.

        Raises StartRefusedError where there are no such ports.
        """
        try:
            return tuple(replace(self.admin, port=self.admin.port + number) for number in range(self.processors))
        except ValueError as refusal:
            raise StartRefusedError(
                f"--admin {self.admin}: each of {self.processors} processors needs a port, and {refusal}"
            ) from None

    def with_admin_ports(self) -> Self:
        """With ports for the admin pages where any would do. Raises StartRefusedError where there is no row of free ones."""
        if self.admin.port:
            return self
        try:
            return replace(self, admin=replace(self.admin, port=free_ports(self.processors, self.admin.host)[0]))
        except OSError:
            raise StartRefusedError(
                f"--admin: found no {self.processors} free ports in a row at {self.admin.host}; name the first of them yourself"
            ) from None

    def require_shared_journal(self) -> None:
        """Raises StartRefusedError where processes would each keep in memory what they have to agree on."""
        if self.journal is not None:
            return
        if self.tools:
            raise StartRefusedError("--tool needs --journal: the ledger of tool calls is kept in its database")
        if self.processors > 1:
            raise StartRefusedError(
                f"--processors {self.processors} needs --journal: without a database each process would know only its own"
                " requests, and one Idempotency-Key would run once in each of them"
            )

    def require_free_ports(self) -> None:
        """Raises StartRefusedError, naming the port and its option.

        Envoy binds with SO_REUSEPORT, so a second gateway of the same user would silently share the port with the first.
        """
        listeners = {"--listen": self.listen, "--admin": self.admin}
        if self.admin.port:
            listeners |= {f"--admin, for processor {number}": admin for number, admin in enumerate(self.admins, 1) if number > 1}
        if self.tools:
            listeners["--tools-listen"] = self.tools_listen
        for (one, address), (other, same) in itertools.combinations(listeners.items(), 2):
            if address.port and address == same:
                raise StartRefusedError(f"{one} and {other} are both {address}")
        for option, address in listeners.items():
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
