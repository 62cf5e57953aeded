"""What may differ between two Envoys of deltafence, and the rendering of envoy/envoy.yaml.j2 with it.

The template holds every setting that is the same everywhere, with its reason; this module holds the rest and checks it, so that a
wrong value is refused here, by name, and not by Envoy's parser.
"""

import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from extproc import data_file
from extproc.app.addresses import Address, ReplicaAddress, host_port
from extproc.contract import guard, headers
from extproc.contract.errors import EnvoyCode, ErrorCode
from extproc.decision.policy import Mode
from extproc.decision.tool_call import ToolRoute
from extproc.routes.tool_route import encode_tool_route

TEMPLATE_FILE: Final = "envoy/envoy.yaml.j2"
SOCKET_PATH_BYTES_MAX: Final = 107
"""``sun_path`` of unix(7) is 108 bytes with its closing zero."""
OBSERVE_FILTER: Final = "deltafence.observe"
"""The filter that watches; its name is what routes switch it on by."""
TOOLS_PREFIX: Final = "/tools/"
METADATA_BYTES_MAX: Final = 16384
"""Envoy's own bound on a HeaderValue (api/envoy/config/core/v3/base.proto)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRoute:
    """A path whose POST requests go to the processor, and what that route's own policy says (R14)."""

    name: str
    path: str
    policy: Mapping[str, object] | None = None
    """A policy document; it reaches the processor as gRPC metadata and stands above every other source."""
    default_mode: Mode = Mode.ENFORCE
    """What the default policy says, where this route's own says nothing."""

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ValueError(f"route {self.name!r}: path {self.path!r} does not start with /")
        if not (self.name + self.path).isprintable():
            raise ValueError(f"route {self.name!r}: its name or path {self.path!r} is not printable")
        if self.policy is not None and len(self.policy_metadata) > METADATA_BYTES_MAX:
            raise ValueError(f"route {self.name!r}: its policy is longer than {METADATA_BYTES_MAX} bytes")

    @property
    def mode(self) -> Mode:
        """Whether the processor answers, watches, or has nothing to do with this route."""
        return Mode(str((self.policy or {}).get("mode", self.default_mode)))

    @property
    def policy_metadata(self) -> str:
        """The policy as one line of ASCII, which is all that gRPC metadata may hold.

        Envoy reads ``%`` in such values as the start of a command; JSON has another spelling for it.
        """
        return json.dumps(self.policy or {}, separators=(",", ":"), allow_nan=False).replace("%", "\\u0025")


GENERATION_ROUTES: Final = (
    GenerationRoute(name="chat", path="/v1/chat/completions"),
    GenerationRoute(name="completions", path="/v1/completions"),
    GenerationRoute(name="responses", path="/v1/responses"),
    GenerationRoute(name="messages", path="/v1/messages"),
)
"""The four generation APIs that vLLM serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEndpoint:
    """A tool behind the ledger (R12): called at ``/tools/<name>/...`` on the tools listener, served at ``/...``."""

    route: ToolRoute
    address: ReplicaAddress

    def __post_init__(self) -> None:
        if len(self.route_metadata) > METADATA_BYTES_MAX:
            raise ValueError(f"tool {self.route.name!r}: its description is longer than {METADATA_BYTES_MAX} bytes")

    def __str__(self) -> str:
        return self.route.name

    @property
    def prefix(self) -> str:
        """Where callers find the tool."""
        return f"{TOOLS_PREFIX}{self.route.name}"

    @property
    def cluster(self) -> str:
        """The tool's cluster in Envoy."""
        return f"tool-{self.route.name}"

    @property
    def route_metadata(self) -> str:
        """What the processor is told of the route."""
        return encode_tool_route(self.route)


def system_ca_file() -> Path:
    """The machine's bundle of certificate authorities, as OpenSSL finds it (``SSL_CERT_FILE`` first)."""
    return Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySettings:
    """One Envoy. Raises ValueError, naming the field, for a value that Envoy could not or should not run with."""

    listen: tuple[Address, ...]
    """Where clients connect; port 0 lets Envoy choose (its admin interface tells the choice)."""
    replicas: tuple[ReplicaAddress, ...]
    processor_sockets: tuple[Path, ...]
    """One Unix socket per processor process."""
    egress_socket: Path
    """Where the processors send their attempts."""
    admin_socket: Path
    access_log: str | None = None
    """A file's path, ``stdout``, ``stderr``, or None for no access log."""
    routes: tuple[GenerationRoute, ...] = GENERATION_ROUTES
    tools: tuple[ToolEndpoint, ...] = ()
    tools_listen: Address | None = None
    """Where agents and replicas call tools. Not for clients: whoever can reach it speaks for any request."""
    replica_ca: Path | None = None
    """PEM file with the authorities for https replicas; None takes the machine's."""
    heap_bytes_max: int = 1 << 30
    """Where Envoy has lost: it resets h2 streams from 70 % on and refuses requests from 95 % on. About 94 KB go to a stream."""
    streams_max: int = 10_000
    """Client connections, and requests towards processors and replicas, before Envoy answers 503 by itself."""
    client_stall_ms_max: int = 10_000
    """How long a client may keep its TCP window closed; pauses of a reader that a person would call slow stay below."""
    idle_s_max: int = 900
    """Silence on a stream, the wait for its first delta included, before Envoy answers 504. Every policy's own deadline must be
    below it."""
    stream_s_max: int = 3660
    """The longest life of a stream."""
    upload_s_max: int = 120
    """How long a request may take to arrive, its body included; at the default size limit of 64 MiB that is 4.5 Mbit/s."""

    @property
    def is_observing(self) -> bool:
        """Whether any route is watched instead of served."""
        return any(route.mode is Mode.OBSERVE for route in self.routes)

    def __post_init__(self) -> None:
        for name in ("listen", "replicas", "processor_sockets", "routes"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"{name} is empty")
            if len(set(map(str, values))) != len(values):
                raise ValueError(f"{name} names something twice")
        if len(set(map(str, self.tools))) != len(self.tools):
            raise ValueError("tools names something twice")
        if self.tools and self.tools_listen is None:
            raise ValueError("tools have no listener: tools_listen is not set")
        for name in ("heap_bytes_max", "streams_max", "client_stall_ms_max", "idle_s_max", "stream_s_max", "upload_s_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is not above 0")
        for path in (*self.processor_sockets, self.egress_socket, self.admin_socket):
            _require_socket_path(path)
        for name in ("access_log", "replica_ca"):
            value = getattr(self, name)
            if value is not None and (not str(value) or not str(value).isprintable()):
                raise ValueError(f"{name} {str(value)!r} is empty or not printable")


def _require_socket_path(path: Path) -> None:
    if not path.is_absolute() or not str(path).isprintable():
        raise ValueError(f"socket path {str(path)!r} is not absolute and printable")
    if len(str(path).encode()) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"socket path {str(path)!r} is longer than the {SOCKET_PATH_BYTES_MAX} bytes that unix(7) allows")


def destination_of(replica: ReplicaAddress) -> str:
    """What ``x-gateway-destination-endpoint`` must say to reach this replica: ``ip:port``, with brackets around IPv6.

    override_host compares addresses, not names, so a name is resolved here, IPv4 first, as the template tells Envoy to. It blocks
    for the lookup. A name must stand for one server: where it has several addresses, Envoy knows them all and this takes the
    first. A name whose address changed needs a new call; until then Envoy falls back to another replica, which ``x-served-by``
    reveals.

    Raises OSError when the name has no address.
    """
    if not replica.is_name:
        return host_port(replica.host, replica.port)
    found = socket.getaddrinfo(replica.host, replica.port, type=socket.SOCK_STREAM)
    ipv4_first = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return host_port(str(ipv4_first[0][4][0]), replica.port)


def render(settings: EnvoySettings) -> str:
    """The configuration file, as YAML."""
    return _template().render(
        settings=settings,
        replica_ca=settings.replica_ca or system_ca_file(),
        cluster_type="STRICT_DNS" if any(replica.is_name for replica in settings.replicas) else "STATIC",
        tls_replicas={replica.host: replica for replica in settings.replicas if replica.uses_tls}.values(),
        tools=settings.tools if settings.tools_listen is not None else (),
        headers=headers,
        guard_prefix=guard.PATH_PREFIX,
        ErrorCode=ErrorCode,
        EnvoyCode=EnvoyCode,
        observe_filter=OBSERVE_FILTER,
    )


@cache
def _template() -> Template:
    path = data_file(TEMPLATE_FILE)
    environment = Environment(
        loader=FileSystemLoader(path.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  (YAML, not HTML: every value goes through tojson)
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}  # YAML would not join \ud83d\ude00 into one character
    return environment.get_template(path.name)
