"""Replicas behind a DNS name, such as a headless Service: every address is a member, asked again and again.

A failed look-up proves nothing about servers, so the last picture stays. A name says no more than who is ready now: that a
pod is terminating, or which pod it is, only the Kubernetes API tells (endpoint_slices.py).
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from extproc.decision.identity import Facts
from extproc.replicas.membership import Member, Membership
from extproc.replicas.roster import NOTHING_DECLARED, Replica

REFRESH_S: Final = 5.0
"""As often as Envoy asks by default (``dns_refresh_rate``), so that the two lag behind alike."""

LOGGER: Final = logging.getLogger("deltafence.discovery")

Origin = tuple[str, str, int]
"""Scheme, host and port of a URL; a literal address is as good a host as a name."""

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port to addresses, IPv4 literals bare and IPv6 literals in brackets. Raises OSError."""


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """As the system resolves names; one family only, IPv4 where there is any, as Envoy's V4_PREFERRED."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    v4 = [str(entry[4][0]) for entry in found if entry[0] == socket.AF_INET]
    v6 = [f"[{entry[4][0]}]" for entry in found if entry[0] == socket.AF_INET6]
    return v4 or v6


class DnsDiscovery:
    """Watches one or more names."""

    def __init__(
        self,
        origins: Sequence[Origin],
        become: Membership,
        *,
        declared: Mapping[Origin, Facts] = MappingProxyType({}),
        lookup: Lookup = system_lookup,
        refresh_s: float = REFRESH_S,
    ) -> None:
        """``declared`` holds for every address of an origin."""
        self._origins: Final = origins
        self._declared: Final = declared
        self._become: Final = become
        self._lookup: Final = lookup
        self._refresh_s: Final = refresh_s
        self._known: dict[Origin, tuple[Member, ...]] = {}
        self._picture: tuple[Member, ...] | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._refresh_s)

    async def refresh(self) -> None:
        """Ask once for every name, and tell the picture where it changed."""
        for origin in self._origins:
            scheme, host, port = origin
            try:
                addresses = await self._lookup(host, port)
            except OSError as error:
                LOGGER.warning("%s can't be looked up, its last addresses stay: %s", host, error)
                continue
            self._known[origin] = tuple(
                # A certificate is made out to the name, so that https is asked there.
                Member(
                    replica=Replica(
                        destination=f"{address}:{port}",
                        url=f"{scheme}://{address if scheme == 'http' else host}:{port}",
                        declared=self._declared.get(origin, NOTHING_DECLARED),
                    )
                )
                for address in sorted(set(addresses))
            )
        picture = tuple(member for origin in self._origins for member in self._known.get(origin, ()))
        if picture != self._picture:
            self._picture = picture
            self._become(picture)
