"""A network of two machines inside this one: namespaces joined by a pair of virtual interfaces, whose packets can be dropped.

Nothing outside the two namespaces changes, and every address exists only inside them (RFC 5737). What is dropped is dropped
as a broken route drops it: no reset, no error, no close; TCP itself finds out, or doesn't.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from extproc.sim.link import Direction

GATEWAY_ADDRESS = "192.0.2.1"
REPLICA_ADDRESS = "192.0.2.2"
NOBODY = "02:00:00:00:00:01"
"""A link-layer address that no interface has: a frame sent there arrives at nobody."""
CLONE_NEWNET = 0x40000000


class NotPermittedError(Exception):
    """Namespaces can't be made here; the message says why."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A named network namespace (ip-netns(8)) with one interface ``veth`` besides loopback."""

    name: str

    def ip(self, *arguments: str) -> None:
        _ip("-n", self.name, *arguments)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """For the length of a block this thread's new sockets and children are in the namespace; setns(2)."""
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.name}") as there:
            _setns(there.fileno())
            try:
                yield
            finally:
                _setns(home.fileno())

    def lose_frames_to(self, address: str) -> None:
        """Everything sent from here to a neighbour vanishes from now on."""
        self.ip("neighbour", "replace", address, "lladdr", NOBODY, "nud", "permanent", "dev", "veth")

    def find_again(self, address: str) -> None:
        """Ask the network where the neighbour is, as if it had never been wrong."""
        self.ip("neighbour", "delete", address, "dev", "veth")


@dataclass(frozen=True, slots=True)
class Network:
    """The gateway's machine and the replica's."""

    gateway: Namespace
    replica: Namespace

    @contextmanager
    def dropping(self, direction: Direction) -> Iterator[None]:
        """Drop every packet that goes that way, for the length of a block."""
        ends = {
            Direction.TO_REPLICA: (self.gateway, REPLICA_ADDRESS),
            Direction.FROM_REPLICA: (self.replica, GATEWAY_ADDRESS),
        }
        with ExitStack() as stack:
            for part in direction:
                sender, neighbour = ends[part]
                sender.lose_frames_to(neighbour)
                stack.callback(sender.find_again, neighbour)
            yield

    @contextmanager
    def unplugged(self) -> Iterator[None]:
        """Take the replica's interface down for the length of a block: both machines see that they have no carrier."""
        self.replica.ip("link", "set", "veth", "down")
        try:
            yield
        finally:
            self.replica.ip("link", "set", "veth", "up")


@contextmanager
def make_network() -> Iterator[Network]:
    """Both machines, joined; gone again at the end. Raises NotPermittedError."""
    prefix = f"deltafence-{os.getpid()}"
    gateway, replica = Namespace(f"{prefix}-gateway"), Namespace(f"{prefix}-replica")
    with ExitStack() as stack:
        for namespace in (gateway, replica):
            _ip("netns", "add", namespace.name)
            stack.callback(_ip, "netns", "delete", namespace.name)
            namespace.ip("link", "set", "lo", "up")
        gateway.ip("link", "add", "veth", "type", "veth", "peer", "name", "veth", "netns", replica.name)
        for namespace, address in ((gateway, GATEWAY_ADDRESS), (replica, REPLICA_ADDRESS)):
            namespace.ip("address", "add", f"{address}/30", "dev", "veth")
            namespace.ip("link", "set", "veth", "up")
        yield Network(gateway, replica)


def _ip(*arguments: str) -> None:
    try:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NotPermittedError("there is no `ip` here (Debian: iproute2)") from error
    except subprocess.CalledProcessError as error:
        raise NotPermittedError(f"ip {' '.join(arguments)}: {error.stderr.strip()}") from error


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise NotPermittedError(f"setns: {os.strerror(number)}")
