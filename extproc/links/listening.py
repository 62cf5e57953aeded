"""Where a listener can bind."""

import atexit
import errno
import os
import secrets
import socket
from contextlib import ExitStack
from typing import Final

PORTS_OF_LISTENERS: Final = range(20_000, 32_000)
"""Linux takes the ports of outgoing connections from 32768 on (ip_local_port_range), and one could have a free port before its
listener has bound it."""
FREE_PORTS_TRIES_MAX: Final = 100


def find_obstacle(host: str, port: int) -> OSError | None:
    """Why a listener could not bind here right now, or None.

    Envoy binds with SO_REUSEPORT, so a second gateway of the same user would silently share the port with the first; this bind is
    exclusive and sees it. SO_REUSEADDR only forgives connections in TIME_WAIT.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as obstacle:
            return obstacle
    return None


def free_ports(count: int, host: str = "127.0.0.1") -> range:
    """Ports in a row that nobody listens on, and that nobody else is told of as long as this process lives.

    Raises OSError where there is no such row.
    """
    for _ in range(FREE_PORTS_TRIES_MAX):
        first = secrets.choice(PORTS_OF_LISTENERS[:-count])
        row = range(first, first + count)
        with ExitStack() as reserved:
            if all(_reserve(port, reserved) and find_obstacle(host, port) is None for port in row):
                _RESERVED.push(reserved.pop_all())
                return row
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def free_port() -> int:
    """One on IPv4's loopback."""
    return free_ports(1)[0]


_RESERVED: Final = ExitStack()
atexit.register(_RESERVED.close)


def _reserve(port: int, reserved: ExitStack) -> bool:
    """Whether nobody else has reserved it. Two processes that look for a port at once would both find it free; the name of an
    abstract socket (unix(7)) has one owner, and goes with it."""
    holder = reserved.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        holder.bind(f"\0deltafence-port-{port}")
    except OSError:
        return False
    return True
