"""Addresses as people type them, as Envoy wants them and as messages name them.

A host is kept without brackets; the brackets of an IPv6 literal (RFC 3986 section 3.2.2) come back where a port follows.
"""

import ipaddress
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from extproc.contract.urls import without_secrets
from extproc.links.listening import find_obstacle

LOOPBACK: Final = "127.0.0.1"
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def is_ip(host: str) -> bool:
    """Whether a host is an IPv4 or IPv6 literal, without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_port(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 literal: the form of URLs, Host headers and Envoy's address strings."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen: an IP literal and a port; port 0 means any free one."""

    host: str
    port: int

    def __post_init__(self) -> None:
        if not is_ip(self.host):
            raise ValueError(f"{self.host!r} is not an IP address")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port {self.port} is not in 0..65535")

    def __str__(self) -> str:
        return host_port(self.host, self.port)

    @classmethod
    def parse(cls, text: str) -> Self:
        """``127.0.0.1:8080``, ``[::1]:8080``, ``localhost:8080``, or ``:8080``, which is the loopback address as well.

        Serving the whole network takes an explicit ``0.0.0.0:8080`` or ``[::]:8080``. Raises ValueError with the reason.
        """
        parts = urlsplit(f"//{text}")
        if parts.netloc != text or "@" in text or not (parts.hostname or text.startswith(":")):
            raise ValueError(f"{text!r} is not HOST:PORT (an IPv6 address needs brackets, as in [::1]:8080)")
        port = _port_of(parts, text)
        if port is None:
            raise ValueError(f"{text!r} has no port")
        host = parts.hostname or LOOPBACK
        return cls(host=LOOPBACK if host == "localhost" else host, port=port)

    @property
    def reachable(self) -> Self:
        """The same address as a client on this machine dials it: a wildcard becomes the loopback of its family."""
        address = ipaddress.ip_address(self.host)
        if not address.is_unspecified:
            return self
        return type(self)(host=LOOPBACK if address.version == 4 else "::1", port=self.port)

    def find_obstacle(self) -> OSError | None:
        """Why a listener could not bind here right now, or None."""
        return find_obstacle(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAddress:
    """Where a replica serves: the origin of its URL (RFC 6454), nothing else."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{host_port(self.host, self.port)}"

    @classmethod
    def parse(cls, url: str) -> Self:
        """``http://host[:port]`` or ``https://host[:port]``. Raises ValueError with the reason."""
        shown = without_secrets(url)
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ValueError(f"{shown!r} is no URL") from None
        if parts.scheme not in DEFAULT_PORTS:
            raise ValueError(f"{shown!r} does not start with http:// or https://")
        if not parts.hostname:
            raise ValueError(f"{shown!r} has no host")
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"{shown!r} holds credentials; the client's own Authorization header reaches the replica")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise ValueError(f"{shown!r} goes beyond host and port; clients' paths reach the replica as they are")
        port = _port_of(parts, shown)
        if port == 0:
            raise ValueError(f"{shown!r} has port 0")
        if not parts.hostname.isascii() or not parts.hostname.isprintable() or " " in parts.hostname:
            raise ValueError(f"{shown!r} has a host that is not plain ASCII")
        return cls(scheme=parts.scheme, host=parts.hostname, port=port or DEFAULT_PORTS[parts.scheme])

    @property
    def uses_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def is_name(self) -> bool:
        """Whether the host has to be looked up in DNS."""
        return not is_ip(self.host)


def _port_of(parts: SplitResult, text: str) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise ValueError(f"{text!r} has a port that is not a number in 0..65535") from None
